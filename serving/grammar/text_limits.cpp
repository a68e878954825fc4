#include "serving/grammar/text_limits.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

// The largest number of "{m,n}" that begins at text[at], and the place behind it; 0: no repetition.
double Repetition(std::string_view text, size_t at, size_t& end) {
  const size_t close = text.find('}', at);
  if (close == std::string_view::npos || close - at > 32) return 0;
  const std::string_view inside = text.substr(at + 1, close - at - 1);
  if (inside.empty() || inside.find_first_not_of("0123456789, ") != std::string_view::npos)
    return 0;
  double most = 1;
  for (size_t i = 0; i < inside.size();) {
    double value = 0;
    const auto [rest, error] =
        std::from_chars(inside.data() + i, inside.data() + inside.size(), value);
    if (error == std::errc()) {
      most = std::max(most, value);
      i = static_cast<size_t>(rest - inside.data());
    } else {
      ++i;
    }
  }
  end = close + 1;
  return most;
}

// Behind what opens at text[at] with a quote or a class of characters.
size_t EndOfQuoted(std::string_view text, size_t at, char close) {
  size_t i = at + 1;
  while (i < text.size() && text[i] != close) i += text[i] == '\\' ? 2 : 1;
  return std::min(i + 1, text.size());
}

}  // namespace

void CheckGrammarText(std::string_view text, const GrammarTextLimits& limits) {
  if (text.size() > limits.max_bytes) {
    Fail(ErrorKind::kInvalidArgument, "it is longer than the {} bytes that it may have",
         limits.max_bytes);
  }
  std::vector<double> open = {0};  // atoms of each bracket that is open
  double last = 0;                 // of what a repetition would repeat
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    size_t next = i + 1;
    if (c == '(') {
      open.push_back(0);
      last = 0;
      if (open.size() > limits.max_depth) {
        Fail(ErrorKind::kInvalidArgument, "its brackets may be nested {} deep", limits.max_depth);
      }
    } else if (c == ')' && open.size() > 1) {
      last = open.back();
      open.pop_back();
      open.back() += last;
    } else if (const double times = c == '{' ? Repetition(text, i, next) : 0; times > 0) {
      open.back() += last * (times - 1);
      last *= times;
    } else {
      if (c == '[') next = EndOfQuoted(text, i, ']');
      if (c == '\\') next = std::min(i + 2, text.size());
      last = 1;
      open.back() += 1;
    }
    if (open.back() > limits.max_atoms) {
      Fail(ErrorKind::kInvalidArgument,
           "its repetitions multiply to more than the {} characters that it may have",
           limits.max_atoms);
    }
    i = next;
  }
}

}  // namespace moesaic
