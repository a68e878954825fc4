// Against values that `gguf` (pip) computed (tests/reference/make_gguf_fixtures.py).
#include "kernels/cpu/gguf_blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "core/base/file.h"
#include "core/io/gguf.h"

namespace moesaic {
namespace {

class GgufBlocksTest : public testing::Test {
 protected:
  std::vector<std::byte> Read(const TensorInfo& tensor) const {
    std::vector<std::byte> bytes(tensor.extent.bytes);
    EXPECT_EQ(file_.ReadAt(tensor.extent.offset, bytes), bytes.size());
    return bytes;
  }

  const File file_{std::filesystem::path(MOESAIC_TEST_DATA_DIR) / "gguf" / "types.gguf"};
  const GgufHeader header_ = ReadGgufHeader(file_);
};

TEST_F(GgufBlocksTest, ValuesOfEveryTypeAreThoseOfTheReference) {
  int types = 0;
  for (const auto& [name, tensor] : header_.tensors) {
    const auto values = header_.tensors.find(name + ".values");
    if (values == header_.tensors.end()) continue;
    SCOPED_TRACE(name);
    ++types;
    const GgufType* const type = FindGgufType(tensor.dtype_name);
    ASSERT_NE(type, nullptr);
    ASSERT_TRUE(HasGgufValues(*type));
    const std::vector<std::byte> expected = Read(values->second);
    std::vector<float> got(expected.size() / sizeof(float));
    DequantiseGguf(*type, Read(tensor), got);
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), expected.size()), 0);
  }
  EXPECT_EQ(types, 15);
}

// A part of a row is read as the whole is.
TEST_F(GgufBlocksTest, ABlockNeedsNoNeighbours) {
  const TensorInfo& tensor = header_.tensors.at("Q6_K");
  const GgufType& type = *FindGgufType("Q6_K");
  const std::vector<std::byte> blocks = Read(tensor);
  std::vector<float> whole(blocks.size() / static_cast<size_t>(type.block_bytes) * 256);
  DequantiseGguf(type, blocks, whole);
  std::vector<float> third(256);
  DequantiseGguf(type, std::span(blocks).subspan(2 * 210, 210), third);
  EXPECT_EQ(std::memcmp(third.data(), whole.data() + 512, 1024), 0);
}

TEST(GgufTypeTest, TypesWithoutValuesAreKnownByName) {
  for (const char* const name : {"IQ2_XXS", "IQ1_S", "TQ1_0", "NVFP4"}) {
    ASSERT_NE(FindGgufType(name), nullptr) << name;
    EXPECT_FALSE(HasGgufValues(*FindGgufType(name))) << name;
  }
}

}  // namespace
}  // namespace moesaic
