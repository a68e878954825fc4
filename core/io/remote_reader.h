// RemoteReader: an AsyncReader of the one file of an expert store on another machine, which
// `moesaic serve-experts` serves (expert_wire.h). It is meant to be one link of several
// (striped_reader.h), the others of which have the same bytes.
//
// A server that cannot be reached, or is lost, fails what it is asked at once, with the errno that
// says why, so that another link may read it. A read that is refused so starts another attempt to
// connect, unless one is under way, which goes on while reads come from elsewhere. What arrives
// without its checksum loses the connection (-EBADMSG).
//
// Thread contract: as AsyncReader's. No thread of its own: Wait moves the bytes. The constructor
// makes the first attempt to connect and waits for its end, `patience_ms` for each address of the
// host at most; only it resolves the host's name, and later attempts until that has succeeded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/io/async_reader.h"
#include "core/io/expert_wire.h"

namespace moesaic {

// A store on another machine.
struct RemoteStore {
  ExpertPeer peer;
  std::string key;  // shared
  ExpertStoreIdentity store;
  int64_t patience_ms = 3000;  // for a handshake, and without a byte while a read is under way
};

// depth: reads in flight. Throws Error(kInvalidArgument) when the server does not have the store,
// or not the same key. With one that cannot be reached, or has too many clients, reads fail.
std::unique_ptr<AsyncReader> MakeRemoteReader(RemoteStore remote, int depth);

}  // namespace moesaic
