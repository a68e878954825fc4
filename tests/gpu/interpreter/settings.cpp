#include "tests/gpu/interpreter/settings.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/base/error.h"

namespace moesaic::ptx {
namespace {

uint64_t NumberOr(const char* name, uint64_t otherwise, uint64_t most) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return otherwise;
  const std::string_view digits(text);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value > most) {
    Fail(ErrorKind::kInvalidArgument, "{}={} is no number from 0 to {}", name, text, most);
  }
  return value;
}

}  // namespace

Settings ReadSettings() {
  Settings settings;
  settings.gpus = static_cast<int>(NumberOr("MOESAIC_PTX_GPUS", 1, 16));
  settings.words = NumberOr("MOESAIC_PTX_WORDS", 1, 1) != 0;
  settings.lazy = NumberOr("MOESAIC_PTX_LAZY", 0, 1) != 0;
  settings.seed = NumberOr("MOESAIC_PTX_SEED", 0, UINT64_MAX);
  if (const char* const kernels = std::getenv("MOESAIC_PTX_KERNELS")) settings.kernels = kernels;
  return settings;
}

}  // namespace moesaic::ptx
