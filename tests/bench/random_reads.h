// What benches of readers share: a file whose blocks tell where they are, read at random places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/io/async_reader.h"

namespace moesaic {

constexpr uint64_t kStampBytes = 4096;  // each 4 KiB begins with its own offset

// `bytes` lie at `offset` of the file.
inline void StampBlocks(uint64_t offset, std::span<std::byte> bytes) {
  for (uint64_t i = 0; i < bytes.size(); i += kStampBytes) {
    const uint64_t stamp = offset + i;
    std::memcpy(bytes.data() + i, &stamp, sizeof(stamp));
  }
}

// Keeps `depth` reads of block_bytes (a multiple of kStampBytes) in flight, at random block-aligned
// places of the reader's first file. The last stamp of every block is checked: the reads have
// happened.
class RandomReads {
 public:
  // The reader outlives it. Takes the memory, so that Run's time is that of reading.
  RandomReads(AsyncReader& reader, uint64_t file_bytes, uint32_t block_bytes, int depth)
      : reader_(reader),
        blocks_(file_bytes / block_bytes),
        block_bytes_(block_bytes),
        buffers_(static_cast<size_t>(depth) * block_bytes),
        offsets_(static_cast<size_t>(depth)) {
    buffers_.Zero();
  }

  // Begins reads for so many seconds, and waits for the last. Returns the bytes that were read.
  uint64_t Run(double seconds, std::mt19937_64& random) {
    const Stopwatch watch;
    uint64_t bytes = 0;
    size_t in_flight = 0;
    for (; in_flight < offsets_.size(); ++in_flight) Submit(in_flight, random());
    std::vector<ReadCompletion> completions;
    while (in_flight > 0) {
      completions.clear();
      reader_.Wait(completions, -1);
      const bool go_on = watch.seconds() < seconds;
      for (const ReadCompletion& completion : completions) {
        CHECK_EQ(completion.result, static_cast<int64_t>(block_bytes_));
        uint64_t stamp = 0;
        const std::byte* const last =
            buffers_.data() + (completion.tag + 1) * block_bytes_ - kStampBytes;
        std::memcpy(&stamp, last, sizeof(stamp));
        CHECK_EQ(stamp, offsets_[completion.tag] + block_bytes_ - kStampBytes);
        bytes += block_bytes_;
        if (go_on) {
          Submit(completion.tag, random());
        } else {
          --in_flight;
        }
      }
    }
    return bytes;
  }

 private:
  void Submit(size_t slot, uint64_t place) {
    offsets_[slot] = place % blocks_ * block_bytes_;
    reader_.Submit({0, offsets_[slot], block_bytes_, buffers_.data() + slot * block_bytes_, slot});
  }

  AsyncReader& reader_;
  const uint64_t blocks_;
  const uint32_t block_bytes_;
  AlignedBuffer buffers_;
  std::vector<uint64_t> offsets_;  // of the read of each slot
};

}  // namespace moesaic
