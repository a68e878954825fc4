#include "cache/kv_block_copies.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <thread>
#include <utility>

#include "cache/kv_store_format.h"
#include "core/base/check.h"

namespace moesaic {
namespace {

// Of a call: about a millisecond of one thread.
constexpr uint64_t kBatchBytes = uint64_t{4} << 20;

int CopyThreads(int most) {
  return static_cast<int>(
      std::clamp(std::thread::hardware_concurrency(), 1u, static_cast<unsigned>(most)));
}

}  // namespace

bool ReadIfCached(int file, uint64_t offset, std::span<const iovec> to) {
  while (!to.empty()) {
    const std::span<const iovec> now = to.first(std::min<size_t>(to.size(), IOV_MAX));
    ssize_t bytes = 0;
    for (const iovec& part : now) bytes += static_cast<ssize_t>(part.iov_len);
    ssize_t done = 0;
    do {
      done = preadv2(file, now.data(), static_cast<int>(now.size()), static_cast<off_t>(offset),
                     RWF_NOWAIT);
    } while (done < 0 && errno == EINTR);
    if (done != bytes) return false;
    offset += static_cast<uint64_t>(bytes);
    to = to.subspan(now.size());
  }
  return true;
}

KvBlockCopies::KvBlockCopies(const KvMemory& memory)
    : memory_(memory),
      batch_(std::max<uint64_t>(kBatchBytes / memory.block_bytes(), kMostThreads)),
      threads_(CopyThreads(kMostThreads)) {}

void KvBlockCopies::ForEach(size_t count, FunctionRef<void(size_t)> body) {
  threads_.ParallelFor(static_cast<int64_t>(count), [&](int64_t index, int worker) {
    if (worker > 0 && !std::exchange(named_[static_cast<size_t>(worker)], true)) {
      pthread_setname_np(pthread_self(), "kv-copy");
    }
    body(static_cast<size_t>(index));
  });
}

void KvBlockCopies::Copy(std::span<const FromMemory> blocks) {
  ForEach(blocks.size(), [&](size_t i) {
    const Place& to = blocks[i].to;
    if (to.state_slot >= 0) {
      memory_.ScatterState(blocks[i].bytes, to.state_slot, to.part);
    } else {
      memory_.Scatter(blocks[i].bytes, to.blocks);
    }
  });
}

size_t KvBlockCopies::CopyCached(int file, std::span<const FromFile> blocks,
                                 const ReadCached& read) {
  // Numbers are handed out in order: behind the first one that is not there none is begun.
  std::atomic<size_t> there{blocks.size()};
  ForEach(blocks.size(), [&](size_t i) {
    if (i > there.load(std::memory_order_relaxed)) return;
    if (CopyOneCached(file, blocks[i], read)) return;
    size_t first = there.load(std::memory_order_relaxed);
    while (i < first && !there.compare_exchange_weak(first, i, std::memory_order_relaxed)) {
    }
  });
  return there.load(std::memory_order_relaxed);
}

bool KvBlockCopies::CopyOneCached(int file, const FromFile& block, const ReadCached& read) const {
  std::vector<iovec> places;
  places.reserve(memory_.layers.size());
  for (const KvMemory::Layer& layer : memory_.layers) {
    CHECK_GE(block.to[layer.group], 0);
    places.push_back({layer.Block(block.to[layer.group]), layer.block_bytes});
  }
  return read(file, block.offset, places) && KvBlockChecksum(block.id, places) == block.checksum;
}

}  // namespace moesaic
