// KvBalancer: which of the models that run lack memory of keys and values, and which have more than
// they need.
//
// A model lacks some when sequences wait for nothing but blocks: a slab lets as many of them run as
// it has blocks for, so that it is worth
//
//   sequences that wait, or that a slab has room for, if these are fewer / bytes of a slab
//
// in seconds of waiting saved, per second and byte: the unit in which an ExpertBalancer says what
// memory of experts is worth. It has more than it needs where a slab was not used for `unused_s`:
// what it needs is what sequences had at most in that time, and the prefixes that were found, and a
// slab besides.
//
// A plain state machine: it takes the time as an argument and moves nothing. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "serving/engine/resizable_kv.h"

namespace moesaic {

struct KvBalancerOptions {
  double half_life_s = 2;      // of how many wait; that nobody does any more is known at once
  double unused_s = 60;        // what was not used for so long is not needed
  double least_waiting = 0.1;  // on average; fewer are a chance
};

class KvBalancer {
 public:
  explicit KvBalancer(size_t models, KvBalancerOptions options = {});

  // What a model has and has done, now.
  void Observe(size_t model, const KvInUse& kv, int64_t now_ns);
  // It is loaded no more.
  void Forget(size_t model) { models_[model] = Model(); }

  // What a slab more is worth; 0: none is lacking, or it may have no more.
  double Value(size_t model) const;
  // Slabs that it does not need.
  int64_t SpareSlabs(size_t model) const;
  uint64_t SlabBytes(size_t model) const;

 private:
  struct Use {
    int64_t at_ns = 0;
    int64_t blocks = 0;
    uint64_t revived = 0;  // until then
  };
  struct Model {
    bool seen = false;
    KvInUse kv;
    double waiting = 0;       // moving average
    double waiting_last = 0;  // between the last two looks
    int64_t first_ns = 0;
    int64_t observed_ns = 0;
    std::deque<Use> uses;  // of the last unused_s
  };

  const KvBalancerOptions options_;
  std::vector<Model> models_;
};

}  // namespace moesaic
