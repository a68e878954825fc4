// TensorPlan: which tensors of a checkpoint the parts of a model come from, and how they are turned
// into what the engine wants, as data. A family's file fills it; loaders follow it and know no
// family. Plain data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace moesaic {

// What the engine asks for; shapes are those of the model's specs, linear weights [out, in].
enum class TensorSlot {
  // Of the model
  kEmbedding,  // [vocab, hidden]
  kFinalNorm,  // [hidden]
  kHead,       // [vocab, hidden]
  // Of a layer
  kInputNorm,          // [hidden]
  kPostAttentionNorm,  // [hidden]
  kQ,                  // [heads * head_dim, hidden]
  kK,                  // [kv_heads * head_dim, hidden]
  kV,
  kQBias,
  kKBias,
  kVBias,
  kQNorm,  // [head_dim] or [heads * head_dim], see QkNorm
  kKNorm,
  kOutput,  // [hidden, heads * head_dim]
  kOutputBias,
  kSinks,          // [heads]
  kAttentionGate,  // [heads * head_dim, hidden], see GroupedQuerySpec::output_gate
  // Of latent attention (LatentSpec), besides kQ and kOutput
  kQDown,       // [q_rank, hidden]; kQ is of its normed rows
  kQDownNorm,   // [q_rank]
  kKvDown,      // [kv_rank + rope_dim, hidden]
  kKvDownNorm,  // [kv_rank]
  kKvUp,        // [heads * (nope_dim + value_dim), kv_rank], of each head the key's rows first;
                // or, where it is not set, of each head (TensorPlan::At's expert):
  kKeyUp,       // [kv_rank, nope_dim]
  kValueUp,     // [value_dim, kv_rank]
  // Of linear attention (DeltaNetSpec)
  kDeltaQ,  // [key_heads * key_dim, hidden], as kDeltaK
  kDeltaK,
  kDeltaV,  // [value_heads * value_dim, hidden], as kDeltaGate
  kDeltaGate,
  kDeltaBeta,  // [value_heads, hidden], as kDeltaStep
  kDeltaStep,
  kDeltaConv,         // [channels, conv_width]
  kDeltaDecay,        // [value_heads] the logarithm of a decay's rate
  kDeltaStepBias,     // [value_heads]
  kDeltaNorm,         // [value_dim]
  kDeltaOutput,       // [hidden, value_heads * value_dim]
  kRouter,            // [experts, hidden]
  kRouterBias,        // [experts]
  kRouterCorrection,  // [experts]
  kMlpGate,           // [width, hidden], of a dense layer
  kMlpUp,
  kMlpDown,  // [hidden, width]
  kSharedMlpGate,
  kSharedMlpUp,
  kSharedMlpDown,
  kSharedGate,  // [1, hidden]
  // Of an expert
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kExpertGateBias,  // [width]
  kExpertUpBias,
  kExpertDownBias,  // [hidden]
};
inline constexpr auto kNumTensorSlots = static_cast<size_t>(TensorSlot::kExpertDownBias) + 1;

// The matrices of an MLP, in the order in which the engine keeps them.
using MlpSlots = std::array<TensorSlot, 3>;
inline constexpr MlpSlots kDenseMlpSlots = {TensorSlot::kMlpGate, TensorSlot::kMlpUp,
                                            TensorSlot::kMlpDown};
inline constexpr MlpSlots kSharedMlpSlots = {TensorSlot::kSharedMlpGate, TensorSlot::kSharedMlpUp,
                                             TensorSlot::kSharedMlpDown};
inline constexpr MlpSlots kExpertSlots = {TensorSlot::kExpertGate, TensorSlot::kExpertUp,
                                          TensorSlot::kExpertDown};
inline constexpr MlpSlots kExpertBiasSlots = {
    TensorSlot::kExpertGateBias, TensorSlot::kExpertUpBias, TensorSlot::kExpertDownBias};

// Values that the checkpoint has as float8 are multiplied with a scale of their block of rows and
// columns, which the tensor NAME + suffix has.
struct BlockScales {
  int64_t rows = 0;
  int64_t cols = 0;
  std::string suffix = "_scale_inv";

  bool operator==(const BlockScales&) const = default;
};

// The tensor has those of all experts of a layer, one after the other.
struct StackOf {
  int64_t count = 0;
  int64_t index = 0;  // TensorPlan::At fills it in
};

// Of each `step` rows of a matrix those from `first` on, `count` of them (of a vector the values).
struct EveryNthRow {
  int64_t step = 1;
  int64_t first = 0;
  int64_t count = 1;
};

// A matrix is stored [in, out].
struct Transposed {};

// A matrix is stored as the tensors NAME_blocks and NAME_scales of mxfp4.
struct Mxfp4Blocks {};

// Where the checkpoint has NAME_packed [out, in / 8] of int32, each with eight numbers of 4 bits,
// and NAME_scale [out, in / group], as compressed-tensors packs them, a matrix is these; else it is
// NAME.
struct PackedInt4 {
  int64_t group = 0;  // inputs that share a scale; 0: all of an output's

  bool operator==(const PackedInt4&) const = default;
};

// The rows of each head of so many, of which halves are rotated together, are stored as pairs of
// neighbours: row j of the first half, then row j of the second. The first `passed` rows of a head
// are not rotated and lie as they are.
struct RowsInPairs {
  int64_t head_rows = 0;
  int64_t passed = 0;
};

// A matrix of one row is stored as a vector.
struct RowAsVector {};

// A vector is stored as a matrix of one row.
struct VectorAsRow {};

// A matrix is stored [rows, 1, columns], as the kernels of a convolution of channels by themselves.
struct RowsOfKernels {};

// Logarithms of rates are stored as the rates themselves, negative.
struct NegativeRates {};

// A new way to turn tensors is one more alternative; serving/model/stored_tensor.h carries it out.
// They are carried out in any order: what each says is of the tensor as it is stored.
using TensorTransform =
    std::variant<BlockScales, StackOf, EveryNthRow, Transposed, Mxfp4Blocks, PackedInt4,
                 RowsInPairs, RowAsVector, VectorAsRow, RowsOfKernels, NegativeRates>;

struct PlannedTensor {
  std::string name;
  std::vector<TensorTransform> transforms;  // in this order

  // The transform of this kind; null without one.
  template <typename Transform>
  const Transform* Find() const {
    for (const TensorTransform& transform : transforms) {
      if (const auto* const found = std::get_if<Transform>(&transform)) return found;
    }
    return nullptr;
  }
};

class TensorPlan {
 public:
  // `pattern` is the name, with {layer} and {expert} in the place of their numbers.
  void Set(TensorSlot slot, std::string pattern, std::vector<TensorTransform> transforms = {});
  // The three names behind `prefix`.
  void SetMlp(const MlpSlots& slots, const std::string& prefix,
              const std::array<const char*, 3>& names);
  // For all slots, after their own.
  void TransformAll(TensorTransform transform);

  bool Has(TensorSlot slot) const { return !slots_[static_cast<size_t>(slot)].name.empty(); }
  // Whether experts are stored so.
  bool HasMxfp4Experts() const;
  // Whether matrices may be packed int4.
  bool HasPackedInt4() const;

  // Of a slot that was set (CHECK).
  PlannedTensor At(TensorSlot slot, int64_t layer = 0, int64_t expert = 0) const;

 private:
  std::array<PlannedTensor, kNumTensorSlots> slots_;  // patterns in the place of names
  std::vector<TensorTransform> of_all_;
};

}  // namespace moesaic
