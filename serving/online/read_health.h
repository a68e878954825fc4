// ReadHealth: whether experts can be read at all. Steps that fail of unreadable experts, one after
// another and for one cause, make the engine not ready; one that reads again makes it ready.
// A plain state machine for one thread, the engine's.
#pragma once

#include <optional>
#include <string>

#include "core/io/expert_source.h"

namespace moesaic {

class ReadHealth {
 public:
  static constexpr int kFailures = 3;  // in a row: one may be a single bad place

  // A step failed of this. The cause is the error's kind: a disk that fails, files that are damaged
  // or cut short.
  void Failed(const ExpertError& error) {
    failures_ = error.kind() == cause_ ? failures_ + 1 : 1;
    cause_ = error.kind();
    message_ = error.what();
    expert_ = error.expert();
  }
  // An expert was read.
  void Succeeded() { failures_ = 0; }

  bool ready() const { return failures_ < kFailures; }
  // Empty when ready.
  std::string WhyNotReady() const {
    if (ready()) return {};
    return fmt::format("experts cannot be read, {} steps in a row failed; the last one: {}",
                       failures_, message_);
  }
  // The one to try when not ready.
  std::optional<ExpertId> LastFailed() const {
    return ready() ? std::nullopt : std::make_optional(expert_);
  }

 private:
  int failures_ = 0;
  // Of the last failure.
  ErrorKind cause_ = ErrorKind::kIo;
  std::string message_;
  ExpertId expert_;
};

}  // namespace moesaic
