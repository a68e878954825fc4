// The settings of logging, which every command has.
#pragma once

#include "core/base/logging.h"
#include "core/config/option_table.h"

namespace moesaic {

// `options` and the table outlive what is registered.
void AddLogSettings(LogOptions& options, OptionTable& table);

}  // namespace moesaic
