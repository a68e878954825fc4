// FlowLog: what an ExpertFlow decided, and when: for tests that compare who drives it. Called under
// the guard of the flow.
#pragma once

#include <cstdint>

#include "cache/expert_grid.h"

namespace moesaic {

struct FlowEvent {
  enum class Kind : uint8_t {
    kLoad,      // a layer's copy is queued; detail: the expert that leaves for it, or kNoExpert
    kPrefetch,  // likewise, ahead of any layer
    kPacket,    // detail: the packet that is issued
    kArrived,
    kCancel,  // detail: packets that had arrived
    kFailed,
    kOnHost,
    kHandedOut,
  };
  int64_t now_ns = 0;
  Kind kind = Kind::kLoad;
  ExpertIndex expert = kNoExpert;
  int64_t detail = 0;

  bool operator==(const FlowEvent&) const = default;
};

class FlowLog {
 public:
  virtual ~FlowLog() = default;
  virtual void OnDecision(const FlowEvent& event) = 0;
};

}  // namespace moesaic
