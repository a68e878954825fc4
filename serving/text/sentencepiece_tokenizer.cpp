#include "serving/text/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "serving/text/added_tokens.h"
#include "serving/text/segments.h"
#include "serving/text/unicode.h"

namespace moesaic {
namespace {

using sentencepiece::SentencePieceProcessor;

constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// A ModelProto that, appended to another one, changes just normalizer_spec.add_dummy_prefix (field
// 3 of field 3) to false: protobuf merges concatenated messages.
constexpr std::string_view kNoDummyPrefix("\x1A\x02\x18\x00", 4);

std::unique_ptr<SentencePieceProcessor> LoadProcessor(std::string_view model,
                                                      const std::string& name) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  const sentencepiece::util::Status status =
      processor->LoadFromSerializedProto(absl::string_view(model.data(), model.size()));
  if (!status.ok() || processor->GetPieceSize() <= 0) {
    Fail(ErrorKind::kCorrupt, "{}: not a SentencePiece model: {}", name, status.ToString());
  }
  return processor;
}

std::vector<int> EncodeIds(const SentencePieceProcessor& processor, std::string_view text) {
  std::vector<int> ids;
  const sentencepiece::util::Status status =
      processor.Encode(absl::string_view(text.data(), text.size()), &ids);
  if (!status.ok()) {
    Fail(ErrorKind::kInvalidArgument, "SentencePiece cannot encode a text of {} bytes: {}",
         text.size(), status.ToString());
  }
  return ids;
}

// The bytes a piece adds to a text: its marks become spaces, a byte piece its byte.
std::string PieceBytes(const SentencePieceProcessor& processor, int id) {
  const std::string& piece = processor.IdToPiece(id);
  if (processor.IsByte(id) && piece.size() == 6) {
    unsigned int byte = 0;
    std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
    return std::string(1, static_cast<char>(byte));
  }
  if (processor.IsControl(id) || processor.IsUnknown(id)) return piece;
  std::string bytes;
  std::string_view rest = piece;
  while (!rest.empty()) {
    if (rest.starts_with(kMetaspace)) {
      bytes.push_back(' ');
      rest.remove_prefix(kMetaspace.size());
    } else {
      bytes.push_back(rest[0]);
      rest.remove_prefix(1);
    }
  }
  return bytes;
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  struct Parts {
    std::unique_ptr<SentencePieceProcessor> processor;
    bool prefix_at_start_only;
    std::vector<AddedTokenMatcher::Entry> added;
    std::vector<int32_t> prefix;
    std::vector<int32_t> suffix;
    TokenTable table;
    DecodeRules rules;
    SpecialTokenIds special_ids;
  };
  explicit SentencePieceTokenizer(Parts parts)
      : Tokenizer(std::move(parts.table), std::move(parts.rules), parts.special_ids),
        processor_(std::move(parts.processor)),
        prefix_at_start_only_(parts.prefix_at_start_only),
        matcher_(std::move(parts.added)),
        prefix_(std::move(parts.prefix)),
        suffix_(std::move(parts.suffix)) {}

  std::vector<int32_t> EncodeSegments(std::span<const TextSegment> segments,
                                      bool add_special_tokens) const override {
    const JoinedText joined(segments);
    std::vector<int32_t> ids;
    if (add_special_tokens) ids = prefix_;
    std::vector<AddedTokenMatcher::Part> parts;
    matcher_.Split(joined.text(), joined.plain(), parts);
    for (const AddedTokenMatcher::Part& part : parts) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
        continue;
      }
      std::string text(joined.text().substr(part.begin, part.end - part.begin));
      if (prefix_at_start_only_ && part.begin == 0) text.insert(0, kMetaspace);
      for (const int id : EncodeIds(*processor_, text)) ids.push_back(id);
    }
    if (add_special_tokens) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
    return ids;
  }

 private:
  const std::unique_ptr<const SentencePieceProcessor> processor_;
  const bool prefix_at_start_only_;
  const AddedTokenMatcher matcher_;
  const std::vector<int32_t> prefix_;
  const std::vector<int32_t> suffix_;
};

}  // namespace

std::unique_ptr<Tokenizer> LoadSentencePiece(std::string_view model, const std::string& name,
                                             const TokenizerSettings& settings) {
  SentencePieceTokenizer::Parts parts;
  parts.processor = LoadProcessor(model, name);
  const SentencePieceProcessor& original = *parts.processor;
  const int pieces = original.GetPieceSize();
  if (pieces > kMaxTokenId) {
    Fail(ErrorKind::kCorrupt, "{}: {} pieces, more than {}", name, pieces, kMaxTokenId);
  }

  std::vector<AddedToken> added = settings.added_tokens;
  for (const AddedToken& token : added) {
    if (token.id < pieces && original.IdToPiece(token.id) != token.content) {
      Fail(ErrorKind::kCorrupt, "{}: piece {} is \"{}\", but added token \"{}\" has that id", name,
           token.id, original.IdToPiece(token.id), token.content);
    }
  }
  int32_t max_id = pieces - 1;
  for (const AddedToken& token : added) max_id = std::max(max_id, token.id);
  parts.table.entries.resize(static_cast<size_t>(max_id) + 1);
  for (int id = 0; id < pieces; ++id) {
    TokenTable::Entry& entry = parts.table.entries[static_cast<size_t>(id)];
    entry.content = original.IdToPiece(id);
    entry.bytes = PieceBytes(original, id);
    entry.special = original.IsControl(id) || original.IsUnknown(id);
    entry.known = true;
    parts.table.ids.Add(entry.content, id);
    const auto listed = [id](const AddedToken& token) { return token.id == id; };
    if (entry.special && !entry.content.empty() &&
        std::none_of(added.begin(), added.end(), listed)) {
      AddedToken token;
      token.id = id;
      token.content = entry.content;
      token.special = true;
      added.push_back(std::move(token));
    }
  }
  for (const AddedToken& token : added) {
    if (token.content.empty()) continue;
    TokenTable::Entry& entry = parts.table.entries[static_cast<size_t>(token.id)];
    entry.special = entry.special || token.special;
    if (!entry.known) {
      entry.content = token.content;
      entry.bytes = token.content;
      entry.known = true;
      parts.table.ids.Add(token.content, token.id);
    }
    parts.added.push_back({token.content, token});
    parts.added.back().token.special = entry.special;
  }

  // Whether the model puts a space before a text is not in the library's interface, but shows.
  const std::vector<int> probe = EncodeIds(original, "a");
  const bool dummy_prefix =
      !probe.empty() && original.IdToPiece(probe[0]).starts_with(std::string(kMetaspace));
  if (dummy_prefix) parts.rules = {.separator = "", .strip_character = " ", .strip_left = 1};
  parts.prefix_at_start_only = dummy_prefix && settings.legacy.has_value() && !*settings.legacy;

  parts.special_ids = FindSpecialIds(settings, parts.table.ids);
  const auto role = [](std::optional<int32_t>& id, int of_model) {
    if (!id && of_model >= 0) id = of_model;
  };
  role(parts.special_ids.bos, original.bos_id());
  role(parts.special_ids.eos, original.eos_id());
  role(parts.special_ids.unk, original.unk_id());
  role(parts.special_ids.pad, original.pad_id());
  if (settings.add_bos_token.value_or(true) && parts.special_ids.bos) {
    parts.prefix.push_back(*parts.special_ids.bos);
  }
  if (settings.add_eos_token.value_or(false) && parts.special_ids.eos) {
    parts.suffix.push_back(*parts.special_ids.eos);
  }
  if (parts.prefix_at_start_only) {
    parts.processor = LoadProcessor(std::string(model) + std::string(kNoDummyPrefix), name);
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(parts));
}

}  // namespace moesaic
