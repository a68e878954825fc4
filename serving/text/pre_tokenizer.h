// PreTokenizer: the "pre_tokenizer" of tokenizer.json, which cuts a text into words; the model
// (BPE) never joins characters of two words.
//
// Immutable; safe from any thread with a PreTokenizerScratch per thread.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/json_fields.h"
#include "serving/text/normalizer.h"
#include "serving/text/regex.h"

namespace moesaic {

struct TextPiece {
  std::string_view text;
  bool at_start = false;  // it begins where the user's text begins (Metaspace's "first")
};

struct PreTokenizerScratch {
  std::vector<TextPiece> pieces;  // input and output of a step
  std::vector<TextPiece> next_pieces;
  std::deque<std::string> owned;  // texts that a step has rewritten
  struct Part {
    size_t begin;
    size_t end;
    bool is_match;
  };
  std::vector<Part> parts;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;
  // With `raw_bytes_allowed` a ByteLevel as the last step leaves the words as they are, and
  // raw_bytes() tells the model to read them byte by byte.
  PreTokenizer(const JsonFields& node, bool raw_bytes_allowed);

  bool raw_bytes() const { return raw_bytes_; }

  // Cuts scratch.pieces (views of the caller's text) into words, in place. The views stay valid
  // until scratch.owned is cleared, by the caller.
  void Run(PreTokenizerScratch& scratch, RegexScratch& regex_scratch) const;

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Split {
    TextPattern pattern;
    Behavior behavior;
    bool invert;
  };
  struct CharacterSplit {
    bool (*belongs)(char32_t);
    Behavior behavior;
  };
  struct Metaspace {
    std::string replacement;
    enum class Prepend { kAlways, kFirst, kNever } prepend;
    bool split;
  };
  struct ByteLevel {
    bool add_prefix_space;
    bool map_bytes;
  };
  using Step = std::variant<Split, CharacterSplit, Metaspace, ByteLevel>;

  void AddStep(const JsonFields& node);
  static Behavior ParseBehavior(const JsonFields& node);
  static void Cut(const TextPiece& piece, Behavior behavior, PreTokenizerScratch& scratch);
  static void Apply(const Split& step, const TextPiece& piece, PreTokenizerScratch& scratch,
                    RegexScratch& regex_scratch);
  static void Apply(const CharacterSplit& step, const TextPiece& piece,
                    PreTokenizerScratch& scratch, RegexScratch& regex_scratch);
  static void Apply(const Metaspace& step, const TextPiece& piece, PreTokenizerScratch& scratch,
                    RegexScratch& regex_scratch);
  static void Apply(const ByteLevel& step, const TextPiece& piece, PreTokenizerScratch& scratch,
                    RegexScratch& regex_scratch);

  std::vector<Step> steps_;
  bool raw_bytes_ = false;
};

}  // namespace moesaic
