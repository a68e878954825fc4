#include "serving/cli/interrupt.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace moesaic {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;
volatile std::sig_atomic_t g_last_signal = SIGINT;

void OnInterrupt(int signal) {
  g_last_signal = signal;
  g_interrupted = g_interrupted + 1;
}

}  // namespace

InterruptFlag::InterruptFlag(Takes takes) : takes_(takes) {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;  // without SA_RESTART: a read that waits for a line returns
  sigemptyset(&action.sa_mask);
  // One handler runs at a time, or a press could be lost between reading and writing the count.
  sigaddset(&action.sa_mask, SIGINT);
  sigaddset(&action.sa_mask, SIGTERM);
  sigaction(SIGINT, &action, nullptr);
  if (takes_ == Takes::kInterruptAndTerminate) sigaction(SIGTERM, &action, nullptr);
}

InterruptFlag::~InterruptFlag() {
  std::signal(SIGINT, SIG_DFL);
  if (takes_ == Takes::kInterruptAndTerminate) std::signal(SIGTERM, SIG_DFL);
}

int InterruptFlag::exit_code() const { return 128 + g_last_signal; }

int InterruptFlag::presses() const { return g_interrupted; }

void InterruptFlag::Clear() { g_interrupted = 0; }

ReadLineResult ReadLine(std::string* line) {
  line->clear();
  // Byte by byte, so that nothing behind the line is taken; a person types, or a file is short.
  for (;;) {
    char c = 0;
    const ssize_t got = read(STDIN_FILENO, &c, 1);
    if (got < 0 && errno == EINTR) {
      if (g_interrupted != 0) return ReadLineResult::kInterrupted;
      continue;
    }
    if (got <= 0) return line->empty() ? ReadLineResult::kEnd : ReadLineResult::kLine;
    if (c == '\n') return ReadLineResult::kLine;
    line->push_back(c);
  }
}

}  // namespace moesaic
