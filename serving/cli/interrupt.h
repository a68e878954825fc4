// Ctrl-C in `moesaic run`: a press is a flag that the running answer, or the line being typed,
// looks at.
//
// One at a time; made and used by the main thread. (A signal handler can reach only what is
// static.)
#pragma once

#include <string>

namespace moesaic {

class InterruptFlag {
 public:
  InterruptFlag();   // takes SIGINT
  ~InterruptFlag();  // gives it back
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  // Whether Ctrl-C was pressed since the last Clear.
  bool raised() const;
  void Clear();
};

enum class ReadLineResult { kLine, kEnd, kInterrupted };
// A line of standard input, without its end.
ReadLineResult ReadLine(std::string* line);

}  // namespace moesaic
