// OptionTable: named, typed, documented options bound to variables, whatever they are set from:
// flags, environment, a YAML file. It checks values, knows the nearest name of a misspelt one and
// renders help.
//
// Plain object of one thread. The bound variables are the caller's and outlive the table; what they
// hold when they are added is the default.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace moesaic {

// Where a value comes from; a later source never overrules an earlier one in this list.
enum class OptionSource { kFlag, kEnvironment, kFile, kDefault };

struct Option {
  using Target = std::variant<std::string*, int64_t*, double*, bool*, std::vector<std::string>*>;

  std::string name;        // "max-num-seqs": the flag without dashes and the YAML key
  Target target;           // bool: a flag without value; a list is given by commas or repetition
  std::string value_name;  // in the help: "N", "SIZE"; empty: chosen from the type
  std::string help;        // one or two sentences, without the default
  std::string section;     // heading in the help
  char short_name = 0;     // -o
  std::vector<std::string> choices = {};  // strings: the accepted values
  double min = -9.0e15;                   // numbers
  double max = 9.0e15;
  // Throws Error(kInvalidArgument) for a text that is not acceptable; `what` is for its message.
  std::function<void(std::string_view text, std::string_view what)> check = {};
  bool settable_outside = false;  // also by environment and file
  bool secret = false;            // never shown
  bool quiet_default = false;     // the help leaves the default out: it only stands for "not given"
  bool hidden = false;            // neither a flag of this command nor in its help

  bool is_flag() const { return std::holds_alternative<bool*>(target); }
  bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(target); }
  std::string environment_name() const;  // "MOESAIC_MAX_NUM_SEQS"
};

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
  // The current and the default value as text ("" for an empty one, "***" for a secret).
  std::string ValueText(std::string_view name) const;
  const std::string& DefaultText(std::string_view name) const;

  // The name most like `name`, or "" when none is near.
  std::string NearestName(std::string_view name) const;

  // The options as help text, grouped by section in the order of their first use, `width` columns
  // wide.
  std::string Help(int width) const;

 private:
  struct State {
    OptionSource source = OptionSource::kDefault;
    std::string origin = "default";
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
