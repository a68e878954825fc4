// Logging through spdlog: one logger, made in main, as text or JSON lines on standard error.
//
// spdlog's default logger is the one global the project allows: it is process-wide by nature and
// set once, before any thread starts. Code logs with LogInfo("loaded {} tensors", n).
#pragma once

#include <spdlog/spdlog.h>

#include <utility>

#include "core/base/named.h"

namespace moesaic {

enum class LogFormat { kText, kJson };
inline constexpr Named<LogFormat> kLogFormats[] = {{"text", LogFormat::kText},
                                                   {"json", LogFormat::kJson}};

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kOff };
inline constexpr Named<LogLevel> kLogLevels[] = {
    {"trace", LogLevel::kTrace},  {"debug", LogLevel::kDebug}, {"info", LogLevel::kInfo},
    {"warn", LogLevel::kWarning}, {"error", LogLevel::kError}, {"off", LogLevel::kOff}};

struct LogOptions {
  LogLevel level = LogLevel::kInfo;  // the least severity that is logged
  LogFormat format = LogFormat::kText;
};

void InitLogging(const LogOptions& options);

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::debug(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarn(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::error(format, std::forward<Args>(args)...);
}

}  // namespace moesaic
