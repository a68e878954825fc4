// Streams that are held up at random, in another way for each seed: copies, kernels, words and host
// functions of different streams come in every order that they may come in. The answer is always
// the same, and what is in a slot is what the table says.
//
// MOESAIC_PTX_SEEDS=N tries so many seeds; docs/cuda.md says how many have been tried.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "cache/slot_table.h"
#include "tests/gpu/interpreter/control.h"
#include "tests/gpu/interpreter/tests/small_model.h"

namespace moesaic {
namespace {

uint64_t Seeds() {
  const char* const asked = std::getenv("MOESAIC_PTX_SEEDS");
  return asked == nullptr ? 30 : std::strtoull(asked, nullptr, 10);
}

// Each resident expert has an address in the table, and nobody else has: all of them differ.
void ExpectTableOfResidents(ModelHarness& model) {
  const SlotTable* const table = model.slot_table();
  ASSERT_NE(table, nullptr);
  std::set<const std::byte*> slots;
  int64_t residents = 0;
  const auto layers = static_cast<int>(model.config().num_layers());
  const ExpertGrid grid(layers, static_cast<int>(model.config().num_experts()));
  for (int layer = 0; layer < layers; ++layer) {
    for (int expert = 0; expert < grid.num_experts(); ++expert) {
      const std::byte* const slot = table->row(layer)[expert];
      const ExpertId id = grid.Id(layer * grid.num_experts() + expert);
      EXPECT_EQ(slot != nullptr, model.experts().IsResident(id)) << layer << ", " << expert;
      if (slot == nullptr) continue;
      slots.insert(slot);
      ++residents;
    }
  }
  EXPECT_EQ(static_cast<int64_t>(slots.size()), residents);
  EXPECT_EQ(model.experts().resident(), residents);
}

class CudaModelSeedsTest : public testing::TestWithParam<SmallModel::Mode> {
 protected:
  void TearDown() override { ptx::SetSeed(0); }
};

TEST_P(CudaModelSeedsTest, AnswersDoNotDependOnTheOrderOfStreams) {
  const std::vector<float> expected = SmallModel(GetParam()).Answer();
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ptx::SetSeed(seed);
    SmallModel small(GetParam());
    ASSERT_EQ(small.Answer(), expected);
    if (GetParam().dense) ExpectTableOfResidents(small.model());
    ASSERT_EQ(ptx::TakeDefects(), std::vector<std::string>());
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaModelSeedsTest, testing::ValuesIn(SmallModel::kModes),
                         [](const auto& mode) { return mode.param.name; });

}  // namespace
}  // namespace moesaic
