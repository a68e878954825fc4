// Event: a mark in a stream (Stream::Record) that the host can ask and wait for, and that other
// streams can wait for. Reusable: a new record replaces the old one, for whoever asks from then on;
// a stream that already waits goes on waiting for the record that it was told to wait for.
//
// Made by Device::CreateEvent, owned by the caller. An event may go before its record completes; a
// device outlives its events. Thread contract: safe from any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/error.h"

namespace moesaic {

class Event {
 public:
  enum class State : uint8_t {
    kPending,   // the stream has not come to the latest record yet
    kComplete,  // it has, and all that was before it succeeded; also: never recorded
    kFailed,    // it has, and the stream was in error
  };

  virtual ~Event() = default;
  virtual State Query() const = 0;
  // Waits for the latest record. Returns the error of the stream at that point (see stream.h).
  [[nodiscard]] virtual std::optional<Error> Synchronize() = 0;
};

}  // namespace moesaic
