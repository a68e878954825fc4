// What the commands print: results to standard output, everything else (progress, questions,
// errors) to standard error.
//
// Used by the main thread. Terminal properties are read once per call; nothing is global.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/clock.h"

namespace moesaic {

// The reader of standard output has gone (`moesaic run ... | head`): the command ends quietly.
class OutputClosed : public std::exception {
 public:
  const char* what() const noexcept override { return "standard output was closed"; }
};

// Writes and flushes standard output. Throws OutputClosed, or Error(kIo) when it cannot be written.
void WriteOut(std::string_view text);

template <typename... Args>
void Print(fmt::format_string<Args...> format, Args&&... args) {
  WriteOut(fmt::format(format, std::forward<Args>(args)...));
}

bool IsTerminal(int fd);
// Columns of the terminal on standard output, or of COLUMNS; 100 where there is none. At least 60.
int TerminalWidth();
// Whether escape sequences may be used on this descriptor: a terminal, TERM is not dumb, NO_COLOR
// is not set.
bool UseColor(int fd);

// "\x1b[1m" and so on when colours are used, else "".
struct Style {
  const char* bold = "";
  const char* dim = "";
  const char* red = "";
  const char* reset = "";
};
Style StyleFor(int fd);

// Rows of cells, padded to columns. The first column is left-aligned, the others as given.
class TextTable {
 public:
  // '<' or '>' for each column.
  explicit TextTable(std::string alignment, int indent = 2)
      : alignment_(std::move(alignment)), indent_(indent) {}
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string Render() const;

 private:
  std::string alignment_;
  int indent_;
  std::vector<std::vector<std::string>> rows_;
};

// Columns that a UTF-8 text takes (code points; the commands print nothing wider).
size_t DisplayWidth(std::string_view text);

// A bar with rate and time left on standard error; nothing where that is no terminal.
class ProgressBar {
 public:
  ProgressBar(std::string label, uint64_t total_bytes);
  ~ProgressBar();
  void Update(uint64_t done_bytes);
  void Finish();

 private:
  std::string label_;
  uint64_t total_bytes_;
  bool visible_;
  bool shown_ = false;
  double last_s_ = -1;
  Stopwatch watch_;
};

// One line on standard error that is replaced by the next; nothing where that is no terminal.
void StatusLine(std::string_view text);

// Says there what is measured now; "" clears it.
void ShowMeasuring(std::string_view stage);

std::string FormatDuration(double seconds);  // "350 ms", "12.3 s", "4 min 05 s"

}  // namespace moesaic
