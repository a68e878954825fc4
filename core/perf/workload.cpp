#include "core/perf/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/base/comma_list.h"
#include "core/base/error.h"

namespace moesaic {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr int64_t kMostRequests = 10'000'000;

int64_t ParseLength(std::string_view text, std::string_view key, int64_t most,
                    std::string_view what) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1 || value > most) {
    Fail(ErrorKind::kInvalidArgument, "{}: {}: expected an integer from 1 to {}, not '{}'", what,
         key, most, text);
  }
  return value;
}

}  // namespace

int64_t Workload::prompt_tokens() const {
  int64_t sum = 0;
  for (const RequestLengths& request : requests) sum += request.prompt_tokens;
  return sum;
}

int64_t Workload::generated_tokens() const {
  int64_t sum = 0;
  for (const RequestLengths& request : requests) sum += request.generated_tokens;
  return sum;
}

double Workload::mean_prompt() const {
  return requests.empty()
             ? 0
             : static_cast<double>(prompt_tokens()) / static_cast<double>(requests.size());
}

double Workload::mean_generated() const {
  return requests.empty()
             ? 0
             : static_cast<double>(generated_tokens()) / static_cast<double>(requests.size());
}

int64_t Workload::longest() const {
  int64_t longest = 0;
  for (const RequestLengths& request : requests)
    longest = std::max(longest, request.total_tokens());
  return longest;
}

Workload UniformWorkload(int64_t prompt_tokens, int64_t generated_tokens, int64_t requests) {
  Workload workload;
  workload.source = fmt::format("{} requests of {} prompt and {} generated tokens", requests,
                                prompt_tokens, generated_tokens);
  workload.requests.assign(static_cast<size_t>(requests), {prompt_tokens, generated_tokens});
  return workload;
}

Workload ParseUniformWorkload(std::string_view text, std::string_view what) {
  int64_t prompt = 0;
  int64_t generated = 0;
  int64_t requests = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view item = TakeItem(rest);
    const size_t equals = std::min(item.find('='), item.size());
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = item.substr(std::min(equals + 1, item.size()));
    if (key == "prompt") {
      prompt = ParseLength(value, key, kMostTokens, what);
    } else if (key == "gen") {
      generated = ParseLength(value, key, kMostTokens, what);
    } else if (key == "requests") {
      requests = ParseLength(value, key, kMostRequests, what);
    } else {
      Fail(ErrorKind::kInvalidArgument,
           "{}: '{}' is none of prompt=N, gen=N and requests=N (joined by commas)", what, item);
    }
  }
  if (prompt == 0 || generated == 0 || requests == 0) {
    Fail(ErrorKind::kInvalidArgument, "{}: {} is missing, as in prompt=98,gen=64,requests=5000",
         what,
         prompt == 0      ? "prompt=N"
         : generated == 0 ? "gen=N"
                          : "requests=N");
  }
  return UniformWorkload(prompt, generated, requests);
}

Workload LongerByATenth(const Workload& workload) {
  Workload longer = workload;
  const size_t more = (workload.requests.size() + 9) / 10;
  for (size_t i = 0; i < more; ++i) {
    longer.requests.push_back(workload.requests[i * workload.requests.size() / more]);
  }
  return longer;
}

}  // namespace moesaic
