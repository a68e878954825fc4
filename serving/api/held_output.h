// HoldOutput: from what a client wants an output held to, its format or a call of a tool, to the
// constraint of the engine's requests: the grammar, compiled, and where in an answer it begins.
#pragma once

#include <atomic>
#include <vector>

#include "serving/api/api_request.h"
#include "serving/api/served_model.h"
#include "serving/engine/request.h"
#include "serving/text/jinja/marked_text.h"

namespace moesaic {

// A text completion: the grammar begins at once. Blocks while the grammar is compiled. Throws
// ApiError, ClientLeft once `gone` is set.
void HoldOutput(const ServedModel& model, const CompletionRequest& request,
                const std::atomic<bool>& gone, std::vector<EngineRequest>& sequences);

// The answer to a chat whose prompt this is: the grammar begins behind reasoning. Where a call was
// forced (ForceCall), it holds the call's arguments to the tool's schema; where tools are strict,
// it holds calls that the model begins by itself.
void HoldOutput(const ServedModel& model, const ChatRequest& request,
                const jinja::MarkedText& prompt, const std::atomic<bool>& gone,
                std::vector<EngineRequest>& sequences);

}  // namespace moesaic
