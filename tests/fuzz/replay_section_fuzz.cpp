// What a state file has of generated turns: whatever comes in is either refused, or gives turns
// that are found, saved again as the same bytes, and have no token that the model has not.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/api/replay_section.h"
#include "serving/text/id_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moesaic;
  static const std::unique_ptr<Tokenizer> tokenizer = MakeIdTokenizer(16);
  const auto store = std::make_shared<ReplayStore>(size_t{1} << 20);
  ReplaySection section(store);
  try {
    section.Load(1, std::as_bytes(std::span(data, size)));
  } catch (const Error&) {
    CHECK(store->Turns().empty());
    return 0;
  }
  const std::vector<std::byte> saved = section.Save();
  const auto again = std::make_shared<ReplayStore>(size_t{1} << 20);
  ReplaySection(again).Load(1, saved);
  CHECK(ReplaySection(again).Save() == saved);
  store->UseVocabulary(*tokenizer);
  for (const auto& turn : store->Turns()) {
    CHECK(!turn->tokens.empty());
    for (const int32_t token : turn->tokens) CHECK(token >= 0 && token < 16);
  }
  return 0;
}
