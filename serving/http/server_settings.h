// The settings of the HTTP server, bound to the fields of its options.
#pragma once

#include <cstdint>

#include "core/config/option_table.h"
#include "serving/http/server_options.h"

namespace moesaic {

// `visible`: they are flags of the command. `max_queue` is of the engine, whose queue only a server
// fills. The variables and the table outlive what is registered.
void AddServerSettings(ServerOptions& server, int64_t& max_queue, bool visible, OptionTable& table);

}  // namespace moesaic
