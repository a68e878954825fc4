// What is asked of memory is what the threads of a node will read.
#include "serving/model/numa_slices.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/product_grid.h"
#include "serving/model/expert_sources.h"
#include "tests/core/config/made_up_layers.h"

namespace moesaic {
namespace {

TEST(NumaSlicesTest, SlicesOfEverySectionLieOnTheirNodes) {
  ModelConfig config;
  config.hidden_size = 520;  // 33 panels: slices of 8, 16 and 9
  config.layers.push_back(SparseLayer(4, 1, 384));
  const int nodes[] = {4, 0, 7};
  for (const WeightType type : {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    const ExpertLayout layout = MakeCpuExpertLayout(config, type);
    const std::vector<NodeStretch> stretches = SlotStretches(layout, nodes);
    ASSERT_EQ(stretches.size(), 9u);
    for (size_t s = 0; s < 3; ++s) {
      const ExpertSection& section = layout.sections[s];
      const PackedMatrix matrix = {nullptr, type, section.rows, section.cols};
      uint64_t at = section.offset;
      for (int i = 0; i < 3; ++i) {
        const NodeStretch& stretch = stretches[s * 3 + static_cast<size_t>(i)];
        const PanelRange slice = PanelSlice(matrix.panels(), 3, i);
        EXPECT_EQ(stretch.node, nodes[i]);
        EXPECT_EQ(stretch.begin_bytes, at);
        EXPECT_EQ(stretch.end_bytes - stretch.begin_bytes,
                  static_cast<uint64_t>((slice.end - slice.begin) * matrix.panel_bytes()));
        at = stretch.end_bytes;
      }
      EXPECT_EQ(at, section.offset + section.bytes);
    }
    EXPECT_TRUE(SlotStretches(layout, {}).empty());
    EXPECT_TRUE(SlotStretches(layout, {nodes, 1}).empty());
  }
}

TEST(NumaSlicesTest, MatricesLieBehindEachOther) {
  AlignedBuffer memory(40000);
  const PackedMatrix matrices[] = {{memory.data() + 128, WeightType::kBf16, 10, 64},
                                   {memory.data() + 2176, WeightType::kBf16, 256, 64}};
  const int nodes[] = {0, 1};
  // A matrix of one panel has one slice; the empty one is left out.
  EXPECT_EQ(MatrixStretches(matrices, memory.data(), nodes),
            (std::vector<NodeStretch>{{128, 2176, 1}, {2176, 18560, 0}, {18560, 34944, 1}}));
}

}  // namespace
}  // namespace moesaic
