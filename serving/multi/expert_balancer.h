// ExpertBalancer: to which of the models that run memory of experts goes, and from which. Memory is
// worth what it saves: the time that layers would wait, per second and byte,
//
//   value of a model's n-th slot = uses per second of its n-th most used expert
//                                  * what a layer waits for an expert that is absent / slot_bytes
//
// so that what is handed out goes where it saves most, and what is taken comes from where it saves
// least. How often experts are used is counted (whether they were there or not) and forgotten with
// a half-life; it has in it how often requests come, how long they are and what the router does.
// What is waited for an expert is measured: the time in which layers waited by the experts that
// came, and no less than the disk needs for it.
//
// Memory moves in slabs, of at least a slot of every model: what is left over is less than one. It
// is taken only when it is worth `hysteresis` times as much elsewhere and would, in `horizon_s`,
// save more than filling it takes. So nothing moves back and forth while the load stays as it is:
// what was taken would have to be worth more by that factor where it was taken from. Models whose
// memory is on its way back are waited for, so that what all hold together is never more than there
// is.
//
// A plain state machine: it takes the time as an argument and moves nothing. Owned by a
// ModelRegistry; one thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "prefetch/link/resizable_slots.h"

namespace moesaic {

struct BalancerOptions {
  double half_life_s = 30;       // of what is known of a model's use
  double half_life_loads = 500;  // and of what is waited for an expert
  double settle_s = 5;           // a model that was loaded so lately neither gets nor gives
  // What a byte is worth varies by half with chance under a load that stays as it is, and moving
  // costs reads: only what is clearly uneven moves.
  double hysteresis = 4;
  double horizon_s = 60;
  // Moved at a time, unless a slot is larger: at most most_slab_bytes, and less of a small pool.
  uint64_t most_slab_bytes = uint64_t{64} << 20;
  int slabs_of_pool = 64;        // a slab is no less than this part of it
  int most_slabs_at_a_time = 8;  // that are taken in one decision
  double bytes_per_s = 1e9;      // of the disk, at best
};

class ExpertBalancer {
 public:
  explicit ExpertBalancer(size_t models, BalancerOptions options = {});

  // What a model has and has done, now. `slots.least`: those that it keeps in any case.
  void Observe(size_t model, const SlotsInUse& slots, std::span<const uint32_t> uses,
               int64_t now_ns);
  // It is loaded no more; what comes under its number later begins anew.
  void Forget(size_t model);

  // How many slots a model is to have from now on.
  struct Change {
    size_t model = 0;
    int64_t slots = 0;
    friend bool operator==(const Change&, const Change&) = default;
  };
  // Of the models of one pool, all observed. `free_bytes`: that none of them holds or will get.
  // Those that get more may get it at once: together it is at most free_bytes.
  std::vector<Change> Decide(std::span<const size_t> models, uint64_t free_bytes);

  // What so many slots less would cost a model, in seconds of waiting per second and byte.
  double Loss(size_t model, int64_t slots) const;
  // What the next slab would save a model, in seconds of waiting per second and GiB; for metrics.
  double Gain(size_t model) const;
  // The least that moves in a pool of these.
  uint64_t SlabBytes(std::span<const size_t> models, uint64_t free_bytes) const;

 private:
  struct Model {
    bool seen = false;
    SlotsInUse slots;
    std::vector<uint32_t> uses;      // [experts] as they were observed last
    std::vector<double> uses_per_s;  // [experts] moving averages
    std::vector<double> most_used;   // [experts] the same, descending; sums up to here
    double loads = 0;                // moving sums
    double blocked_s = 0;
    double age_s = 0;
    int64_t observed_ns = 0;
  };

  double FetchSeconds(const Model& model) const;
  // Of slots [from, to): seconds per second and byte.
  double Value(const Model& model, int64_t from, int64_t to) const;
  bool Settled(const Model& model) const { return model.age_s >= options_.settle_s; }

  const BalancerOptions options_;
  std::vector<Model> models_;
};

}  // namespace moesaic
