// Graph: copies, kernels and operations on words that a stream has recorded (Stream::BeginCapture),
// to be queued again and again with one call (Stream::Replay). Addresses and arguments are those of
// the recording; what lies at the addresses is read when it runs.
//
// Made by Stream::EndCapture, owned by the caller; outlives its replays, and the device outlives
// it. Thread contract: immutable.
#pragma once

namespace moesaic {

class Graph {
 public:
  virtual ~Graph() = default;
};

}  // namespace moesaic
