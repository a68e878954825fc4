#include "serving/http/slow_peers.h"

namespace moesaic {

bool SlowPeers::Enter(const std::string& peer) {
  MutexLock lock(mutex_);
  const auto found = slow_.find(peer);
  if ((found == slow_.end() ? 0 : found->second) >= max_per_peer_) return false;
  ++slow_[peer];
  return true;
}

void SlowPeers::Leave(const std::string& peer) {
  MutexLock lock(mutex_);
  const auto found = slow_.find(peer);
  if (found != slow_.end() && --found->second == 0) slow_.erase(found);
}

std::string PeerOf(const boost::asio::ip::address& address) {
  if (address.is_v4()) return address.to_string();
  if (address.to_v6().is_v4_mapped()) {
    return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6())
        .to_string();
  }
  const auto bytes = address.to_v6().to_bytes();
  return std::string(bytes.begin(), bytes.begin() + 8);
}

}  // namespace moesaic
