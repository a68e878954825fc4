// What open connections have of memory: the ledger's line "connections". Requests that are read and
// answers that wait for their clients have bounds of their own (ServerOptions).
#pragma once

#include <cstdint>

#include "serving/http/server_options.h"

namespace moesaic {

// Of one connection, at most.
uint64_t ConnectionBytes(const ServerOptions& options);
// Lowers the number of connections until all of them, those for probes included, have `limit_bytes`
// at most; one is left in any case. Returns what they have then.
uint64_t FitConnections(ServerOptions& options, uint64_t limit_bytes);

}  // namespace moesaic
