// AnswerPrinter: an answer in the terminal as it comes. The text goes to standard output; reasoning
// goes to standard error, dim where that is a terminal, so that a pipe gets the answer alone.
//
// One object per answer, used by one thread.
#pragma once

#include <string_view>

#include "serving/cli/output.h"

namespace moesaic {

class AnswerPrinter {
 public:
  void Write(std::string_view text, bool reasoning);
  // The answer is whole: the line ends.
  void End();

 private:
  void EndReasoning();

  const Style style_ = StyleFor(2);
  bool in_reasoning_ = false;
  bool reasoning_line_ended_ = true;
  bool line_ended_ = false;  // of the text
};

}  // namespace moesaic
