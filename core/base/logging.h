// Logging through spdlog: one logger, made in main, as text or JSON lines on standard error.
//
// spdlog's default logger is the one global the project allows: it is process-wide by nature and
// set once, before any thread starts. Code logs with LogInfo("loaded {} tensors", n).
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>
#include <utility>

namespace moesaic {

enum class LogFormat { kText, kJson };

// `level` is one of trace, debug, info, warn, error, off. Throws Error(kInvalidArgument) on
// another.
void InitLogging(LogFormat format, std::string_view level);

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
