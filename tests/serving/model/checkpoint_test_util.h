// What tests of stored weights do with a checkpoint: break its files, and pack an expert of what is
// read of them, in both ways that there are.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/io/checkpoint.h"
#include "core/io/expert_source.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/expert_sources.h"
#include "serving/model/tensor_source.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {

// Every `from` in a file becomes `to`, which is as long.
inline void ReplaceIn(const std::filesystem::path& file, const std::string& from,
                      const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  std::string text = ReadTextFile(file, 1 << 20);
  size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos);
  for (; at != std::string::npos; at = text.find(from, at)) text.replace(at, to.size(), to);
  std::ofstream(file, std::ios::binary) << text;
}

// The expert's blob, made of its extents as a loader does; `slot` is zeroed first.
inline void ReadAndPack(const ExpertSource& source, const Checkpoint& checkpoint, ExpertId id,
                        std::span<std::byte> slot) {
  std::fill(slot.begin(), slot.end(), std::byte{0});
  std::vector<std::vector<std::byte>> bytes;
  for (const Extent& extent : source.Extents(id)) {
    TensorInfo raw;
    raw.extent = extent;
    checkpoint.Read(raw, bytes.emplace_back(extent.bytes));
  }
  const std::vector<std::span<const std::byte>> pieces(bytes.begin(), bytes.end());
  source.Pack(id, pieces, slot);
}

// An expert as the checkpoint's extents make it, which has to be what its tensors make: so an
// expert store is made.
inline AlignedBuffer LoadExpert(const ModelConfig& config, const Checkpoint& checkpoint,
                                WeightType type, ExpertId id) {
  const auto tensors = MakeCheckpointTensorSource(checkpoint);
  const CpuKernels& kernels = KernelsFor(Isa::kScalar);
  const auto source = MakeCheckpointExpertSource(config, type, checkpoint, kernels);
  ExpertPacker packer(config, type, *tensors, kernels);
  AlignedBuffer packed(source->layout().slot_bytes);
  AlignedBuffer loaded(source->layout().slot_bytes);
  packer.Pack(id, packed.span());
  ReadAndPack(*source, checkpoint, id, loaded.span());
  EXPECT_EQ(std::memcmp(packed.data(), loaded.data(), packed.bytes()), 0) << WeightTypeName(type);
  return loaded;
}

// The matrices of an expert as it is kept have the bits of its numbers in f32.
inline void ExpectNumbersKept(const ModelConfig& config, const Checkpoint& checkpoint,
                              WeightType type, ExpertId id) {
  const CpuKernels& kernels = KernelsFor(Isa::kScalar);
  const AlignedBuffer kept_blob = LoadExpert(config, checkpoint, type, id);
  const AlignedBuffer plain_blob = LoadExpert(config, checkpoint, WeightType::kF32, id);
  const ExpertLayout layout = MakeCpuExpertLayout(config, type);
  const ExpertLayout f32 = MakeCpuExpertLayout(config, WeightType::kF32);
  for (size_t s = 0; s < 3; ++s) {
    const PackedMatrix kept = SectionMatrix(layout.sections[s], kept_blob.data(), 1);
    const PackedMatrix plain = SectionMatrix(f32.sections[s], plain_blob.data(), 1);
    EXPECT_EQ(kept.type, type);
    std::vector<float> a(static_cast<size_t>(kept.k)), b(a.size());
    for (int64_t row = 0; row < kept.n; ++row) {
      kernels.unpack_row(kept, row, a.data());
      kernels.unpack_row(plain, row, b.data());
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
          << "matrix " << s << ", row " << row;
    }
  }
}

// What is written over a file of a checkpoint, and what its error has to be and to say.
struct BrokenCheckpoint {
  const char* file;
  const char* from;
  const char* to;
  ErrorKind kind;
  std::vector<const char*> words;
};
// `read(directory)` is called with the checkpoint `model` broken in each way.
template <class Read>
void ExpectRefused(const std::filesystem::path& model, const std::vector<BrokenCheckpoint>& cases,
                   Read read) {
  for (const BrokenCheckpoint& c : cases) {
    SCOPED_TRACE(c.words.front());
    const TempDir directory;
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(model / name, directory.path() / name);
    }
    ReplaceIn(directory.path() / c.file, c.from, c.to);
    try {
      read(directory.path());
      ADD_FAILURE() << "was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), c.kind) << error.what();
      for (const char* word : c.words) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
            << word << " in: " << error.what();
      }
    }
  }
}

}  // namespace moesaic
