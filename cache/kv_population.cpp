#include "cache/kv_population.h"

#include <algorithm>

#include "core/base/aligned_buffer.h"

namespace moesaic {
namespace {

constexpr auto kPopulateBytes = static_cast<int64_t>(AlignedBuffer::kHugePageBytes);

int64_t Pieces(int64_t all, int64_t of_piece) { return (all + of_piece - 1) / of_piece; }

int64_t BlocksOfPiece(const KvMemory& memory) {
  int64_t most_bytes = 1;  // of a block in a layer
  for (const KvMemory::Layer& layer : memory.layers) {
    most_bytes = std::max(most_bytes, static_cast<int64_t>(layer.block_bytes));
  }
  return std::max<int64_t>(1, kPopulateBytes / most_bytes);
}

}  // namespace

KvPopulation::KvPopulation(const KvMemory& memory, int64_t blocks, std::span<std::byte> frames)
    : memory_(memory),
      frames_(frames),
      blocks_(blocks),
      layers_(std::ssize(memory.layers)),
      piece_blocks_(BlocksOfPiece(memory)),
      frame_pieces_(Pieces(std::ssize(frames), kPopulateBytes)),
      block_pieces_(Pieces(blocks, piece_blocks_)) {}

void KvPopulation::Next() {
  const int64_t piece = next_++;
  if (piece < frame_pieces_) {
    const int64_t begin = piece * kPopulateBytes;
    const int64_t bytes = std::min(kPopulateBytes, std::ssize(frames_) - begin);
    PopulatePages(frames_.data() + begin, static_cast<uint64_t>(bytes));
    return;
  }
  // The first blocks of all layers first: they are taken first.
  const int64_t of_blocks = piece - frame_pieces_;
  const int64_t first = of_blocks / layers_ * piece_blocks_;
  const KvMemory::Layer& layer = memory_.layers[static_cast<size_t>(of_blocks % layers_)];
  PopulatePages(
      layer.Block(static_cast<int32_t>(first)),
      static_cast<uint64_t>(std::min(piece_blocks_, blocks_ - first)) * layer.block_bytes);
}

}  // namespace moesaic
