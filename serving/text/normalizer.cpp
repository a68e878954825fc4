#include "serving/text/normalizer.h"

#include <utility>

namespace moesaic {
namespace {

std::string_view StripWhitespace(std::string_view text, bool left, bool right,
                                 bool* stripped_front) {
  while (left && !text.empty()) {
    size_t next = 0;
    if (!IsWhitespace(NextCodePoint(text, next))) break;
    text.remove_prefix(next);
    *stripped_front = true;
  }
  while (right && !text.empty()) {
    const size_t last = PreviousCodePointStart(text, text.size());
    size_t next = last;
    if (!IsWhitespace(NextCodePoint(text, next))) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string RemoveMarks(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  size_t pos = 0;
  while (pos < text.size()) {
    const size_t begin = pos;
    if (!IsMark(NextCodePoint(text, pos))) result.append(text.substr(begin, pos - begin));
  }
  return result;
}

}  // namespace

TextPattern::TextPattern(const JsonFields& node) {
  if (const auto literal = node.Member("String")) {
    literal_ = literal->String();
  } else if (const auto regex = node.Member("Regex")) {
    regex_.emplace(regex->String(), regex->Where());
  } else {
    node.Refuse("expected {\"String\": ...} or {\"Regex\": ...}", ErrorKind::kUnsupported);
  }
}

std::string ReplaceMatches(std::string_view text, const TextPattern& pattern,
                           std::string_view content, RegexScratch& scratch) {
  std::string result;
  result.reserve(text.size());
  pattern.ForEachPart(text, scratch, [&](size_t begin, size_t end, bool is_match) {
    result.append(is_match ? content : text.substr(begin, end - begin));
  });
  return result;
}

void Normalizer::AddStep(const JsonFields& node) {
  const std::string type = node.At("type").String();
  if (type == "Sequence") {
    for (const JsonFields& element : node.At("normalizers").Elements()) AddStep(element);
  } else if (type == "NFC") {
    steps_.emplace_back(Form{NormalForm::kNfc});
  } else if (type == "NFD") {
    steps_.emplace_back(Form{NormalForm::kNfd});
  } else if (type == "NFKC") {
    steps_.emplace_back(Form{NormalForm::kNfkc});
  } else if (type == "NFKD") {
    steps_.emplace_back(Form{NormalForm::kNfkd});
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "StripAccents") {
    steps_.emplace_back(StripAccents{});
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{node.OptionalBool("strip_left").value_or(true),
                              node.OptionalBool("strip_right").value_or(true)});
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{node.At("prepend").String()});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{TextPattern(node.At("pattern")), node.At("content").String()});
  } else {
    node.Refuse(fmt::format("unknown normalizer type \"{}\"", type), ErrorKind::kUnsupported);
  }
}

std::string Normalizer::Normalize(std::string_view text, RegexScratch& scratch,
                                  bool* stripped_front) const {
  std::string current(text);
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<Form>(&step)) {
      current = NormalizeUnicode(current, form->form);
    } else if (std::holds_alternative<Lowercase>(step)) {
      current = LowercaseUnicode(current);
    } else if (std::holds_alternative<StripAccents>(step)) {
      current = RemoveMarks(current);
    } else if (const auto* strip = std::get_if<Strip>(&step)) {
      current = std::string(StripWhitespace(current, strip->left, strip->right, stripped_front));
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!current.empty()) current.insert(0, prepend->text);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      current = ReplaceMatches(current, replace->pattern, replace->content, scratch);
    }
  }
  return current;
}

}  // namespace moesaic
