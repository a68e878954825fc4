// Settings: the options of the rooms that a command's settings set, and their registration.
//
// Plain data, filled once by the command line and passed down.
#pragma once

#include "core/base/logging.h"
#include "core/config/option_table.h"
#include "serving/api/chat_format_options.h"
#include "serving/http/server_options.h"
#include "serving/online/engine_options.h"

namespace moesaic {

struct Settings {
  EngineOptions engine;
  ChatFormatOptions chat;
  ServerOptions server;
  LogOptions log;
};

// Which settings are flags of a command; the others may still stand in a file or the environment
// that several commands share.
struct SettingScope {
  bool engine = false;
  bool server = false;
};

// Binds all settings to `settings`, which outlives the table.
void AddSettings(Settings& settings, SettingScope scope, OptionTable& table);

}  // namespace moesaic
