#include "serving/text/id_tokenizer.h"

#include <fmt/format.h>

#include <utility>

namespace moesaic {
namespace {

class IdTokenizer : public Tokenizer {
 public:
  explicit IdTokenizer(TokenTable table) : Tokenizer(std::move(table), {}, {}) {}

  std::vector<int32_t> EncodeSegments(std::span<const TextSegment> segments, bool) const override {
    std::vector<int32_t> ids;
    for (const TextSegment& segment : segments) {
      for (const char c : segment.text) {
        ids.push_back(static_cast<unsigned char>(c) % vocab_size());
      }
    }
    return ids;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> MakeIdTokenizer(int32_t vocab_size) {
  TokenTable table;
  table.entries.resize(static_cast<size_t>(vocab_size));
  table.ids.Reserve(static_cast<size_t>(vocab_size));
  for (int32_t id = 0; id < vocab_size; ++id) {
    TokenTable::Entry& entry = table.entries[static_cast<size_t>(id)];
    entry.content = fmt::format("<{}>", id);
    entry.bytes = entry.content;
    entry.known = true;
    table.ids.Add(entry.content, id);
  }
  return std::make_unique<IdTokenizer>(std::move(table));
}

}  // namespace moesaic
