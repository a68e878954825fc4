// SlowPeers: how many request bodies and TLS handshakes of each peer are taking long to arrive. A
// client on a bad line has a few; a hundred are somebody who wants all connections to be taken.
//
// Thread contract: any thread.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstddef>
#include <map>
#include <string>

#include "core/base/mutex.h"

namespace moesaic {

class SlowPeers {
 public:
  explicit SlowPeers(size_t max_per_peer) : max_per_peer_(max_per_peer) {}

  // False: the peer has as many as it may. Each that was entered leaves once.
  bool Enter(const std::string& peer) EXCLUDES(mutex_);
  void Leave(const std::string& peer) EXCLUDES(mutex_);

 private:
  const size_t max_per_peer_;
  Mutex mutex_;
  std::map<std::string, size_t> slow_ GUARDED_BY(mutex_);  // of peers that have some
};

// Who counts as one peer: an IPv4 address, or the 64 bits of an IPv6 address that name a network,
// whose hosts have all the others to choose from.
std::string PeerOf(const boost::asio::ip::address& address);

}  // namespace moesaic
