// BatchJob: a file of requests through an engine into a file of answers, in the order in which they
// end.
//
// Every answer is one line that is appended whole, and the output file alone says what is done: a
// job that is started again skips the ids that it finds there, if the input is still the one that
// they are of (input_record.h). The error file is that of the last run: who starts again meets the
// same bad lines again.
//
// Used by the main thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/perf/workload.h"
#include "serving/api/batch_line.h"
#include "serving/api/served_model.h"
#include "serving/jobs/batch_files.h"

namespace moesaic {

struct BatchJobOptions {
  BatchPaths files;
  BatchInputForm form = BatchInputForm::kAuto;
  PromptDefaults prompts;
  std::string endpoint;     // lines of another one are refused; empty: of none
  bool background = false;  // of a server that others use (EngineRequest::background)
  // Sequences that are submitted and have not ended, at most. A line with more of them (its n, its
  // prompts) runs alone.
  int64_t max_outstanding = 64;
  // A request that samples and names no seed gets one from its custom_id and this, so that it has
  // the same answer whenever it is run.
  uint64_t seed = 0;
};

struct BatchProgress {
  int64_t lines = 0;     // of the input, blank ones left out
  int64_t resumed = 0;   // of these, answered before this run
  int64_t done = 0;      // answered by this run
  int64_t refused = 0;   // bad lines: the input's fault
  int64_t failed = 0;    // ours
  int64_t put_back = 0;  // begun, not ended: for the next run
  int64_t outstanding = 0;
  int64_t prompt_tokens = 0;  // of the answered lines
  int64_t output_tokens = 0;  // so far, of all
  bool draining = false;
  double seconds = 0;

  int64_t left() const { return lines - resumed - done - refused - failed; }
};

struct BatchCallbacks {
  // How often the user has asked to stop. At 1 nothing new starts and what has no token yet is put
  // back; what else runs is finished. At 2 all of it is put back.
  std::function<int()> stops;
  // About ten times a second, and at the end.
  std::function<void(const BatchProgress&)> on_progress;
};

// Tokens of a text; `chat`: it is a message of a conversation.
using MessageCounter = std::function<int64_t(std::string_view text, bool chat)>;

// The lengths of the input's requests: prompts of the first thousand lines are counted, later ones
// are taken to be like them; answers are as long as they may be. `template_tokens`: what the chat
// template adds to a prompt. Throws Error(kNotFound / kIo).
Workload ReadBatchWorkload(const BatchJobOptions& options, const MessageCounter& count_tokens,
                           int64_t template_tokens);

// Runs the job. Throws Error: kInvalidArgument, kNotFound, kUnavailable, kCorrupt (files that
// cannot be this job's), kIo (the output cannot be written: it is whole up to there).
BatchProgress RunBatchJob(const ServedModel& model, const BatchJobOptions& options,
                          const BatchCallbacks& callbacks);

}  // namespace moesaic
