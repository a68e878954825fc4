// The ModuleCosts document: what is accepted can be written and read again, and planned with.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/perf/module_costs.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const moesaic::ModuleCosts costs = moesaic::ParseModuleCosts(text, "costs.json");
    for (const moesaic::ModuleCost& cost : costs.modules) {
      CHECK(std::isfinite(cost.seconds(1e6)) && cost.seconds(0) >= 0);
    }
    CHECK_GT(costs.link.value, 0);
    CHECK_GT(costs.contended_compute_share.value, 0);
    for (const double rows : {0.0, 1.0, 64.0, 1e9}) {
      const double active = costs.ActiveExperts(8, 2, rows);
      CHECK(active >= 0 && active <= 8);
    }
    const std::string written = moesaic::SerializeModuleCosts(costs);
    CHECK(moesaic::SerializeModuleCosts(moesaic::ParseModuleCosts(written, "again.json")) ==
          written);
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kCorrupt ||
          error.kind() == moesaic::ErrorKind::kUnsupported);
  }
  return 0;
}
