// The conversation of `moesaic run` in a terminal: reads messages, prints answers, remembers both.
#pragma once

#include <functional>
#include <string>

#include "serving/api/request_runner.h"
#include "serving/cli/interrupt.h"

namespace moesaic {

struct ChatOptions {
  std::string system;         // "" for none
  std::string first_message;  // asked at once when not empty
  bool raw = false;  // no chat template: every line is a text to continue, nothing is remembered
  bool stats = false;
};

// Returns when the user leaves (end of input, /quit). `show_stats` prints what an answer took.
void RunChat(const RequestRunner& runner, const ChatOptions& options, InterruptFlag& interrupt,
             const std::function<void(const RunResult&)>& show_stats);

}  // namespace moesaic
