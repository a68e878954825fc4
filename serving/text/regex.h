// Regex: a compiled regular expression of a tokenizer (PCRE2 with JIT), over UTF-8.
//
// A Regex is immutable and may be used by several threads at once; each brings its own
// RegexScratch. Every search runs under match and memory limits: a pattern that backtracks without
// end is an Error, not a hang.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace moesaic {

// What one thread needs while it matches; one scratch serves any number of Regexes.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

class Regex {
 public:
  // `pattern` in the syntax of tokenizer.json (Oniguruma, Ruby flavour), valid UTF-8. `where` (file
  // and JSON path) begins every message about it. Throws Error(kUnsupported, kCorrupt).
  Regex(std::string_view pattern, std::string where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  struct Match {
    size_t begin;
    size_t end;
  };
  // Finds the first match at or after `start`, a character border; `text` must be valid UTF-8.
  // Throws Error(kInvalidArgument) when the search exceeds its limits.
  bool Search(std::string_view text, size_t start, RegexScratch& scratch, Match* match) const;

  // Calls visit(begin, end, is_match) for the parts of `text` in order: matches and what lies
  // between them. An empty match directly behind another match is passed over.
  template <typename Visitor>
  void ForEachPart(std::string_view text, RegexScratch& scratch, Visitor&& visit) const {
    size_t done = 0;       // text[0, done) has been visited
    size_t from = 0;       // where the next search starts
    bool matched = false;  // a match ended at `done`
    Match match;
    while (from <= text.size() && Search(text, from, scratch, &match)) {
      if (match.begin == match.end && matched && match.end == done) {
        from = match.end + CharacterLength(text, match.end);
        continue;
      }
      if (match.begin > done) visit(done, match.begin, false);
      visit(match.begin, match.end, true);
      done = from = match.end;
      matched = true;
    }
    if (done < text.size()) visit(done, text.size(), false);
  }

 private:
  static size_t CharacterLength(std::string_view text, size_t pos);

  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace moesaic
