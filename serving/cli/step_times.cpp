#include "serving/cli/step_times.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "serving/model/expert_sources.h"
#include "serving/model/weights.h"

namespace moesaic {

StepTimes DeriveStepTimes(const HardwareProfile& machine, const ModelConfig& model) {
  double disk = 0;
  for (const DiskProfile& profile : machine.disks) {
    for (const DiskRate& rate : profile.rates) disk = std::max(disk, rate.read.value);
  }
  const double memory = machine.memory_bytes_per_s();
  if (disk <= 0 || memory <= 0) {
    Fail(ErrorKind::kInvalidArgument,
         "the machine's profile has no rate of {}: measure it with `moesaic profile`",
         disk <= 0 ? "a disk" : "the memory");
  }
  if (model.num_sparse_layers() == 0) {
    Fail(ErrorKind::kInvalidArgument, "the model has no experts");
  }
  constexpr auto kType = WeightType::kBf16;
  const auto nanoseconds = [](uint64_t bytes, double bytes_per_s) {
    return std::llround(static_cast<double>(bytes) / bytes_per_s * 1e9);
  };
  StepTimes times;
  times.expert_bytes = MakeCpuExpertLayout(model, kType).blob_bytes;
  times.expert_copy_ns = nanoseconds(times.expert_bytes, disk);
  const uint64_t vocabulary_bytes = static_cast<uint64_t>(model.vocab_size * model.hidden_size) *
                                    2 * (model.tie_word_embeddings ? 1 : 2);
  const uint64_t dense_bytes = ModelWeights::Bytes(model, kType) - vocabulary_bytes;
  times.layer_compute_ns =
      nanoseconds(dense_bytes / static_cast<uint64_t>(model.num_layers()) +
                      static_cast<uint64_t>(model.top_k()) * times.expert_bytes,
                  memory);
  return times;
}

}  // namespace moesaic
