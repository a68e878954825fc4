// The lengths of the requests that `moesaic plan` plans for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/perf/workload.h"

namespace moesaic {

using TokenCounter = std::function<int64_t(std::string_view text)>;

// JSON lines, one request each: OpenAI's batch format ({"body": {...}}), or what stands in such a
// body: "prompt", or "messages" with "content", and "max_tokens" or "max_completion_tokens".
// Instead of a text, "prompt_tokens" is taken as the count. What sets no limit generates
// `default_generated`. Empty lines are passed over. Throws Error(kCorrupt) naming file and line,
// and kInvalidArgument when there is no request.
Workload ParseWorkloadLines(std::string_view text, const std::string& name,
                            int64_t default_generated, const TokenCounter& count_tokens);

}  // namespace moesaic
