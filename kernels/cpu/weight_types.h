// WeightType: what weights are in memory; and the table of what a type is called and goes with. A
// new type is a row here, its layout (PackedMatrix) and its kernels. Plain data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>

#include "core/base/named.h"
#include "core/base/tensor.h"

namespace moesaic {

enum class WeightType : uint8_t {
  kBf16,
  kF32,
  kInt8,
  kInt4,
  kMxfp4F32,
  kGguf,
  kGgufF32,
  kFp8,
  kW4A16,
  kBf16Coded,
  // Of models; no matrix is of it (InExperts).
  kMxfp4
};
enum class ActivationType : uint8_t { kF32, kBf16, kInt8, kInt8Sums };

// How the inputs of an output lie in a matrix of kGguf or kGgufF32: in blocks of so many values and
// bytes, of this type of ggml's. Plain floats are blocks of 32 of them.
struct GgufForm {
  uint16_t id = 0;
  uint16_t values = 0;
  uint16_t bytes = 0;
  bool is_f32() const { return id == 0; }
  bool operator==(const GgufForm&) const = default;
};

struct WeightTraits {
  WeightType type;
  const char* name;   // in hashes, profiles, messages: "bf16"
  const char* dtype;  // as a setting: "bfloat16"
  // What products multiply them with, to the same bits in all numerics classes; nullopt: the type
  // of the class.
  std::optional<ActivationType> activations;
  DType section;  // of an expert in a blob
  // What a model has in their place where they are not of experts, and where they are the output
  // matrix (and an embedding tied to it).
  WeightType dense;
  WeightType head;
};

inline constexpr WeightTraits kWeightTypes[] = {
    {WeightType::kBf16, "bf16", "bfloat16", std::nullopt, DType::kBF16, WeightType::kBf16,
     WeightType::kBf16},
    {WeightType::kF32, "f32", "float32", std::nullopt, DType::kF32, WeightType::kF32,
     WeightType::kF32},
    {WeightType::kInt8, "int8", "int8", ActivationType::kInt8, DType::kI8, WeightType::kInt8,
     WeightType::kInt8},
    // Four bits cost the output more than they save.
    {WeightType::kInt4, "int4", "int4", ActivationType::kInt8, DType::kI4, WeightType::kInt4,
     WeightType::kInt8},
    // Of MXFP4 checkpoints, which have experts of it alone: with f32 activations.
    {WeightType::kMxfp4F32, "mxfp4_f32", "mxfp4-float32", ActivationType::kF32, DType::kMxfp4,
     WeightType::kBf16, WeightType::kBf16},
    // GGUF files' own blocks, of a kind for each matrix (GgufForm): with int8 activations, and,
    // also where a matrix is of plain floats, with f32 ones. They lie alike.
    {WeightType::kGguf, "gguf", "gguf", ActivationType::kInt8Sums, DType::kGguf, WeightType::kGguf,
     WeightType::kGguf},
    {WeightType::kGgufF32, "gguf_f32", "gguf-float32", ActivationType::kF32, DType::kGguf,
     WeightType::kGgufF32, WeightType::kGgufF32},
    // E4M3 with a scale for each 128 inputs of an output. What a checkpoint does not have so is
    // bf16 (fp8_weights.h), as what is looked up and what gives logits always is.
    {WeightType::kFp8, "fp8", "fp8", std::nullopt, DType::kF8E4M3, WeightType::kFp8,
     WeightType::kBf16},
    // Signed numbers of 4 bits with a bf16 scale for each 32 inputs of an output, as
    // compressed-tensors packs them. Only experts are kept so (packed_int4.h).
    {WeightType::kW4A16, "w4a16", "w4a16", ActivationType::kF32, DType::kW4A16, WeightType::kBf16,
     WeightType::kBf16},
    // bf16 in 12 bits, of which every bit comes back: bfloat16 with --weight-coding lossless. A
    // matrix that it does not fit is kBf16 (serving/model/coded_weights.h).
    {WeightType::kBf16Coded, "bf16_coded", "bfloat16", std::nullopt, DType::kBf16Coded,
     WeightType::kBf16Coded, WeightType::kBf16Coded},
    // MXFP4 checkpoints with int8 activations: their experts are kGguf, in ggml's blocks of it.
    {WeightType::kMxfp4, "mxfp4", "mxfp4", ActivationType::kInt8Sums, DType::kGguf,
     WeightType::kBf16, WeightType::kBf16},
};
inline constexpr size_t kNumWeightTypes = std::size(kWeightTypes);
inline constexpr size_t kNumMatrixTypes = kNumWeightTypes - 1;

constexpr const WeightTraits& TraitsOf(WeightType type) {
  return kWeightTypes[static_cast<size_t>(type)];
}
constexpr const char* WeightTypeName(WeightType type) { return TraitsOf(type).name; }
// Whole numbers and scales, multiplied with int8 activations.
constexpr bool IsQuantized(WeightType type) {
  const auto activations = TraitsOf(type).activations;
  return activations == ActivationType::kInt8 || activations == ActivationType::kInt8Sums;
}
constexpr bool IsGguf(WeightType type) {
  return type == WeightType::kGguf || type == WeightType::kGgufF32;
}

// What the matrices of experts are in a model of this type.
constexpr WeightType InExperts(WeightType type) {
  return type == WeightType::kMxfp4 ? WeightType::kGguf : type;
}
constexpr bool IsOfMatrices(WeightType type) { return static_cast<size_t>(type) < kNumMatrixTypes; }

// The type whose products have the same bits, by whose name results are known.
constexpr WeightType SameBitsAs(WeightType type) {
  return type == WeightType::kBf16Coded ? WeightType::kBf16 : type;
}

// What settings call the types that weights, and that keys and values, can have in memory. That
// bf16 is coded is a setting of its own.
inline constexpr auto kWeightDtypes = [] {
  std::array<Named<WeightType>, kNumWeightTypes - 1> names = {};
  size_t count = 0;
  const auto add = [&](const WeightTraits& traits) {
    names[count++] = {traits.dtype, traits.type};
  };
  for (const WeightTraits& traits : kWeightTypes) {
    if (traits.type == WeightType::kMxfp4F32) add(TraitsOf(WeightType::kMxfp4));
    if (SameBitsAs(traits.type) == traits.type && IsOfMatrices(traits.type)) add(traits);
  }
  return names;
}();
inline constexpr Named<WeightType> kKvDtypes[] = {
    {"bfloat16", WeightType::kBf16}, {"float32", WeightType::kF32}, {"int8", WeightType::kInt8}};

}  // namespace moesaic
