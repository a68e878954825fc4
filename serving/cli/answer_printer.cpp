#include "serving/cli/answer_printer.h"

#include <fmt/format.h>

#include <cstdio>

namespace moesaic {

void AnswerPrinter::Write(std::string_view text, bool reasoning) {
  if (text.empty()) return;
  if (!reasoning) {
    EndReasoning();
    WriteOut(text);
    line_ended_ = text.ends_with('\n');
    return;
  }
  in_reasoning_ = true;
  fmt::print(stderr, "{}{}{}", style_.dim, text, style_.reset);
  reasoning_line_ended_ = text.ends_with('\n');
}

void AnswerPrinter::EndReasoning() {
  if (!in_reasoning_) return;
  in_reasoning_ = false;
  fmt::print(stderr, "{}\n", reasoning_line_ended_ ? "" : "\n");
}

void AnswerPrinter::End() {
  EndReasoning();
  if (!line_ended_) WriteOut("\n");
}

}  // namespace moesaic
