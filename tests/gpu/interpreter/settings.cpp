#include "tests/gpu/interpreter/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "core/base/error.h"

namespace moesaic::ptx {
namespace {

uint64_t Number(std::string_view name, std::string_view digits, uint64_t most) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value > most) {
    Fail(ErrorKind::kInvalidArgument, "MOESAIC_PTX: {}={} is no number from 0 to {}", name, digits,
         most);
  }
  return value;
}

}  // namespace

Settings ParseSettings(std::string_view text) {
  Settings settings;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(item.size() + 1, text.size()));
    const size_t equals = std::min(item.find('='), item.size());
    const std::string_view name = item.substr(0, equals);
    const std::string_view value = item.substr(std::min(equals + 1, item.size()));
    if (name == "gpus") {
      settings.gpus = static_cast<int>(Number(name, value, 16));
    } else if (name == "words") {
      settings.words = Number(name, value, 1) != 0;
    } else if (name == "lazy") {
      settings.lazy = Number(name, value, 1) != 0;
    } else if (name == "seed") {
      settings.seed = Number(name, value, UINT64_MAX);
    } else if (name == "patience_ms") {
      settings.patience = std::chrono::milliseconds(Number(name, value, 3600000));
    } else if (name == "kernels") {
      settings.kernels = value;
    } else {
      Fail(ErrorKind::kInvalidArgument,
           "MOESAIC_PTX: there is no setting '{}'; there are gpus, words, lazy, seed, patience_ms "
           "and kernels",
           name);
    }
  }
  return settings;
}

Settings ReadSettings() {
  const char* const text = std::getenv("MOESAIC_PTX");
  return ParseSettings(text != nullptr ? text : "");
}

}  // namespace moesaic::ptx
