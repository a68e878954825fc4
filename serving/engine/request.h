// What a request asks of an engine and what comes back. Plain data.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "prefetch/link/expert_stats.h"
#include "serving/model/sampling_params.h"

namespace moesaic {

struct OutputConstraint;
class RoutedExperts;
struct RequestTrace;
struct ThinkingLimit;

struct EngineRequest {
  std::string id;      // for logs and recorded traces; any string
  std::string domain;  // for recorded traces: what kind of request it is; any string
  // Who asks. Clients get equal shares where they have to wait for each other; empty: nobody said.
  std::string client;
  int32_t priority = 0;         // lower ones go first, and are preempted last
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  int32_t max_tokens = 16;  // 0 is allowed: only prompt log-probabilities are wanted
  int32_t min_tokens = 0;   // EOS and stops are ignored before this many
  bool ignore_eos = false;
  std::vector<std::string> stop;  // the text ends before the first of these
  std::vector<int32_t> stop_token_ids;
  bool skip_special_tokens = true;
  // Special tokens that mean something to who reads the text: they are shown all the same, and
  // OutputDelta says where.
  std::vector<int32_t> shown_special_tokens;
  bool include_stop_in_output = false;
  int32_t logprobs = -1;         // -1: none; n >= 0: the chosen token's and the n best
  int32_t prompt_logprobs = -1;  // likewise for each prompt token but the first
  // Positions from here on are computed as decode steps are (expert deferral); -1: what follows the
  // prompt. For who measures a text as if it had been generated.
  int64_t decode_from = -1;
  bool return_progress = false;  // deltas tell how far the prompt is
  bool return_routed_experts = false;
  // The routing of every position from here on is told: the prefix cache serves only what is before
  // it. -1: of those that are run.
  int64_t routed_from = -1;
  std::shared_ptr<const ThinkingLimit> thinking;       // null: it thinks as long as it likes
  std::shared_ptr<const OutputConstraint> constraint;  // null: any text
  std::optional<std::chrono::steady_clock::time_point> deadline;
  // Somebody's batch: it runs while no other request is there, whatever its priority, and keeps
  // what it has computed in the meantime. No place in the queue is counted for it.
  bool background = false;
};

enum class FinishReason { kStop, kLength, kCancelled };
const char* FinishReasonName(FinishReason reason);  // "stop", "length", "cancelled"

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, taken from the prefix cache
};

// How far a prompt is (llama.cpp's prompt_progress).
struct PromptProgress {
  int64_t total = 0;      // tokens of the prompt
  int64_t cached = 0;     // of these, taken from the prefix cache
  int64_t processed = 0;  // that are done, those from the cache as well
  int64_t time_ms = 0;    // since the first step that ran it began
};

// What one link has carried: to a device (its name), or from one of several stores (store:0, ...).
struct LinkBytes {
  std::string name;
  uint64_t bytes = 0;
};

// One or more tokens' worth of output. `text` may be shorter or longer than the tokens' own text:
// half characters and possible beginnings of a stop string are held back and come later, and what
// follows a stop never comes.
struct OutputDelta {
  std::string text;
  std::vector<GeneratedToken> tokens;
  // Where the text of each of `tokens` ends, in bytes from the beginning of all text. A token that
  // has no text (the first bytes of a character, a special token that is not shown) ends where the
  // one before it does. The text may come later, or, behind a stop, never.
  std::vector<size_t> token_ends;
  // Where tokens of shown_special_tokens begin, in bytes from the beginning of all text. The text
  // may come later, or, behind a stop, never.
  std::vector<size_t> special_offsets;
  std::vector<GeneratedToken> prompt_tokens;  // once, first, when prompt_logprobs >= 0
  std::optional<FinishReason> finish;         // set on the last delta
  std::string stop_text;                      // the stop string that matched, if one did
  Usage usage;                                // so far
  // Where the request wants it, in deltas before its first token, which have nothing else.
  std::optional<PromptProgress> progress;
  // On the first delta: from submission to the first step that ran the request; -1: not told.
  int64_t queue_us = -1;
  // Which experts the request used; on the last delta. Shared: the sink may keep it.
  std::shared_ptr<const RequestTrace> trace;
  // What the steps that ran it have cost, whoever else they ran; on the last delta.
  ExpertStats experts;
  std::vector<LinkBytes> links;  // of these steps; empty: there is one link (experts.bytes_read)
  // To whom each token was routed, where that was asked for; on the last delta, shared likewise.
  // The last token of the output was not run and is not there.
  std::shared_ptr<const RoutedExperts> routed;
};

}  // namespace moesaic
