// NextGate: the routers of the next layers applied to the hidden state at hand. Each layer adds
// little to the residual stream, so a later layer's router says of it much of what it will say of
// its own input (Eliseev and Mazur 2023, arXiv:2312.17238, section 3.2).
//
// For a row x of the residual stream that layer l's router is about to see, and each of the next
// layers t: router_t (norm_t * x / rms(x)), less the mean of its k-th and (k+1)-th largest: the
// margin by which an expert is chosen. A router that corrects its choice by a bias chooses by
// score and bias, and so the margin is of their sums; groups of experts are not looked at. Norm
// weights are folded into a copy of the routers that
// lies layer after layer, so that one product serves all layers ahead and all rows of a step.
//
// Owned by the engine; one thread. Nothing is allocated after Load.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/thread_pool.h"
#include "core/config/router_spec.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/predict/step_predictor.h"

namespace moesaic {

class NextGate {
 public:
  // Of a request's rows, that many are looked at, evenly spread: a long prompt uses nearly all
  // experts anyway.
  static constexpr int kMaxRows = 4;
  // Which of `rows` rows is number i of the `looked_at` ones. The last of them is the newest row.
  static constexpr int64_t RowOf(int64_t i, int64_t looked_at, int64_t rows) {
    return (i + 1) * rows / looked_at - 1;
  }

  struct Router {
    const float* norm = nullptr;  // [hidden]
    PackedMatrix weights;         // [experts, hidden]
    const float* bias = nullptr;  // [experts] or null, of the logits
    // [experts] or null: what is added to the scores for the choice.
    const float* correction = nullptr;
    ScoreFunction score = ScoreFunction::kSoftmax;  // of corrected routers
    bool centred = false;  // the norm subtracts the mean (core/config/norm_spec.h)
  };

  // kernels: of class kF32.
  NextGate(const PredictorShape& shape, int64_t hidden_size, int look_ahead,
           const CpuKernels& kernels);

  // Copies the routers, by number of layers with experts. `pool` must outlive it.
  void Load(std::span<const Router> routers, double norm_eps, ThreadPool& pool);

  void BeginIteration(int request);
  // hidden: [rows of the step, hidden_size], the residual stream that `layer`'s router sees through
  // its norm. Call it before that layer's routing is given to a predictor that reads the margins.
  void Look(int layer, std::span<const StepRequest> requests, const float* hidden);

  // The margins for `layer`, from `distance` layers before, in the running iteration.
  struct Margins {
    int64_t rows = 0;                  // that were looked at; 0: none
    const int64_t* numbers = nullptr;  // [rows] which of the request's
    const float* values = nullptr;     // [rows, stride()]
  };
  Margins For(int request, int layer, int distance) const;

  int look_ahead() const { return look_ahead_; }
  // Experts, rounded up to whole kernel blocks; margins behind the last expert are zero.
  size_t stride() const { return stride_; }
  uint64_t memory_bytes() const;

 private:
  struct Request {
    int last = -1;  // layer that was looked at last in this iteration
    int64_t rows = 0;
    int64_t numbers[kMaxRows] = {};
    std::vector<float> margins;  // [look_ahead + 1 layers, distances, kMaxRows, stride]
  };
  size_t Place(int layer, int distance) const;
  void KeepMargins(int layer, const float* logits, float scale, float* margins);
  float Choices(int layer, const float* logits, float scale);

  PredictorShape shape_;
  int64_t hidden_size_;
  int look_ahead_;
  const CpuKernels& kernels_;
  size_t stride_;
  float norm_eps_ = 0;
  ThreadPool* pool_ = nullptr;
  AlignedBuffer routers_;      // packed bf16 [layers * stride, hidden]
  AlignedBuffer x_;            // activation rows [max_requests * kMaxRows, hidden]
  std::vector<float> scale_;   // [rows of x_] 1 / rms
  std::vector<float> logits_;  // [rows of x_, look_ahead * stride]
  // Of routers that choose by more than their products: what they add, and to what.
  struct Addends {
    std::vector<float> bias;        // [experts], empty: none
    std::vector<float> correction;  // likewise
    ScoreFunction score = ScoreFunction::kSoftmax;
  };
  std::vector<Addends> addends_;  // [layers]
  std::vector<float> choices_;    // [experts]
  std::vector<float> order_;      // [experts]
  std::vector<Request> requests_;
};

}  // namespace moesaic
