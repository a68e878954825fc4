// Lines of batch files: whatever comes in is either refused with a 400, or gives a request whose
// body is JSON and whose id comes back out of an output line.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "serving/api/api_error.h"
#include "serving/api/batch_line.h"
#include "serving/api/json_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  moesaic::PromptDefaults defaults;
  defaults.chat = size % 2 == 0;
  try {
    const moesaic::BatchLine line = moesaic::ParseBatchLine(text, 1, defaults);
    CHECK(!line.custom_id.empty());
    const std::string found = moesaic::FindCustomId(text);
    CHECK(found.empty() || found == line.custom_id);
    CHECK(moesaic::ParseJson(line.body).is_object());
    CHECK(moesaic::CustomIdOfOutput(moesaic::BatchOutputLine(line.custom_id, "r", "{}")) ==
          line.custom_id);
  } catch (const moesaic::ApiError& error) {
    CHECK_EQ(error.status(), 400);
    CHECK(!moesaic::BatchErrorLine(1, "", error).empty());
  }
  CHECK_LE(moesaic::FindCustomId(text).size(), 4096u);
  moesaic::IsBatchErrorLine(text);
  try {
    CHECK(!moesaic::CustomIdOfOutput(text).empty());
  } catch (const moesaic::ApiError& error) {
    CHECK_EQ(error.status(), 400);
  }
  return 0;
}
