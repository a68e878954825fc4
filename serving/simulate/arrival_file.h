// When requests come, and how long they are: a table of comma-separated values with a header line,
// for simulations of several models.
//
// Functions of their arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct Arrival {
  double at_s = 0;  // after the first one
  int64_t prompt_tokens = 0;
  int64_t answer_tokens = 0;
  int64_t model = -1;  // -1: not told
};

// By the names of their columns: `seconds`, or `TIMESTAMP` (2023-11-16 18:15:46.6805900, as in the
// Azure LLM inference traces 2023); `prompt_tokens` or `ContextTokens`; `answer_tokens` or
// `GeneratedTokens`; `model`, a number from 0, where there is one. Other columns are passed over;
// values are not quoted. Arrivals come in the order of time; an answer has one token at least, and
// so has a prompt. Throws Error(kCorrupt) naming file and line, and kInvalidArgument when there is
// no request.
std::vector<Arrival> ParseArrivals(std::string_view text, const std::string& name);

}  // namespace moesaic
