// ReplaySection: the turns of a ReplayStore as a part of a state file (tracer/state_checkpoint.h),
// so that a conversation goes on as the same tokens when the server has been started anew.
//
// Any thread: the store has a lock.
#pragma once

#include <memory>

#include "serving/api/replay_store.h"
#include "tracer/state_section.h"

namespace moesaic {

class ReplaySection : public StateSection {
 public:
  explicit ReplaySection(std::shared_ptr<ReplayStore> store) : store_(std::move(store)) {}

  std::string_view name() const override { return "replay"; }
  uint32_t version() const override { return 1; }
  bool any_thread() const override { return true; }
  std::vector<std::byte> Save() const override;
  // Into a store without turns; as many of the last ones as there is room for.
  void Load(uint32_t version, std::span<const std::byte> bytes) override;

 private:
  const std::shared_ptr<ReplayStore> store_;  // shared with who serves the model
};

}  // namespace moesaic
