// Files of learned state: the file, and past its checksum the sections; what a predictor has taken
// over must still give probabilities.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/evict/eviction_policies.h"
#include "prefetch/predict/blend_predictor.h"
#include "prefetch/predict/eamc_predictor.h"
#include "tracer/eam_collection_section.h"
#include "tracer/residency_list.h"
#include "tracer/state_checkpoint.h"

namespace {

using namespace moesaic;

constexpr PredictorShape kShape{2, 4, 2, 1};

std::unique_ptr<Predictor> MakeSmall(int kind) {
  switch (kind) {
    case 0:
      return std::make_unique<BlendPredictor>(kShape, KernelsFor(Isa::kScalar),
                                              BlendOptions{.token_table_bytes = 128});
    case 1:
      return MakePredictor("transition", kShape, KernelsFor(Isa::kScalar));
    case 2:
      return MakePredictor("frequency", kShape, KernelsFor(Isa::kScalar));
    case 3:
      return MakePredictor("recency", kShape, KernelsFor(Isa::kScalar));
    default:
      return MakeEamcPredictor(kShape, KernelsFor(Isa::kScalar), {.capacity = 3, .matches = 2});
  }
}

void LoadPredictor(int kind, std::span<const std::byte> bytes) {
  const std::unique_ptr<Predictor> predictor = MakeSmall(kind);
  for (StateSection* section : predictor->Sections()) section->Load(section->version(), bytes);
  const std::vector<int32_t> experts = {1, 3};
  std::array<float, 4> probability;
  predictor->BeginRequest(0);
  for (int iteration = 0; iteration < 3; ++iteration) {
    predictor->BeginIteration(0, 5, 1);
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      predictor->Observe(0, layer, experts);
      for (int distance = 1; distance <= kShape.num_layers; ++distance) {
        predictor->Predict(0, distance, probability);
        for (const float p : probability) CHECK(p >= 0 && p <= 1);
      }
    }
  }
  predictor->EndRequest(0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data + 1, size - 1));
  const int kind = data[0] % 9;
  try {
    if (kind == 0) {
      ParseState(bytes, "fuzz");
    } else if (kind == 1) {
      static EamCollection collection(3, 8, 4, KernelsFor(Isa::kScalar));
      EamCollectionSection(collection).Load(1, bytes);
      EamCollectionSection(collection).Merge(1, bytes);  // what could be loaded, can be merged
    } else if (kind == 2) {
      ResidencyList list;
      ResidencyListSection(list, 100, 100).Load(1, bytes);
    } else if (kind == 3) {
      PolicyCounts(ExpertGrid(2, 4)).section().Load(1, bytes);
    } else {
      LoadPredictor(kind - 4, bytes);
    }
  } catch (const Error&) {
  }
  return 0;
}
