// The files that `moesaic simulate --arrivals` takes: what is accepted is in order and can be
// simulated.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/simulate/arrival_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto arrivals = moesaic::ParseArrivals(text, "a.csv");
    CHECK(!arrivals.empty());
    double last = 0;
    for (const moesaic::Arrival& arrival : arrivals) {
      CHECK(arrival.at_s >= last && arrival.at_s < 1e13);
      last = arrival.at_s;
      CHECK_GT(arrival.prompt_tokens, 0);
      CHECK_GT(arrival.answer_tokens, 0);
      CHECK_GE(arrival.model, -1);
    }
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kCorrupt ||
          error.kind() == moesaic::ErrorKind::kInvalidArgument);
  }
  return 0;
}
