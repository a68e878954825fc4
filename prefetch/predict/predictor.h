// Predictor: from what a request has done so far, the probability that each expert of a later layer
// is used the next time the request gets there.
//
// Layers are those that have experts, counted from 0 (a dense layer has no number), because a
// distance in front of which nothing can be fetched is no distance. A request passes all of them in
// each iteration; behind the last one comes layer 0 of its next iteration.
//
// Thread contract: owned and used by one thread (the engine's, or the simulator). Nothing is
// allocated after construction but by BeginRequest.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

class EamCollection;
class NextGate;
struct CpuKernels;
struct RoutingTrace;
class StateSection;

struct PredictorShape {
  int num_layers = 0;   // that have experts
  int num_experts = 0;  // per layer
  int top_k = 0;
  int max_requests = 1;  // that run at the same time
};

class Predictor {
 public:
  static constexpr int32_t kUnknownToken = -1;

  virtual ~Predictor() = default;
  virtual const char* name() const = 0;

  // request: a number below max_requests that is not in use.
  virtual void BeginRequest(int request) = 0;
  // A forward pass over `rows` tokens of the request begins; `token` is the one that is processed
  // (kUnknownToken for several, or when there is none to be had).
  virtual void BeginIteration(int request, int32_t token, int64_t rows) = 0;
  // The router's choice in the next layer of the iteration. experts: [rows, top_k].
  virtual void Observe(int request, int layer, std::span<const int32_t> experts) = 0;
  // The layer `distance` >= 1 behind the one that was observed last (behind BeginIteration: layer
  // distance - 1), at most num_layers. probability: [num_experts], of being used by at least one
  // token.
  virtual void Predict(int request, int distance, std::span<float> probability) = 0;
  // The request has ended; what it did may be learned from.
  virtual void EndRequest(int request) = 0;
  // What was learned and outlives the process (of one that takes it back, the same shape is asked).
  // The predictor owns the sections; they are saved between steps and loaded before any.
  virtual std::vector<StateSection*> Sections() { return {}; }
  // Request EAMs, where it predicts by them; owned by the predictor. Null: it does not.
  virtual EamCollection* collection() { return nullptr; }
  // What the predictor keeps in memory.
  virtual uint64_t memory_bytes() const = 0;
};

// Where each request is, for predictors to derive from.
class RequestPosition {
 public:
  void Begin(int num_layers) {
    num_layers_ = num_layers;
    last_ = -1;
    rows_ = 1;
    iterations_ = 0;
  }
  void BeginIteration(int64_t rows) {
    last_ = -1;
    rows_ = rows;
    ++iterations_;
  }
  void Observed(int layer) { last_ = layer; }

  int last() const { return last_; }  // observed layer; -1: none of this iteration
  int64_t rows() const { return rows_; }
  int64_t iterations() const { return iterations_; }  // begun
  int Target(int distance) const { return (last_ + distance) % num_layers_; }
  bool NextIteration(int distance) const { return last_ + distance >= num_layers_; }

 private:
  int num_layers_ = 0;
  int last_ = -1;
  int64_t rows_ = 1;
  int64_t iterations_ = 0;
};

// The predictor of this name: one of PredictorNames(). With the gates of a model `blend` uses them,
// and `next-gate` is there; they must outlive it. Throws Error(kInvalidArgument) for an unknown
// name, which lists the known ones, and for next-gate without gates.
std::unique_ptr<Predictor> MakePredictor(std::string_view name, const PredictorShape& shape,
                                         const CpuKernels& kernels, NextGate* gates = nullptr);
// Knows the future of a trace: requests must be begun in the order of its sequences, one token per
// iteration. `trace` must outlive it. For limits.
std::unique_ptr<Predictor> MakeOraclePredictor(const RoutingTrace& trace,
                                               std::span<const int> sequence_order);

std::vector<std::string> PredictorNames();

}  // namespace moesaic
