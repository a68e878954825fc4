// The two kinds of ExpertSource: an unmodified checkpoint, packed on arrival, and an expert store;
// and the writer of stores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/base/aligned_buffer.h"
#include "core/base/expert_id.h"
#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "core/io/checkpoint.h"
#include "core/io/expert_source.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/tensor_source.h"

namespace moesaic {

// The blob of one expert for the CPU kernels: sections "gate", "up" and "down", packed in panels.
// Blobs of kGguf have room for the largest type that a matrix has in any layer. Here and below
// `type` is that of the model, of which that of experts follows (ExpertWeightType).
ExpertLayout MakeCpuExpertLayout(const ModelConfig& config, WeightType type);

// A section of a blob of this layer as the kernels want it.
PackedMatrix SectionMatrix(const ExpertSection& section, const std::byte* blob, int64_t layer);

// Experts of an unmodified checkpoint: three extents each. Checks every expert's tensors (throws as
// Checkpoint::Require). Both arguments must outlive the source.
std::unique_ptr<ExpertSource> MakeCheckpointExpertSource(const ModelConfig& config, WeightType type,
                                                         const Checkpoint& checkpoint,
                                                         const CpuKernels& kernels);

// Experts of a store, or of several with the same experts that share the reading. Throws
// Error(kInvalidArgument) when a store is of another model, type or layout or older than the
// checkpoint (its fingerprint differs), saying how to rebuild it, or when two do not have the same
// experts, naming both. Of several one that cannot be opened is left out with a warning; throws as
// OpenExpertStore when none can. Addresses of servers (expert_wire.h) come last; `key` is what they
// share with this process. No connection is made here.
std::unique_ptr<ExpertSource> MakeStoreExpertSource(const ModelConfig& config, WeightType type,
                                                    uint64_t fingerprint,
                                                    std::span<const std::filesystem::path> stores,
                                                    const std::string& key = {});

// Whether the experts of these stores (of the first that can be opened) are of coded bf16. Throws
// as OpenExpertStore when none can be.
bool StoreIsCoded(std::span<const std::filesystem::path> stores);

// Experts whose files are not there: what a plan of memory asks of them, their sizes. They cannot
// be read.
std::unique_ptr<ExpertSource> MakeAbsentExpertSource(const ModelConfig& config, WeightType type);

// Whether the store exists and was made for this model, type and fingerprint.
bool ExpertStoreIsCurrent(const ModelConfig& config, WeightType type, uint64_t fingerprint,
                          const std::filesystem::path& store);

// Makes blobs of experts read from a TensorSource. One thread at a time.
class ExpertPacker {
 public:
  // All references must outlive the packer.
  ExpertPacker(const ModelConfig& config, WeightType type, const TensorSource& source,
               const CpuKernels& kernels);
  const ExpertLayout& layout() const { return layout_; }
  // slot: layout().slot_bytes; what the sections do not cover is zeroed. Throws UncodableExpert
  // (coded_weights.h).
  void Pack(ExpertId id, std::span<std::byte> slot);

 private:
  bool PackFp8(const ExpertSection& section, const PlannedTensor& tensor,
               const PackedMatrix& matrix);
  bool PackW4A16(const ExpertSection& section, const PlannedTensor& tensor,
                 const PackedMatrix& matrix);
  bool PackMxfp4(const ExpertSection& section, const PlannedTensor& tensor,
                 const PackedMatrix& matrix);

  const ModelConfig& config_;
  const TensorSource& source_;
  const CpuKernels& kernels_;
  ExpertLayout layout_;
  AlignedBuffer raw_;
};

// Reads every expert from `source`, packs it and writes the store. `progress(done, total)` after
// each expert; it may throw to stop.
void WriteExpertStore(const ModelConfig& config, WeightType type, const TensorSource& source,
                      const CpuKernels& kernels, ThreadPool& pool,
                      const std::filesystem::path& store,
                      const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace moesaic
