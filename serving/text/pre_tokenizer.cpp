#include "serving/text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "serving/text/byte_level.h"
#include "serving/text/unicode.h"

namespace moesaic {
namespace {

// GPT-2's words (encoder.py of openai/gpt-2), which ByteLevel uses unless use_regex is false.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kWhitespacePattern = R"(\w+|[^\w\s]+)";

TextPattern RegexPattern(std::string_view pattern, const JsonFields& node) {
  const nlohmann::json document = {{"Regex", std::string(pattern)}};
  const std::string where = node.Where();
  return TextPattern(JsonFields(document, where));
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonFields& node, bool raw_bytes_allowed) {
  AddStep(node);
  if (!raw_bytes_allowed || steps_.empty()) return;
  // A ByteLevel is the step that maps bytes; its regular expression, if any, is a step behind it in
  // the text's order but was added before the mapping (AddStep), so the mapping comes last.
  if (auto* last = std::get_if<ByteLevel>(&steps_.back()); last != nullptr && last->map_bytes) {
    last->map_bytes = false;
    raw_bytes_ = true;
    const auto maps = [](const Step& step) {
      const auto* byte_level = std::get_if<ByteLevel>(&step);
      return byte_level != nullptr && byte_level->map_bytes;
    };
    // Bytes mapped twice: keep both maps as text.
    if (std::any_of(steps_.begin(), steps_.end(), maps)) {
      last->map_bytes = true;
      raw_bytes_ = false;
    }
  }
}

PreTokenizer::Behavior PreTokenizer::ParseBehavior(const JsonFields& node) {
  const std::string& name = node.String();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  node.Refuse(fmt::format("unknown behavior \"{}\"", name), ErrorKind::kUnsupported);
}

void PreTokenizer::AddStep(const JsonFields& node) {
  const std::string type = node.At("type").String();
  if (type == "Sequence") {
    for (const JsonFields& element : node.At("pretokenizers").Elements()) AddStep(element);
  } else if (type == "ByteLevel") {
    // In order: add the space, cut, map bytes to characters.
    if (node.OptionalBool("add_prefix_space").value_or(true))
      steps_.emplace_back(ByteLevel{true, false});
    if (node.OptionalBool("use_regex").value_or(true)) {
      steps_.emplace_back(Split{RegexPattern(kByteLevelPattern, node), Behavior::kIsolated, false});
    }
    steps_.emplace_back(ByteLevel{false, true});
  } else if (type == "Split") {
    steps_.emplace_back(Split{TextPattern(node.At("pattern")), ParseBehavior(node.At("behavior")),
                              node.OptionalBool("invert").value_or(false)});
  } else if (type == "Whitespace") {
    steps_.emplace_back(Split{RegexPattern(kWhitespacePattern, node), Behavior::kRemoved, true});
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back(CharacterSplit{IsWhitespace, Behavior::kRemoved});
  } else if (type == "Digits") {
    steps_.emplace_back(CharacterSplit{
        IsNumeric, node.OptionalBool("individual_digits").value_or(false) ? Behavior::kIsolated
                                                                          : Behavior::kContiguous});
  } else if (type == "Punctuation") {
    const std::optional<JsonFields> behavior = node.Member("behavior");
    steps_.emplace_back(
        CharacterSplit{IsPunctuation, behavior ? ParseBehavior(*behavior) : Behavior::kIsolated});
  } else if (type == "Metaspace") {
    Metaspace step{node.OptionalString("replacement").value_or("\xE2\x96\x81"),
                   Metaspace::Prepend::kAlways, node.OptionalBool("split").value_or(true)};
    const std::string scheme = node.OptionalString("prepend_scheme").value_or("always");
    if (scheme == "first") {
      step.prepend = Metaspace::Prepend::kFirst;
    } else if (scheme == "never" || !node.OptionalBool("add_prefix_space").value_or(true)) {
      step.prepend = Metaspace::Prepend::kNever;
    } else if (scheme != "always") {
      node.Refuse(fmt::format("unknown prepend_scheme \"{}\"", scheme), ErrorKind::kUnsupported);
    }
    size_t end = 0;
    if (step.replacement.empty() ||
        (NextCodePoint(step.replacement, end), end != step.replacement.size())) {
      node.Refuse("\"replacement\" must be one character");
    }
    steps_.emplace_back(std::move(step));
  } else {
    node.Refuse(fmt::format("unknown pre_tokenizer type \"{}\"", type), ErrorKind::kUnsupported);
  }
}

void PreTokenizer::Run(PreTokenizerScratch& scratch, RegexScratch& regex_scratch) const {
  for (const Step& step : steps_) {
    if (const auto* byte_level = std::get_if<ByteLevel>(&step);
        byte_level != nullptr && !byte_level->add_prefix_space && !byte_level->map_bytes) {
      continue;
    }
    scratch.next_pieces.clear();
    std::visit(
        [&](const auto& kind) {
          for (const TextPiece& piece : scratch.pieces) {
            Apply(kind, piece, scratch, regex_scratch);
          }
        },
        step);
    scratch.pieces.swap(scratch.next_pieces);
  }
}

// Turns scratch.parts, the matches in `piece` and what lies between, into pieces.
void PreTokenizer::Cut(const TextPiece& piece, Behavior behavior, PreTokenizerScratch& scratch) {
  std::vector<PreTokenizerScratch::Part>& parts = scratch.parts;
  size_t kept = 0;  // parts[0, kept) are the pieces so far
  switch (behavior) {
    case Behavior::kIsolated:
      kept = parts.size();
      break;
    case Behavior::kRemoved:
      for (const auto& part : parts) {
        if (!part.is_match) parts[kept++] = part;
      }
      break;
    case Behavior::kContiguous:
    case Behavior::kMergedWithPrevious: {
      bool previous_match = false;
      for (const auto part : parts) {
        const bool join = behavior == Behavior::kContiguous ? part.is_match == previous_match
                                                            : part.is_match && !previous_match;
        if (join && kept > 0) {
          parts[kept - 1].end = part.end;
        } else {
          parts[kept++] = part;
        }
        previous_match = part.is_match;
      }
      break;
    }
    case Behavior::kMergedWithNext: {
      std::reverse(parts.begin(), parts.end());
      bool previous_match = false;
      for (const auto part : parts) {
        if (part.is_match && !previous_match && kept > 0) {
          parts[kept - 1].begin = part.begin;
        } else {
          parts[kept++] = part;
        }
        previous_match = part.is_match;
      }
      std::reverse(parts.begin(), parts.begin() + static_cast<ptrdiff_t>(kept));
      break;
    }
  }
  for (size_t i = 0; i < kept; ++i) {
    if (parts[i].begin == parts[i].end) continue;
    scratch.next_pieces.push_back({piece.text.substr(parts[i].begin, parts[i].end - parts[i].begin),
                                   piece.at_start && parts[i].begin == 0});
  }
}

void PreTokenizer::Apply(const Split& step, const TextPiece& piece, PreTokenizerScratch& scratch,
                         RegexScratch& regex_scratch) {
  if (step.behavior == Behavior::kIsolated) {  // the common case: matches and gaps are the pieces
    step.pattern.ForEachPart(piece.text, regex_scratch, [&](size_t begin, size_t end, bool) {
      if (begin == end) return;
      scratch.next_pieces.push_back(
          {piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    });
    return;
  }
  scratch.parts.clear();
  step.pattern.ForEachPart(piece.text, regex_scratch, [&](size_t begin, size_t end, bool match) {
    scratch.parts.push_back({begin, end, match != step.invert});
  });
  Cut(piece, step.behavior, scratch);
}

void PreTokenizer::Apply(const CharacterSplit& step, const TextPiece& piece,
                         PreTokenizerScratch& scratch, RegexScratch&) {
  scratch.parts.clear();
  size_t done = 0;
  size_t pos = 0;
  while (pos < piece.text.size()) {
    const size_t begin = pos;
    if (!step.belongs(NextCodePoint(piece.text, pos))) continue;
    if (begin > done) scratch.parts.push_back({done, begin, false});
    scratch.parts.push_back({begin, pos, true});
    done = pos;
  }
  if (done < pos) scratch.parts.push_back({done, pos, false});
  Cut(piece, step.behavior, scratch);
}

void PreTokenizer::Apply(const Metaspace& step, const TextPiece& piece,
                         PreTokenizerScratch& scratch, RegexScratch&) {
  std::string& text = scratch.owned.emplace_back();
  text.reserve(piece.text.size() * 3 / 2 + step.replacement.size());
  for (const char c : piece.text) {
    if (c == ' ') {
      text += step.replacement;
    } else {
      text.push_back(c);
    }
  }
  const bool prepend = step.prepend == Metaspace::Prepend::kAlways ||
                       (step.prepend == Metaspace::Prepend::kFirst && piece.at_start);
  if (prepend && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
  if (!step.split) {
    scratch.next_pieces.push_back({text, piece.at_start});
    return;
  }
  scratch.parts.clear();
  size_t done = 0;
  size_t found;
  while ((found = text.find(step.replacement, done)) != std::string::npos) {
    if (found > done) scratch.parts.push_back({done, found, false});
    done = found + step.replacement.size();
    scratch.parts.push_back({found, done, true});
  }
  if (done < text.size()) scratch.parts.push_back({done, text.size(), false});
  Cut({text, piece.at_start}, Behavior::kMergedWithNext, scratch);
}

void PreTokenizer::Apply(const ByteLevel& step, const TextPiece& piece,
                         PreTokenizerScratch& scratch, RegexScratch&) {
  if (step.add_prefix_space) {
    if (piece.text.starts_with(' ')) {
      scratch.next_pieces.push_back(piece);
      return;
    }
    std::string& text = scratch.owned.emplace_back(" ");
    text += piece.text;
    scratch.next_pieces.push_back({text, piece.at_start});
    return;
  }
  std::string& text = scratch.owned.emplace_back();
  AppendByteLevel(piece.text, text);
  scratch.next_pieces.push_back({text, piece.at_start});
}

}  // namespace moesaic
