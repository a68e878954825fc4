// StopMatcher: finds stop strings in text that arrives in pieces.
//
// Text that may turn out to be the beginning of a stop string is held back. The stop string that is
// complete first ends the text; of several that end at one place the longest counts; what stands
// before it is given out, and the matcher is then final. The result does not depend on how the text
// is cut into pieces. Owned and used by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

class StopMatcher {
 public:
  // No stop strings: all text passes through. Throws Error(kInvalidArgument) for an empty one.
  explicit StopMatcher(std::span<const std::string> stops);

  // Appends to *out the text that can be given out. True when a stop string is complete (now or
  // earlier); further text is then ignored.
  bool Add(std::string_view text, std::string* out);
  // The stream has ended: appends what was held back, unless a stop string was found.
  void Finish(std::string* out);

  // The index of the stop string that was found.
  std::optional<size_t> matched() const { return matched_; }
  // Text that is held back now.
  std::string_view held() const { return held_; }

 private:
  // A state of the Aho-Corasick automaton: the longest suffix of the text that begins a stop
  // string.
  struct State {
    std::map<unsigned char, int32_t> next;
    int32_t fallback = 0;
    int32_t depth = 0;  // length of that suffix
    int32_t stop = -1;  // the longest stop string that is a suffix of the text here
  };
  State& at(int32_t state) { return states_[static_cast<size_t>(state)]; }

  std::vector<State> states_;
  std::vector<size_t> lengths_;
  std::string held_;
  int32_t state_ = 0;
  std::optional<size_t> matched_;
};

}  // namespace moesaic
