// StreamingExperts: the link of throughput mode: a LinkMover with a StreamFlow. The experts of a
// large batch arrive in the order in which layers run, while others are computed.
//
// Thread contract: as LinkMover's.
#pragma once

#include <cstdint>
#include <memory>

#include "prefetch/link/link_mover.h"
#include "prefetch/link/stream_flow.h"
#include "serving/batch/link_timeline.h"
#include "serving/batch/timeline.h"

namespace moesaic {

struct StreamingOptions : LinkOptions {
  int64_t slots = 1;             // in all; slot_memory, if given, holds so many
  int64_t buffers = 1;           // of them for what streams
  Timeline* timeline = nullptr;  // may be null; must outlive the object
  int16_t lane = 0;              // of the timeline: the consumer's and the link's number
};

class StreamingExperts : public LinkMover {
 public:
  // `source` must outlive it. num_layers counts all layers of the model. A null reader: see
  // LinkMover.
  StreamingExperts(const ExpertSource& source, int num_layers, int num_experts,
                   const StreamingOptions& options, std::unique_ptr<AsyncReader> reader = nullptr);

  // How often passes visit a layer, from the next one on: once for each group of their rows.
  void SetVisits(int visits) EXCLUDES(mutex_);
  // What it reads from is gone: nothing is read ahead any more.
  void GiveUp() EXCLUDES(mutex_);
  LinkTimeline& timeline() { return static_cast<LinkTimeline&>(*observer()); }

 private:
  StreamFlow& flow() const REQUIRES(mutex_) { return static_cast<StreamFlow&>(LinkMover::flow()); }
};

}  // namespace moesaic
