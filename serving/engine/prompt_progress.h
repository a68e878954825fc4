// How far the prompts of running requests are, for who waits for a first token: deltas to clients
// that asked for them, and lines in the log on prompts that take long.
//
// Functions of the engine's thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "serving/engine/sequence.h"

namespace moesaic {

// Tells that `processed` of the prompt's tokens are done, if that is news: what is computed again
// behind a preemption is none. `always`: however lately something was told; the beginning and the
// end always are.
void TellPromptProgress(Sequence& sequence, int64_t processed, bool always,
                        std::chrono::steady_clock::time_point now);

// A line on a prompt that runs chunk after chunk, every ten seconds.
void LogPromptProgress(Sequence& sequence, std::chrono::steady_clock::time_point now);

}  // namespace moesaic
