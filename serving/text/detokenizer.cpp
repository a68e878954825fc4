#include "serving/text/detokenizer.h"

#include <algorithm>

#include "serving/text/unicode.h"

namespace moesaic {

void Utf8Assembler::Add(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_;
    joined += bytes;
    bytes = joined;
    pending_.clear();
  }
  // Where a character begins whose end is still to come.
  size_t end = bytes.size();
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const size_t pos = bytes.size() - back;
    if ((static_cast<unsigned char>(bytes[pos]) & 0xC0) == 0x80) continue;
    if (ScanUtf8(bytes, pos).kind == Utf8Unit::Kind::kTruncated) end = pos;
    break;
  }
  AppendReplacingInvalid(bytes.substr(0, end), *out);
  // Not assign(bytes.substr()): `bytes` may view what pending_ held.
  pending_ = std::string(bytes.substr(end));
}

void Utf8Assembler::Finish(std::string* out) {
  AppendReplacingInvalid(pending_, *out);
  pending_.clear();
}

Detokenizer::Detokenizer(const Tokenizer& tokenizer, const DetokenizerOptions& options)
    : tokenizer_(tokenizer), options_(options) {
  at_first_ = !options_.continues_text;
  left_strips_ = at_first_ ? tokenizer_.decode_rules().strip_left : 0;
}

void Detokenizer::Add(int32_t id, std::string* out) {
  if (options_.skip_special && tokenizer_.IsSpecial(id)) {
    const std::span<const int32_t> shown = options_.shown_special;
    if (std::find(shown.begin(), shown.end(), id) == shown.end()) return;
  }
  if (tokenizer_.IdToToken(id).empty()) return;
  const DecodeRules& rules = tokenizer_.decode_rules();
  if (at_first_) {
    assembler_.Add(tokenizer_.FirstTokenBytes(id), &text_);
  } else {
    if (!rules.separator.empty()) assembler_.Add(rules.separator, &text_);
    assembler_.Add(tokenizer_.TokenBytes(id), &text_);
  }
  at_first_ = false;
  Emit(out);
}

void Detokenizer::Emit(std::string* out) {
  const DecodeRules& rules = tokenizer_.decode_rules();
  while (left_strips_ > 0 && !text_.empty()) {
    if (!text_.starts_with(rules.strip_character)) {
      left_strips_ = 0;
      break;
    }
    text_.erase(0, rules.strip_character.size());
    --left_strips_;
  }
  // Characters that Finish would take off the end stay until something follows them.
  size_t held = 0;
  if (rules.strip_right > 0) {
    std::string_view rest = text_;
    for (int32_t i = 0; i < rules.strip_right && rest.ends_with(rules.strip_character); ++i) {
      rest.remove_suffix(rules.strip_character.size());
    }
    held = text_.size() - rest.size();
  }
  out->append(text_, 0, text_.size() - held);
  text_.erase(0, text_.size() - held);
}

void Detokenizer::Finish(std::string* out) {
  assembler_.Finish(&text_);
  Emit(out);
  text_.clear();
  at_first_ = !options_.continues_text;
  left_strips_ = at_first_ ? tokenizer_.decode_rules().strip_left : 0;
}

}  // namespace moesaic
