// Ctrl-C in `moesaic run` and `moesaic batch`: a press is a flag that the running answer, the job,
// or the line being typed, looks at. In `moesaic batch` SIGTERM is as good as a press.
//
// One at a time; made and used by the main thread. (A signal handler can reach only what is
// static.)
#pragma once

#include <string>

namespace moesaic {

class InterruptFlag {
 public:
  enum class Takes { kInterrupt, kInterruptAndTerminate };
  // Takes SIGINT, or SIGTERM too.
  explicit InterruptFlag(Takes takes = Takes::kInterrupt);
  ~InterruptFlag();  // gives them back
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  // How often Ctrl-C was pressed since the last Clear, and whether it was.
  int presses() const;
  bool raised() const { return presses() > 0; }
  // What a process that was stopped this way exits with: 128 and the number of the last signal.
  int exit_code() const;
  void Clear();

 private:
  const Takes takes_;
};

enum class ReadLineResult { kLine, kEnd, kInterrupted };
// A line of standard input, without its end.
ReadLineResult ReadLine(std::string* line);

}  // namespace moesaic
