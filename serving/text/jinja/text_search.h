// Searching in texts: linear in the lengths whatever the texts are (std::string::find is quadratic
// for "aa...ab" in "aa...aa"), and charged by what was looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "serving/text/jinja/budget.h"

namespace moesaic::jinja {

// Where `wanted` begins first at or behind `from`; npos: nowhere. from <= text.size().
size_t FindText(std::string_view text, std::string_view wanted, size_t from, Budget& budget);

// Looks for one text from the right, in as many places as one likes. Views what it was made of.
class LastTextFinder {
 public:
  LastTextFinder(std::string_view wanted, Budget& budget);
  // Where the last `wanted` begins that ends at or before `end`; npos: nowhere.
  size_t Find(std::string_view text, size_t end) const;

 private:
  std::string_view wanted_;
  Budget& budget_;
  // Knuth, Morris, Pratt from the right: [i] is how many of the last characters are known to match
  // when the one in front of the last i does not.
  std::vector<uint32_t> known_;
};

}  // namespace moesaic::jinja
