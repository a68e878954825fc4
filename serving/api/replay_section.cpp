#include "serving/api/replay_section.h"

#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "tracer/state_fields.h"

namespace moesaic {
namespace {

// Turns one behind the other: what all of them have of a kind is one array.
struct Columns {
  std::vector<uint64_t> prompt_hashes;  // [turns]
  std::vector<uint64_t> prompt_bytes;   // [turns]
  std::vector<uint32_t> token_counts;   // [turns]
  std::vector<uint32_t> item_counts;    // [turns]
  std::vector<int32_t> tokens;          // of all turns
  std::vector<uint8_t> item_kinds;      // [items of all turns]
  std::vector<uint32_t> text_bytes;     // [3 * items]: of text, id and name
  std::vector<uint8_t> texts;           // of all items
};

void Append(const std::string& text, Columns& columns) {
  columns.text_bytes.push_back(static_cast<uint32_t>(text.size()));
  columns.texts.insert(columns.texts.end(), text.begin(), text.end());
}

void Append(const GeneratedTurn& turn, Columns& columns) {
  columns.prompt_hashes.push_back(turn.prompt.hash);
  columns.prompt_bytes.push_back(turn.prompt.bytes);
  columns.token_counts.push_back(static_cast<uint32_t>(turn.tokens.size()));
  columns.item_counts.push_back(static_cast<uint32_t>(turn.items.size()));
  columns.tokens.insert(columns.tokens.end(), turn.tokens.begin(), turn.tokens.end());
  for (const AnswerItem& item : turn.items) {
    columns.item_kinds.push_back(static_cast<uint8_t>(item.kind));
    Append(item.text, columns);
    Append(item.id, columns);
    Append(item.name, columns);
  }
}

// Takes turns out of columns whose numbers nobody has checked.
class TurnReader {
 public:
  explicit TurnReader(const Columns& columns) : columns_(columns) {}

  GeneratedTurn Next() {
    GeneratedTurn turn;
    turn.prompt = {columns_.prompt_hashes[turn_], columns_.prompt_bytes[turn_]};
    const size_t tokens = columns_.token_counts[turn_];
    if (tokens == 0 || tokens > columns_.tokens.size() - token_) Refuse("tokens");
    const auto first = columns_.tokens.begin() + static_cast<ptrdiff_t>(token_);
    turn.tokens.assign(first, first + static_cast<ptrdiff_t>(tokens));
    token_ += tokens;
    const size_t items = columns_.item_counts[turn_];
    if (items > columns_.item_kinds.size() - item_) Refuse("items");
    for (size_t i = 0; i < items; ++i) turn.items.push_back(NextItem());
    ++turn_;
    return turn;
  }
  bool AtEnd() const {
    return token_ == columns_.tokens.size() && item_ == columns_.item_kinds.size() &&
           text_ == columns_.texts.size();
  }
  [[noreturn]] static void Refuse(std::string_view what) {
    Fail(ErrorKind::kCorrupt, "the {} are not as many as its turns have", what);
  }

 private:
  AnswerItem NextItem() {
    AnswerItem item;
    const uint8_t kind = columns_.item_kinds[item_];
    if (kind > static_cast<uint8_t>(AnswerItem::Kind::kCall)) {
      Fail(ErrorKind::kCorrupt, "an item is of kind {}, which there is not", kind);
    }
    item.kind = static_cast<AnswerItem::Kind>(kind);
    item.text = NextText(0);
    item.id = NextText(1);
    item.name = NextText(2);
    ++item_;
    return item;
  }
  std::string NextText(size_t part) {
    const size_t bytes = columns_.text_bytes[3 * item_ + part];
    if (bytes > columns_.texts.size() - text_) Refuse("texts");
    const auto first = columns_.texts.begin() + static_cast<ptrdiff_t>(text_);
    text_ += bytes;
    return std::string(first, first + static_cast<ptrdiff_t>(bytes));
  }

  const Columns& columns_;
  size_t turn_ = 0;
  size_t token_ = 0;
  size_t item_ = 0;
  size_t text_ = 0;
};

}  // namespace

std::vector<std::byte> ReplaySection::Save() const {
  Columns columns;
  for (const auto& turn : store_->Turns()) Append(*turn, columns);
  StateFields fields;
  // A whole number is signed there.
  fields.SetInt("vocabulary", static_cast<int64_t>(store_->vocabulary()));
  fields.SetArray<uint64_t>("prompt_hashes", columns.prompt_hashes);
  fields.SetArray<uint64_t>("prompt_bytes", columns.prompt_bytes);
  fields.SetArray<uint32_t>("token_counts", columns.token_counts);
  fields.SetArray<uint32_t>("item_counts", columns.item_counts);
  fields.SetArray<int32_t>("tokens", columns.tokens);
  fields.SetArray<uint8_t>("item_kinds", columns.item_kinds);
  fields.SetArray<uint32_t>("text_bytes", columns.text_bytes);
  fields.SetArray<uint8_t>("texts", columns.texts);
  return fields.Pack();
}

void ReplaySection::Load(uint32_t stored_version, std::span<const std::byte> bytes) {
  if (stored_version != version()) {
    Fail(ErrorKind::kUnsupported, "has version {}, this program reads {}", stored_version,
         version());
  }
  const StateFields fields = StateFields::Unpack(bytes, std::string(name()));
  const int64_t vocabulary = fields.Int("vocabulary", INT64_MIN, INT64_MAX);
  Columns columns;
  columns.prompt_hashes = fields.ArrayOf<uint64_t>("prompt_hashes");
  const size_t turns = columns.prompt_hashes.size();
  columns.prompt_bytes = fields.ArrayOf<uint64_t>("prompt_bytes", turns);
  columns.token_counts = fields.ArrayOf<uint32_t>("token_counts", turns);
  columns.item_counts = fields.ArrayOf<uint32_t>("item_counts", turns);
  columns.tokens = fields.ArrayOf<int32_t>("tokens");
  columns.item_kinds = fields.ArrayOf<uint8_t>("item_kinds");
  columns.text_bytes = fields.ArrayOf<uint32_t>("text_bytes", 3 * columns.item_kinds.size());
  columns.texts = fields.ArrayOf<uint8_t>("texts");
  std::vector<GeneratedTurn> restored;
  TurnReader reader(columns);
  for (size_t i = 0; i < turns; ++i) restored.push_back(reader.Next());
  if (!reader.AtEnd()) TurnReader::Refuse("parts");
  store_->Restore(std::move(restored), static_cast<uint64_t>(vocabulary));
}

}  // namespace moesaic
