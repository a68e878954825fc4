// StreamFlow: what is decided about experts that stream past in the order in which layers run:
// which stay, which are read next, which slot they get, which are handed out. It moves no bytes and
// knows no thread and no clock.
//
// The slots are of two kinds. Most hold residents, whole experts, the same number of each layer,
// which never leave. The others are the buffers: an expert is read into one, used once, and makes
// room for the next. A large batch uses (nearly) every expert of every layer in every pass, so a
// cache that evicts by age would lose each expert just before it is wanted again; here every byte
// of a resident is a byte that no pass reads, and what is not resident is read once per pass.
//
// What is read: what the open layer lacks, then ahead, layer after layer and around the end into
// the next pass up to the open layer itself, those that the last pass used. A buffer that holds
// something read ahead gives way to the open layer, the farthest first, so that one buffer is
// enough to make progress.
//
// A pass may visit a layer several times in a row, once for each group of its rows. What streams
// then stays in its buffer until the last visit, if the buffers can hold it.
//
// Thread contract: none of its own; whoever owns the link (LinkMover, the planner) guards it. No
// allocation after construction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "cache/expert_grid.h"
#include "cache/expert_set.h"
#include "prefetch/link/expert_stats.h"
#include "prefetch/link/flow.h"
#include "prefetch/predict/sparse_layers.h"

namespace moesaic {

// Experts that are computed together: enough work to be worth handing to the threads, few enough
// that their buffers soon take what comes next.
inline int64_t GroupOfExperts(uint64_t slot_bytes) {
  constexpr uint64_t kGroupBytes = uint64_t{4} << 20;
  return static_cast<int64_t>(std::max<uint64_t>(1, kGroupBytes / slot_bytes));
}

class StreamFlow final : public Flow {
 public:
  enum class State : uint8_t { kAbsent, kLoading, kReady, kHeld };

  // `slots` in all, `buffers` of them for what streams (at least 1, at most `slots`); when all
  // experts fit, every one is a resident. At most `group` (at least 1) are handed out at a time,
  // of what streams also half of the buffers at most. Without copies there are no packets: its
  // owner asks for whole experts (NextLoad). It goes by no clock.
  StreamFlow(const ExpertGrid& grid, const SparseLayers& layers, int64_t slots, int64_t buffers,
             int64_t group, LinkParameters link = {});

  // --- the consumer
  // How often the passes visit a layer at most, from the next StepBegan on.
  void SetVisits(int visits) { next_visits_ = visits; }
  // What it reads from is gone: nothing is read ahead any more.
  void GiveUp() {
    given_up_ = true;
    may_read_ahead_ = false;
  }
  void StepBegan(int64_t now_ns) override;
  void StopPrefetching(int64_t /*now_ns*/) override { AllowReadAhead(false); }
  void AllowReadAhead(bool allow) { may_read_ahead_ = allow; }
  // A pass begins that visits each layer so often at most (at least once).
  void BeginPass(int visits);
  // The distinct experts of one visit of a layer.
  void BeginLayer(std::span<const ExpertIndex> experts, int64_t now_ns) override;
  // Appends some that can be computed: streamed ones first, whose buffers are waited for, and so
  // few that reading goes on meanwhile. They are held until Release.
  void TakeReady(std::vector<ExpertIndex>& out, int64_t now_ns) override;
  bool ready() const override { return ready_ > 0; }
  int64_t waiting() const override { return waiting_; }
  bool WaitsFor(ExpertIndex expert) const override { return needed_.Has(expert); }
  bool MakesProgress() override { return loading_ > 0 || CanLoad(); }
  void Release(ExpertIndex expert, int64_t now_ns) override;
  ExpertStats EndLayer(int64_t now_ns) override;
  bool HasNewWork() override { return CanLoad(); }

  // --- the link
  std::optional<Packet> NextPacket(int64_t now_ns) override;
  TransferState CompletePacket(const Packet& packet, PacketResult result, int64_t now_ns) override;
  void Commit(ExpertIndex expert, int64_t now_ns) override;
  Hurt Drop(ExpertIndex expert, int64_t now_ns) override;
  std::vector<ResidentExpert> Residents(int64_t now_ns) const override;

  // --- the link, by whole experts
  bool CanLoad() { return Find(nullptr).has_value(); }
  // The expert to read now, which has a slot from now on.
  std::optional<ExpertIndex> NextLoad();
  void Loaded(ExpertIndex expert, uint64_t bytes);
  // Could not be read. True when the open layer needs it.
  bool Failed(ExpertIndex expert);

  State state(ExpertIndex expert) const { return state_[At(expert)]; }
  int64_t slot(ExpertIndex expert) const override { return slot_[At(expert)]; }
  bool resident(ExpertIndex expert) const { return !streams_.Has(expert); }
  int64_t residents() const { return residents_; }
  int64_t buffers() const { return buffers_; }
  int64_t slots() const override { return residents_ + buffers_; }
  int64_t free_slots() const override { return std::ssize(free_); }  // buffers
  int64_t loading() const { return loading_; }
  int64_t present() const override { return present_; }  // ready or held

 private:
  static size_t At(ExpertIndex expert) { return static_cast<size_t>(expert); }
  ExpertIndex IndexOf(int layer_number, int64_t index) const {
    return layers_.layer(layer_number) * grid_.num_experts() + static_cast<ExpertIndex>(index);
  }
  std::optional<ExpertIndex> Find(std::optional<ExpertIndex>* victim);
  std::optional<ExpertIndex> FarthestReadAhead() const;
  std::optional<ExpertIndex> FindAhead(int distance) const;
  void Leave();
  void SetState(ExpertIndex expert, State state);
  void Free(ExpertIndex expert);
  void Evict(ExpertIndex expert);
  bool last_visit() const { return visit_ == visits_; }

  const ExpertGrid grid_;
  const SparseLayers layers_;
  int64_t residents_ = 0;
  int64_t buffers_ = 0;
  int64_t resident_group_ = 1;
  int64_t streamed_group_ = 1;
  std::vector<int64_t> resident_slot_;  // [experts]; -1: it streams
  ExpertSet streams_;                   // what has no slot of its own
  std::vector<State> state_;            // [experts]
  ExpertSet absent_;                    // those in this state
  ExpertSet there_;                     // those that are kReady
  std::vector<int64_t> slot_;           // [experts]; -1: none
  ExpertSet needed_;                    // by the open layer, and not handed out
  ExpertSet expected_;                  // used by the last pass that ran its layer
  ExpertSet used_;                      // of the open layer's, by a visit of this pass
  ExpertSet ahead_;                     // was read ahead, and not used yet
  ExpertSet unwanted_;                  // being read, and not needed after all
  std::vector<int64_t> free_;           // buffers
  bool may_read_ahead_ = false;
  bool open_ = false;
  int position_;    // the number of the layer that is open or was last
  int visits_ = 1;  // of each layer by a pass
  int visit_ = 1;   // of these, the open or last one
  int64_t waiting_ = 0;
  int64_t ready_ = 0;  // needed and ready
  int64_t loading_ = 0;
  int64_t present_ = 0;
  ExpertStats stats_;           // since the last EndLayer
  uint64_t failed_before_ = 0;  // packets, until then

  const int64_t lanes_;
  int next_visits_ = 1;
  bool given_up_ = false;
};

}  // namespace moesaic
