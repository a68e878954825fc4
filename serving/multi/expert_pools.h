// ExpertPools: the memory of experts, and of keys and values, of a server's models while they run:
// it looks at what each has and does, asks an ExpertBalancer and a KvBalancer, and tells links and
// engines what they are to have from now on.
//
// Keys and values come first, a slab at a time: of what is free, or of experts of the model that
// loses least, where that is worth `hysteresis` times as much. What a model does not need of them
// is free for experts, or for others' keys and values.
//
// What is taken from a model counts as its own until its link has given it back, and what a model
// gets counts from the moment at which it is told: the models together never have more than there
// is.
//
// Takes the time as an argument. One thread; the links have their own (ResizableSlots).
#pragma once

#include <cstdint>
#include <vector>

#include "prefetch/link/resizable_slots.h"
#include "serving/engine/resizable_kv.h"
#include "serving/multi/expert_balancer.h"
#include "serving/multi/kv_balancer.h"

namespace moesaic {

class ExpertPools {
 public:
  // From one move of memory to the next.
  static constexpr int64_t kPeriodNs = 500'000'000;

  struct Rules {
    int pool = -1;             // models of one number give each other memory; -1: it keeps its own
    uint64_t floor_bytes = 0;  // of experts, that it keeps in any case
  };
  // What a model has of memory, and has had.
  struct Held {
    uint64_t bytes = 0;           // of all kinds, as far as the process must count it
    uint64_t expert_bytes = 0;    // of slots
    uint64_t kv_bytes = 0;        // of keys and values, where that may change
    bool shrunk = false;          // to its floor of experts, from more
    uint64_t taken_bytes = 0;     // of experts, from it, since it was loaded
    uint64_t given_bytes = 0;     // to it
    uint64_t kv_taken_bytes = 0;  // likewise of keys and values
    uint64_t kv_given_bytes = 0;
    double gain = 0;  // ExpertBalancer::Gain
  };

  explicit ExpertPools(std::vector<Rules> rules, BalancerOptions options = {},
                       KvBalancerOptions kv_options = {});

  // A model was loaded, and was given so much memory of all kinds. `slots` may be null: it keeps
  // that, and `kv`: it keeps its keys and values; otherwise they are there until Unloaded.
  void Loaded(size_t model, uint64_t bytes, ResizableSlots* slots, ResizableKv* kv = nullptr);
  void Unloaded(size_t model);
  bool any() const;  // model whose memory may move
  bool Moves(size_t model) const { return models_[model].slots != nullptr; }

  // Looks at what the models have by now.
  void Look(int64_t now_ns);
  // Moves memory, as it was looked at. `free_bytes` of the process are nobody's: pool 0 may use
  // them. Returns how many models are to have another size.
  int64_t Move(uint64_t free_bytes);
  // Has models of pool 0 give back so much in all, what is on its way counted: experts, first of
  // the one that has most above its floor, then keys and values that no sequence has. It is free
  // when they have been looked at again. False: they have not got it, and nothing is done.
  bool Reclaim(uint64_t bytes);

  // Valid as of the last call of anything.
  const Held& held(size_t model) const { return models_[model].held; }
  // Of pool 0: free, and less than moves at a time.
  uint64_t fragment_bytes() const { return fragment_bytes_; }

 private:
  struct Model {
    ResizableSlots* slots = nullptr;
    SlotsInUse now;
    int64_t floor_slots = 1;
    int64_t slots_at_load = 0;
    ResizableKv* kv = nullptr;
    KvInUse kv_now;
    uint64_t other_bytes = 0;  // than slots and keys and values
    Held held;
  };

  void SetSlots(size_t model, int64_t slots);
  void SetKv(size_t model, int64_t slabs);
  int64_t MoveKv(uint64_t& free_bytes);
  int64_t UnusedKvSlabs(const Model& m) const;
  bool TakeFor(size_t taker, uint64_t bytes);
  void Count(Model& model);
  std::vector<size_t> MembersOf(int pool) const;

  const std::vector<Rules> rules_;
  std::vector<Model> models_;
  ExpertBalancer balancer_;
  KvBalancer kv_balancer_;
  const double hysteresis_;
  std::vector<uint32_t> uses_;
  uint64_t fragment_bytes_ = 0;
};

}  // namespace moesaic
