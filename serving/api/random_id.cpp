#include "serving/api/random_id.h"

#include <fmt/format.h>

#include <random>

namespace moesaic {

std::string MakeRandomId(std::string_view prefix) {
  // Not secrets, only unique: one seeded generator per thread.
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return fmt::format("{}{:016x}{:016x}", prefix, generator(), generator());
}

}  // namespace moesaic
