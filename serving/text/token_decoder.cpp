#include "serving/text/token_decoder.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "serving/text/byte_level.h"
#include "serving/text/unicode.h"

namespace moesaic {
namespace {

constexpr int32_t kMaxStrip = 1024;

bool IsOneCharacter(std::string_view text) {
  if (text.empty()) return false;
  size_t end = 0;
  NextCodePoint(text, end);
  return end == text.size();
}

std::string StripCharacter(std::string_view text, std::string_view character, int32_t left,
                           int32_t right) {
  for (int32_t i = 0; i < left && text.starts_with(character); ++i) {
    text.remove_prefix(character.size());
  }
  for (int32_t i = 0; i < right && text.ends_with(character); ++i) {
    text.remove_suffix(character.size());
  }
  return std::string(text);
}

}  // namespace

TokenDecoder::TokenDecoder(const JsonFields& node) { AddStep(node); }

void TokenDecoder::AddStep(const JsonFields& node) {
  const std::string type = node.At("type").String();
  if (type == "Sequence") {
    for (const JsonFields& element : node.At("decoders").Elements()) AddStep(element);
    return;
  }
  if (type == "Fuse") {
    fused_ = true;
    return;
  }
  if (type == "Strip") {
    Strip strip{node.At("content").String(),
                static_cast<int32_t>(node.At("start").Int(0, kMaxStrip)),
                static_cast<int32_t>(node.At("stop").Int(0, kMaxStrip))};
    if (!IsOneCharacter(strip.character)) {
      node.Refuse("\"content\" must be one character");
    }
    if (!fused_) {
      steps_.emplace_back(std::move(strip));
      return;
    }
    if (!rules_.strip_character.empty()) {
      node.Refuse("a second Strip of the whole text", ErrorKind::kUnsupported);
    }
    rules_.strip_character = strip.character;
    rules_.strip_left = strip.left;
    rules_.strip_right = strip.right;
    return;
  }
  // What follows would see the stripped text as a whole; a token at a time it cannot be done.
  if (!rules_.strip_character.empty()) {
    node.Refuse(fmt::format("\"{}\" behind a Strip of the whole text", type),
                ErrorKind::kUnsupported);
  }
  if (type == "Replace") {
    Replace replace{TextPattern(node.At("pattern")), node.At("content").String()};
    // A pattern of one character cannot span tokens: it may stand behind Fuse too.
    const std::optional<std::string> literal = replace.pattern.literal();
    if (fused_ && !(literal && IsOneCharacter(*literal))) {
      node.Refuse("a Replace behind Fuse must have a one-character string",
                  ErrorKind::kUnsupported);
    }
    steps_.emplace_back(std::move(replace));
    return;
  }
  if (fused_) {
    node.Refuse(fmt::format("\"{}\" behind Fuse", type), ErrorKind::kUnsupported);
  }
  if (type == "ByteLevel") {
    steps_.emplace_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Metaspace") {
    Metaspace step{node.OptionalString("replacement").value_or("\xE2\x96\x81"),
                   node.OptionalBool("add_prefix_space").value_or(true) &&
                       node.OptionalString("prepend_scheme").value_or("always") != "never"};
    if (!IsOneCharacter(step.replacement)) {
      node.Refuse("\"replacement\" must be one character");
    }
    steps_.emplace_back(std::move(step));
  } else {
    node.Refuse(fmt::format("unknown decoder type \"{}\"", type), ErrorKind::kUnsupported);
  }
}

bool TokenDecoder::first_differs() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    const auto* metaspace = std::get_if<Metaspace>(&step);
    return metaspace != nullptr && metaspace->drop_at_first;
  });
}

std::string TokenDecoder::Bytes(std::string_view content, bool added, bool first,
                                RegexScratch& scratch) const {
  std::string text(content);
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevel>(step)) {
      // The content of an added token is plain text, also where all its characters happen to be of
      // the byte alphabet ("ö").
      if (added) continue;
      if (auto bytes = DecodeByteLevel(text)) text = std::move(*bytes);
      // Raw bytes are no text that a further step could work on.
      if (!IsValidUtf8(text)) return text;
    } else if (std::holds_alternative<ByteFallback>(step)) {
      unsigned int byte = 0;
      if (text.size() == 6 && text.starts_with("<0x") && text.ends_with('>') &&
          std::from_chars(text.data() + 3, text.data() + 5, byte, 16).ptr == text.data() + 5) {
        return std::string(1, static_cast<char>(byte));
      }
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      std::string result;
      size_t pos = 0;
      while (pos < text.size()) {
        const size_t begin = pos;
        NextCodePoint(text, pos);
        const std::string_view character = std::string_view(text).substr(begin, pos - begin);
        if (character != metaspace->replacement) {
          result += character;
        } else if (!(first && metaspace->drop_at_first)) {
          result.push_back(' ');
        }
      }
      text = std::move(result);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      text = ReplaceMatches(text, replace->pattern, replace->content, scratch);
    } else if (const auto* strip = std::get_if<Strip>(&step)) {
      text = StripCharacter(text, strip->character, strip->left, strip->right);
    }
  }
  return text;
}

}  // namespace moesaic
