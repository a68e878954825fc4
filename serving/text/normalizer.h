// Normalizer: the "normalizer" of tokenizer.json, a sequence of text-to-text steps.
//
// Immutable; safe from any thread with a RegexScratch per thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/json_fields.h"
#include "serving/text/regex.h"
#include "serving/text/unicode.h"

namespace moesaic {

// The "pattern" of Split and Replace: {"String": ...} or {"Regex": ...}.
class TextPattern {
 public:
  explicit TextPattern(const JsonFields& node);

  // As Regex::ForEachPart.
  template <typename Visitor>
  void ForEachPart(std::string_view text, RegexScratch& scratch, Visitor&& visit) const {
    if (regex_) {
      regex_->ForEachPart(text, scratch, visit);
      return;
    }
    size_t done = 0;
    if (!literal_.empty()) {
      size_t found;
      while ((found = text.find(literal_, done)) != std::string_view::npos) {
        if (found > done) visit(done, found, false);
        visit(found, found + literal_.size(), true);
        done = found + literal_.size();
      }
    }
    if (done < text.size()) visit(done, text.size(), false);
  }
  // The string looked for, where it is not a regular expression.
  std::optional<std::string> literal() const {
    return regex_ ? std::nullopt : std::make_optional(literal_);
  }

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

// `text` with every match of `pattern` replaced by `content`.
std::string ReplaceMatches(std::string_view text, const TextPattern& pattern,
                           std::string_view content, RegexScratch& scratch);

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(const JsonFields& node) { AddStep(node); }

  bool empty() const { return steps_.empty(); }

  // Sets *stripped_front when characters were taken from the front (Metaspace asks for it).
  std::string Normalize(std::string_view text, RegexScratch& scratch, bool* stripped_front) const;

 private:
  struct Form {
    NormalForm form;
  };
  struct Lowercase {};
  struct StripAccents {};
  struct Strip {
    bool left;
    bool right;
  };
  struct Prepend {
    std::string text;
  };
  struct Replace {
    TextPattern pattern;
    std::string content;
  };
  using Step = std::variant<Form, Lowercase, StripAccents, Strip, Prepend, Replace>;

  void AddStep(const JsonFields& node);

  std::vector<Step> steps_;
};

}  // namespace moesaic
