#include "core/config/log_settings.h"

#include "core/config/setting_section.h"

namespace moesaic {

void AddLogSettings(LogOptions& options, OptionTable& table) {
  const SettingSection logging(table, "Logging", true);
  logging.Add({.name = "log-level",
               .target = OneOf(&options.level, kLogLevels),
               .help = "Least severity that is logged."});
  logging.Add({.name = "log-format",
               .target = OneOf(&options.format, kLogFormats),
               .help = "Lines of text or of JSON."});
}

}  // namespace moesaic
