// Workload: the lengths of the requests of a throughput job. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct RequestLengths {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;  // at most

  int64_t total_tokens() const { return prompt_tokens + generated_tokens; }
};

struct Workload {
  std::string source;  // what it was made from, for reports
  std::vector<RequestLengths> requests;

  int64_t prompt_tokens() const;     // of all requests
  int64_t generated_tokens() const;  // of all requests
  double mean_prompt() const;
  double mean_generated() const;
  int64_t longest() const;  // prompt and output of one request
};

// Requests of one length: "prompt=98,gen=64,requests=5000". `what` names the flag in messages.
// Throws Error(kInvalidArgument).
Workload ParseUniformWorkload(std::string_view text, std::string_view what);
Workload UniformWorkload(int64_t prompt_tokens, int64_t generated_tokens, int64_t requests);
// With a tenth more requests (rounded up), of the lengths of evenly chosen ones.
Workload LongerByATenth(const Workload& workload);

}  // namespace moesaic
