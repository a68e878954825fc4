// What an answer tells, when it is asked, of the experts that made it: to whom its tokens were
// routed, in the shapes of SGLang and of vLLM, and what the request has cost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serving/api/json_text.h"
#include "serving/engine/request.h"
#include "tracer/routed_experts.h"

namespace moesaic {

struct RoutedOutput {
  enum class Form : uint8_t {
    kNone,
    // SGLang's sglext.routed_experts: base64 of int32, little-endian, [tokens, layers, top_k], from
    // position `start` on; -1 in layers without experts.
    kBase64,
    // vLLM's prompt_routed_experts and routed_experts: lists, of the layers with experts.
    kLists,
  };

  Form form = Form::kNone;
  int64_t start = 0;            // of the first position that is told
  std::vector<int64_t> layers;  // with experts
};

// null: nothing was kept (the engine does not trace).
Json RoutedBase64(const RoutedExperts* routed, int64_t start);
// [end - begin, layers, top_k]; `end` may lie behind the last token that was run.
Json RoutedLists(const RoutedExperts* routed, const RoutedOutput& output, int64_t begin,
                 int64_t end);

// The `moesaic` object, of a choice's last delta: the request's activation matrices, and what the
// steps that ran it have cost. Those may have run other requests too.
Json ExpertUseJson(const OutputDelta& last);

}  // namespace moesaic
