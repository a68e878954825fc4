// The files that `moesaic plan` takes lengths from: what is accepted has lengths to plan with.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/cli/workload_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const moesaic::Workload workload = moesaic::ParseWorkloadLines(
        text, "w.jsonl", 16, [](std::string_view t) { return static_cast<int64_t>(t.size()); });
    CHECK(!workload.requests.empty());
    for (const moesaic::RequestLengths& request : workload.requests) {
      CHECK_GT(request.prompt_tokens, 0);
      CHECK_GT(request.generated_tokens, 0);
    }
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kCorrupt ||
          error.kind() == moesaic::ErrorKind::kInvalidArgument);
  }
  try {
    CHECK(!moesaic::ParseUniformWorkload(text.substr(0, 64), "--workload").requests.empty());
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kInvalidArgument);
  }
  return 0;
}
