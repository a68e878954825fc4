#include "serving/cli/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

constexpr int kMinWidth = 60;
constexpr int kDefaultWidth = 100;

void WriteErr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

void WriteOut(std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) throw OutputClosed();
  Fail(ErrorKind::kIo, "cannot write standard output: {}", ErrnoMessage(errno));
}

bool IsTerminal(int fd) { return isatty(fd) == 1; }

int TerminalWidth() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return std::max<int>(kMinWidth, size.ws_col);
  }
  if (const char* columns = std::getenv("COLUMNS")) {
    const std::string_view text = columns;
    int value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc() &&
        value > 0) {
      return std::clamp(value, kMinWidth, 1000);
    }
  }
  return kDefaultWidth;
}

bool UseColor(int fd) {
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");  // https://no-color.org: set and not empty
  return IsTerminal(fd) && term != nullptr && std::string_view(term) != "dumb" &&
         (no_color == nullptr || *no_color == '\0');
}

Style StyleFor(int fd) {
  if (!UseColor(fd)) return {};
  return {"\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[0m"};
}

size_t DisplayWidth(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string TextTable::Render() const {
  std::vector<size_t> widths(alignment_.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
    }
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line(static_cast<size_t>(indent_), ' ');
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      if (i > 0) line += "  ";
      const std::string padding(widths[i] - DisplayWidth(row[i]), ' ');
      line += alignment_[i] == '>' ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

ProgressBar::ProgressBar(std::string label, uint64_t total_bytes)
    : label_(std::move(label)), total_bytes_(total_bytes), visible_(IsTerminal(STDERR_FILENO)) {}

ProgressBar::~ProgressBar() {
  if (shown_) WriteErr("\n");
}

void ProgressBar::Update(uint64_t done_bytes) {
  const double now_s = watch_.seconds();
  if (!visible_ || (now_s - last_s_ < 0.1 && done_bytes < total_bytes_)) return;
  last_s_ = now_s;
  const double part =
      total_bytes_ == 0
          ? 1.0
          : std::min(1.0, static_cast<double>(done_bytes) / static_cast<double>(total_bytes_));
  const double rate = now_s > 0 ? static_cast<double>(done_bytes) / now_s : 0;
  constexpr int kCells = 30;
  const int full = static_cast<int>(part * kCells);
  std::string bar;
  for (int i = 0; i < kCells; ++i) bar += i < full ? "█" : "░";
  std::string line =
      fmt::format("\r{} {} {:3.0f}%  {} of {}  {}", label_, bar, part * 100,
                  FormatBytes(done_bytes), FormatBytes(total_bytes_), FormatRate(rate));
  if (part < 1 && rate > 0 && now_s > 0.5) {
    line += fmt::format("  {} left",
                        FormatDuration(static_cast<double>(total_bytes_ - done_bytes) / rate));
  }
  WriteErr(line + "\x1b[K");
  shown_ = true;
}

void ProgressBar::Finish() {
  if (shown_) WriteErr("\r\x1b[K");
  shown_ = false;
}

void StatusLine(std::string_view text) {
  if (IsTerminal(STDERR_FILENO)) WriteErr(fmt::format("\r{}\x1b[K", text));
}

void ShowMeasuring(std::string_view stage) {
  StatusLine(stage.empty() ? "" : fmt::format("measuring {}", stage));
}

std::string FormatDuration(double seconds) {
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

}  // namespace moesaic
