// Blocks that come into the pools' memory without a copy between, several at a time, and the memory
// that is touched before.
#include "cache/kv_block_copies.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cache/kv_population.h"
#include "cache/kv_store_file.h"
#include "core/base/aligned_buffer.h"
#include "tests/cache/kv_store_rig.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

// More layers than are read at once, of two sizes and two groups.
class KvBlockCopiesTest : public testing::Test {
 protected:
  static constexpr int kBlocks = 40;

  void SetUp() override {
    for (size_t layer = 0; layer < 150; ++layer) {
      const uint64_t bytes = layer % 3 == 0 ? 6400 : 96;
      layers_.emplace_back(bytes * kBlocks);
      memory_.layers.push_back({layers_.back().data(), bytes, layer % 2});
    }
    shape_ = {.key = "model", .block_tokens = 4, .block_bytes = memory_.block_bytes()};
    file_ = std::make_unique<KvStoreFile>(place_.path() / "store", shape_, uint64_t{64} << 20);
    for (int32_t slot = 0; slot < kBlocks; ++slot) {
      const std::vector<std::byte> bytes = Content(slot);
      file_->WriteBlock(slot, bytes);
      const PrefixId id = 100 + static_cast<PrefixId>(slot);
      blocks_.push_back({static_cast<uint64_t>(slot) * KvStoreFile::SlotBytes(shape_),
                         id,
                         KvBlockChecksum(id, bytes),
                         {kBlocks - 1 - slot, slot}});
    }
  }
  std::vector<std::byte> Content(int32_t slot) const {
    std::mt19937 random(static_cast<uint32_t>(slot));
    std::vector<std::byte> bytes(shape_.block_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }
  void ExpectFirst(size_t count) const {
    std::vector<std::byte> bytes(shape_.block_bytes);
    for (size_t i = 0; i < count; ++i) {
      memory_.Gather(blocks_[i].to, bytes);
      EXPECT_EQ(bytes, Content(static_cast<int32_t>(i))) << i;
    }
  }

  TempDir place_;
  std::vector<std::vector<std::byte>> layers_;
  KvMemory memory_;
  KvStoreShape shape_;
  std::unique_ptr<KvStoreFile> file_;
  std::vector<KvBlockCopies::FromFile> blocks_;
};

TEST_F(KvBlockCopiesTest, TheFirstThatIsNotCachedIsTheEnd) {
  KvBlockCopies copies(memory_);
  for (const size_t there : {blocks_.size(), size_t{0}, size_t{1}, size_t{17}}) {
    const auto read = [&](int file, uint64_t offset, std::span<const iovec> to) {
      return offset < there * KvStoreFile::SlotBytes(shape_) && ReadPieces(file, offset, to);
    };
    EXPECT_EQ(copies.CopyCached(file_->blocks(), blocks_, read), there);
    ExpectFirst(there);
  }
}

// A later one that fails after an earlier one, on another thread, hides nothing.
TEST_F(KvBlockCopiesTest, TheFirstOfThoseThatFailIsTheEnd) {
  KvBlockCopies copies(memory_);
  const uint64_t slot_bytes = KvStoreFile::SlotBytes(shape_);
  std::atomic<bool> later_began{false};
  std::atomic<bool> earlier_failed{false};
  // Waits for the other block's thread, which there may be none of.
  const auto wait_for = [](const std::atomic<bool>& flag) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    while (!flag && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  };
  const auto read = [&](int file, uint64_t offset, std::span<const iovec> to) {
    if (offset == slot_bytes) {
      wait_for(later_began);
      earlier_failed = true;
      return false;
    }
    if (offset == 2 * slot_bytes) {
      later_began = true;
      wait_for(earlier_failed);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // until that is known
      return false;
    }
    return ReadPieces(file, offset, to);
  };
  EXPECT_EQ(copies.CopyCached(file_->blocks(), blocks_, read), 1u);
  ExpectFirst(1);
}

TEST_F(KvBlockCopiesTest, DamagedBlocksAreNotThere) {
  KvBlockCopies copies(memory_);
  std::vector<std::byte> bytes = Content(9);
  bytes.back() ^= std::byte{1};
  file_->WriteBlock(9, bytes);
  EXPECT_EQ(copies.CopyCached(file_->blocks(), blocks_, ReadPieces), 9u);
  ExpectFirst(9);
}

// More pieces than a call takes, and a file that ends before they are full.
TEST_F(KvBlockCopiesTest, TheSystemsCacheIsReadWholeOrNotAtAll) {
  const uint64_t bytes = 30 * KvStoreFile::SlotBytes(shape_);
  std::vector<std::byte> whole(bytes);
  iovec one = {whole.data(), whole.size()};
  ASSERT_TRUE(ReadPieces(file_->blocks(), 0, {&one, 1}));  // and it is cached, but for bad luck
  std::vector<std::byte> read(bytes);
  std::vector<iovec> pieces;
  for (uint64_t begin = 0; begin < bytes; begin += 100) {
    pieces.push_back({read.data() + begin, std::min<uint64_t>(100, bytes - begin)});
  }
  ASSERT_GT(pieces.size(), 2048u);
  if (ReadIfCached(file_->blocks(), 0, pieces)) {
    EXPECT_EQ(read, whole);
  }
  EXPECT_FALSE(ReadIfCached(file_->blocks(), kBlocks * KvStoreFile::SlotBytes(shape_) - 50,
                            std::span(pieces).first(1)));
  EXPECT_FALSE(ReadIfCached(-1, 0, pieces));
}

TEST(KvPopulationTest, FramesAndTheFirstBlocksAreTouchedAndKeepTheirBytes) {
  constexpr int64_t kBlocks = 300;
  constexpr uint64_t kBlockBytes = 16384;
  constexpr size_t kBytes = 2 * kBlocks * kBlockBytes;
  // Mapped, as what an allocator has had before would be there already.
  const auto unmap = [](void* begin) { munmap(begin, kBytes); };
  void* const mapped =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::unique_ptr<void, decltype(unmap)> owner(mapped, unmap);
  auto* const layers = static_cast<std::byte*>(mapped);
  AlignedBuffer frames(kBlocks * 4096);
  KvMemory memory;
  memory.layers = {{layers, kBlockBytes, 0}, {layers + kBlocks * kBlockBytes, kBlockBytes, 0}};
  if (!frames.Populate(0, 4096)) {
    GTEST_SKIP() << "the kernel has no MADV_POPULATE_WRITE";
  }
  madvise(layers, kBytes, MADV_NOHUGEPAGE);  // else pages behind come, too
  frames.data()[70] = std::byte{7};
  layers[5] = std::byte{5};
  const auto resident = [](const std::byte* begin, size_t bytes) {
    std::vector<unsigned char> pages(bytes / 4096);
    EXPECT_EQ(mincore(const_cast<std::byte*>(begin), bytes, pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
  };
  KvPopulation population(memory, 130, frames.span());
  int pieces = 0;
  for (; !population.done(); ++pieces) population.Next();
  EXPECT_EQ(pieces, 1 + 2 * 2);  // 128 blocks of a layer are a huge page
  EXPECT_EQ(resident(frames.data(), frames.bytes()), kBlocks);
  for (size_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(resident(memory.layers[layer].blocks, 130 * kBlockBytes), 130 * 4);
    EXPECT_EQ(resident(memory.layers[layer].Block(130), 170 * kBlockBytes), 0);
  }
  EXPECT_EQ(frames.data()[70], std::byte{7});
  EXPECT_EQ(layers[5], std::byte{5});
}

}  // namespace
}  // namespace moesaic
