#include "serving/cli/settings.h"

#include "core/config/log_settings.h"
#include "serving/http/server_settings.h"
#include "serving/online/engine_settings.h"

namespace moesaic {

void AddSettings(Settings& settings, SettingScope scope, OptionTable& table) {
  AddEngineSettings(settings.engine, scope.engine, table);
  AddChatFormatSettings(settings.chat, scope.engine, table);
  AddServerSettings(settings.server, settings.engine.max_queue, scope.server, table);
  AddLogSettings(settings.log, table);
}

}  // namespace moesaic
