// The settings of an engine, bound to the fields of its options.
#pragma once

#include "core/config/option_table.h"
#include "serving/online/engine_options.h"

namespace moesaic {

// `visible`: they are flags of the command. `options` and the table outlive what is registered.
void AddEngineSettings(EngineOptions& options, bool visible, OptionTable& table);
void AddDeviceSettings(DeviceOptions& options, bool visible, OptionTable& table);

}  // namespace moesaic
