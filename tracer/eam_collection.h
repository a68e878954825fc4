// EamCollection (EAMC): a fixed number of request EAMs, kept so that a running iteration can be
// compared with all of them layer by layer (MoE-Infinity, sections 4 and 5.1), and EamMatcher: one
// iteration's running comparison.
//
// Counts are stored as bytes, twice. Expert-major [layers][experts][capacity]: a layer of an
// iteration touches only the experts it used, so its update adds those columns to a running score
// per entry. Entry-major [capacity][layers][experts]: a prediction reads whole rows of a few
// entries. An EAM whose largest count exceeds 255 is scaled down as a whole; the cosine does not
// depend on an entry's scale, and the scale is kept, so that sums over entries still weigh tokens.
// Norms of the first 1, 2, ... layers of every entry make the similarity the cosine of the
// flattened matrices over the layers seen so far: exact for what is stored, and for what was
// inserted up to 255 tokens per cell.
//
// Thread contract: collection and matchers belong to the engine's thread. Observing, matching and
// predicting allocate nothing. Inserting ends the running iteration of every matcher (CHECKed: call
// Begin before the next observation).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "tracer/expert_activation_matrix.h"

namespace moesaic {

struct CpuKernels;
class EamMatcher;

struct EamMatch {
  int32_t entry = 0;
  float similarity = 0;  // cosine over the layers seen so far, in (0, 1]
};

class EamCollection {
 public:
  // Layers without experts may be counted in; their rows stay zero. `kernels` must outlive it.
  // Throws Error(kResourceExhausted) when the memory cannot be had.
  EamCollection(int num_layers, int num_experts, int capacity, const CpuKernels& kernels);
  ~EamCollection();
  EamCollection(const EamCollection&) = delete;
  EamCollection& operator=(const EamCollection&) = delete;

  int num_layers() const { return num_layers_; }
  int num_experts() const { return num_experts_; }
  int capacity() const { return capacity_; }
  int size() const { return size_; }
  uint64_t memory_bytes() const;
  // Changes with every insertion.
  uint64_t generation() const { return generation_; }

  // Appends while there is room; then replaces the entry nearest to `eam` (the paper's rule: it
  // keeps the newest and keeps them diverse). Returns the entry written, or -1 for a zero matrix,
  // which is not kept. CHECKs the shape.
  int Insert(const ExpertActivationMatrix& eam);
  // The entry with the largest cosine over whole matrices; similarity 0 when there is none.
  EamMatch Nearest(const ExpertActivationMatrix& eam);
  void Clear();

  // What is stored of an entry: its counts are bytes times scale (1 when no count exceeded 255).
  std::span<const uint8_t> Row(int entry, int layer) const;  // [num_experts]
  std::span<const uint8_t> Counts(int entry) const;          // [num_layers, num_experts]
  float scale(int entry) const;
  ExpertActivationMatrix Entry(int entry) const;  // rounded to whole counts
  // Appends what Counts and scale gave (a checkpoint). CHECKs that there is room, the size, and
  // that the scale is finite and positive.
  void Restore(std::span<const uint8_t> counts, float scale);

  // row[e] = share of expert e in the sum of the matches' counts in a layer (section 5.1: several
  // matches are summed and each row normalised); the shares add up to 1. False, and zeros, when no
  // match used the layer. row: [num_experts].
  bool PredictRow(int layer, std::span<const EamMatch> matches, std::span<float> row) const;

 private:
  friend class EamMatcher;

  const uint8_t* Column(int layer, int expert) const;
  void Write(int entry, std::span<const uint8_t> counts, float scale);

  const CpuKernels* kernels_;
  int num_layers_;
  int num_experts_;
  int capacity_;
  int64_t stride_;  // entries per column with padding, which stays zero
  int size_ = 0;
  uint64_t generation_ = 0;
  AlignedBuffer columns_;                // u8 [num_layers, num_experts, stride]
  AlignedBuffer rows_;                   // u8 [capacity, num_layers, num_experts]
  AlignedBuffer inverse_norms_;          // f32 [num_layers, stride]: of layers 0 to l; 0 for norm 0
  std::vector<float> scales_;            // [capacity]
  std::vector<uint8_t> staged_;          // [num_layers, num_experts]: the EAM being inserted
  std::unique_ptr<EamMatcher> nearest_;  // for whole matrices
};

class EamMatcher {
 public:
  // The collection must outlive it. Best gives up to max_matches.
  EamMatcher(const EamCollection& collection, int max_matches);

  // Starts an iteration.
  void Begin();
  // The tokens that the iteration routed to each expert of a layer. Layers come in ascending order;
  // one that is left out counts as a row of zeros. counts: [num_experts].
  void ObserveRow(int layer, std::span<const uint32_t> counts);
  // The same from the choices of a few tokens: each occurrence is one token.
  void ObserveExperts(int layer, std::span<const int32_t> experts);

  // The entries most similar to what was observed, best first (equal ones by number); those with
  // similarity 0 are left out. Valid until the next call. CHECKs n <= max_matches.
  std::span<const EamMatch> Best(int n);
  uint64_t memory_bytes() const;

 private:
  struct Used {
    int32_t expert;
    uint32_t tokens;
  };

  void AddRow(int layer);  // of used_
  void MakeRoom();         // for used_, which it brings to the units of the scores
  void AddDigit(int layer, int digit_shift);

  const EamCollection* collection_;
  int max_matches_;
  uint64_t generation_ = 0;
  int last_layer_ = -1;      // observed
  double norm_squared_ = 0;  // of the observed rows
  uint64_t weight_sum_ = 0;  // of the rows in the scores, in units of 2^shift_ tokens
  int shift_ = 0;            // scores are dot products / 2^shift_, so that they stay below 2^31
  AlignedBuffer scores_;     // u32 [stride]
  std::vector<Used> used_;   // the row being observed, its experts with tokens
  std::vector<uint32_t> tokens_;         // [num_experts], zero between calls
  std::vector<const uint8_t*> columns_;  // one call of the kernel
  std::vector<uint8_t> weights_;
  std::vector<EamMatch> best_;
};

}  // namespace moesaic
