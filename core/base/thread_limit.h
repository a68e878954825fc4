// Why the system makes no more threads, in words for a user. Reading is safe from any thread.
#pragma once

#include <filesystem>
#include <string>

namespace moesaic {

// To be said after a std::system_error with EAGAIN ("Resource temporarily unavailable") from a new
// std::thread: which limit it is and what to do. `root` as in ReadCgroupLimits.
std::string ThreadLimitAdvice(const std::filesystem::path& root = "/");

}  // namespace moesaic
