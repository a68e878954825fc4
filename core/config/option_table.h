// OptionTable: the options of a command or a file by name. It knows which source of a value wins,
// finds the nearest name of a misspelt one and renders help.
//
// Plain object of one thread. The bound variables are the caller's and outlive the table; what they
// hold when they are added is the default.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/option.h"

namespace moesaic {

// Where a value comes from; a later source never overrules an earlier one in this list.
enum class OptionSource { kFlag, kEnvironment, kFile, kDefault };

class OptionTable {
 public:
  // CHECKs that the name is new.
  void Add(Option option);
  // A command that takes an option in another form (a list of numbers) puts its own in its place.
  // CHECKs that there is one of that name.
  void Replace(Option option);

  const std::vector<Option>& options() const { return options_; }
  // Null when there is none of that name. "max_num_seqs" is found too, and "no-" before a flag's
  // name (Set then negates).
  const Option* Find(std::string_view name) const;

  // Converts, checks and assigns, unless an earlier source has set the option; a list that is set
  // twice by the same source grows. `origin` is for messages and origin(): "--threads",
  // "MOESAIC_THREADS", "serve.yaml:12: threads". CHECKs that the option exists; throws
  // Error(kInvalidArgument) that says what is expected.
  void Set(std::string_view name, std::string_view text, OptionSource source,
           const std::string& origin);

  // Where the current value comes from: "default" or what Set was given.
  std::string origin(std::string_view name) const;
  // The value that was set last, or else the default, as text ("" for an empty one, "***" for a
  // secret).
  std::string ValueText(std::string_view name) const;

  // The name most like `name`, or "" when none is near.
  std::string NearestName(std::string_view name) const;

  // The options as help text, grouped by section in the order of their first use, `width` columns
  // wide.
  std::string Help(int width) const;

 private:
  struct State {
    OptionSource source = OptionSource::kDefault;
    std::string origin = "default";
    std::string text;  // of the value that was set last
    std::string default_text;
  };
  struct Position {
    size_t index = 0;
    bool found = false;
    bool negated = false;
  };
  Position Locate(std::string_view name) const;
  size_t IndexOf(std::string_view name) const;  // CHECKs

  std::vector<Option> options_;
  std::vector<State> states_;
  std::map<std::string, size_t, std::less<>> index_;
};

// The number of insertions, deletions, substitutions and swaps of neighbours that turn a into b.
int EditDistance(std::string_view a, std::string_view b);
// The candidate nearest to `name`, when it is near enough to be what was meant; else "".
std::string NearestOf(std::string_view name, const std::vector<std::string>& candidates);

// Breaks text into lines of at most `width` columns at spaces.
std::vector<std::string> WrapText(std::string_view text, int width);

}  // namespace moesaic
