// ExpertLayout: where the sections of one expert's weights lie in its contiguous, aligned blob; and
// ExpertExtents: where the bytes of an expert are on disk. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/tensor.h"

namespace moesaic {

// How the bytes of a section are arranged. kernels/cpu/kernels.h, PackedMatrix: kPanel16, and
// kBlockPanel16 of DType::kGguf.
enum class SectionFormat : uint8_t { kRowMajor, kPanel16, kBlockPanel16 };

struct ExpertSection {
  std::string name;  // "gate", "up", "down"
  DType dtype = DType::kBF16;
  SectionFormat format = SectionFormat::kPanel16;
  int64_t rows = 0;     // outputs
  int64_t cols = 0;     // inputs
  uint64_t offset = 0;  // in the blob, a multiple of 64
  uint64_t bytes = 0;
  // Of DType::kGguf the type in each layer of the model (GgufType::id); `bytes` are those of the
  // largest.
  std::vector<uint32_t> gguf_types = {};
  // Likewise: products take activations in f32. Nothing of a file depends on it.
  bool f32_activations = false;
};

struct ExpertLayout {
  std::vector<ExpertSection> sections;
  uint64_t blob_bytes = 0;  // what the sections cover
  uint64_t slot_bytes = 0;  // blob_bytes rounded up to 4 KiB: what a cache slot takes

  const ExpertSection& Section(const std::string& name) const;  // CHECKs that it exists
};

// A run of bytes of a file. `file` indexes the owner's list of open files.
struct Extent {
  int32_t file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

}  // namespace moesaic
