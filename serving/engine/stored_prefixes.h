// StoredPrefixes: joins the scheduler's sequences, their blocks in the pool and the states that are
// kept behind these with a store (cache/kv_store.h): what sequences fill is written behind, what
// they begin with is read.
//
// Blocks and states wait here, by number, until the store has a place for a copy. A block whose
// memory the pool gives to something else first is not written, and neither is what follows it; a
// state whose slot has another one by then is not, either.
//
// Thread contract: the engine's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "cache/kv_manager.h"
#include "cache/kv_store.h"
#include "cache/state_slots.h"
#include "serving/engine/prefix_store.h"

namespace moesaic {

// How far a sequence's blocks are in the store.
struct StoredChain {
  std::vector<PrefixId> ids;  // in the store, of the first blocks
  int64_t offered = 0;        // the first so many blocks are there or wait
  bool broken = false;        // one was not taken: nothing behind it can be found

  PrefixId last() const { return ids.empty() ? kEmptyPrefix : ids.back(); }
};

class StoredPrefixes : public PrefixStore {
 public:
  // The blocks whose memory `options` has outlive Close. `progress` as KvStore's. Throws as KvStore
  // does.
  StoredPrefixes(const KvStoreOptions& options, const KvManager& kv,
                 std::function<void()> progress);

  void UseStates(const StateSlots& states) override { states_ = &states; }
  int64_t Begin(Sequence& sequence, int64_t most) override;
  void Read(Sequence& sequence, int64_t first, int64_t count, int64_t until) override;
  void ReadState(Sequence& sequence, int64_t blocks, int32_t slot) override;
  Progress Poll(const Sequence& sequence) const override;
  void Stop(Sequence& sequence) override;
  void Sealed(Sequence& sequence, int64_t block) override;
  void StateKept(Sequence& sequence, int64_t blocks, PrefixId prefix, bool rolling) override;
  void End(Sequence& sequence) override;

  // Gives the store as many of the blocks that wait as it takes now: between steps.
  void Pump();
  // Has all that waits written, for at most so long, and ends.
  void Close(std::chrono::milliseconds at_most);

  const KvStore& store() const { return store_; }

 private:
  struct Waiting {
    std::shared_ptr<StoredChain> chain = nullptr;  // see StoredPart
    // Of one block; of many, where `blocks` is empty: all of a sequence that has ended, which are
    // used in the store's eyes.
    std::vector<int32_t> tokens = {};
    std::vector<int32_t> blocks = {};    // [groups]
    std::vector<PrefixId> in_pool = {};  // [groups] what these must still hold
    // A state instead: the one behind the chain's first so many blocks, by the pool's number.
    int64_t state_blocks = 0;
    PrefixId state = kEmptyPrefix;
    PrefixId part_behind = kEmptyPrefix;  // in the store: what its next part follows
    int64_t part = 0;
  };

  bool StillHeld(const Waiting& waiting) const;
  bool PumpOne();
  bool PumpBlock(const Waiting& next);
  bool PumpState(Waiting& next);
  void OfferState(std::shared_ptr<StoredChain> chain, int64_t blocks, PrefixId prefix);
  bool IsFull() const;

  const KvManager& kv_;
  const int64_t block_tokens_;
  const StateSlots* states_ = nullptr;  // null: the model has none
  KvStore store_;
  std::deque<Waiting> waiting_;
};

}  // namespace moesaic
