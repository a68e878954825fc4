// Memory that the kernel is asked for ahead of its use.

#include "core/base/aligned_buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

namespace moesaic {
namespace {

bool AllThere(AlignedBuffer& buffer, size_t begin, size_t bytes) {
  std::vector<unsigned char> there(bytes / AlignedBuffer::kPageBytes);
  EXPECT_EQ(mincore(buffer.data() + begin, bytes, there.data()), 0);
  return std::all_of(there.begin(), there.end(), [](unsigned char page) { return page & 1; });
}

TEST(AlignedBufferTest, PopulateBringsThePagesAndKeepsWhatIsThere) {
  constexpr size_t kPiece = AlignedBuffer::kHugePageBytes;
  AlignedBuffer buffer(4 * kPiece);
  buffer.as<uint8_t>()[kPiece] = 42;
  if (!buffer.Populate(kPiece, kPiece)) GTEST_SKIP() << "this kernel does not do it";
  EXPECT_TRUE(AllThere(buffer, kPiece, kPiece));
  // From within a page to within another.
  EXPECT_TRUE(buffer.Populate(100, kPiece));
  EXPECT_TRUE(AllThere(buffer, 0, 2 * kPiece));
  EXPECT_TRUE(buffer.Populate(buffer.bytes(), 0));
  EXPECT_TRUE(buffer.Populate(0, buffer.bytes()));
  EXPECT_TRUE(AllThere(buffer, 0, buffer.bytes()));
  EXPECT_EQ(buffer.as<uint8_t>()[kPiece], 42);
}

}  // namespace
}  // namespace moesaic
