#include "cache/kv_block_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

KvBlockPool::KvBlockPool(int64_t num_blocks, int64_t block_tokens, int64_t most_blocks)
    : block_tokens_(block_tokens),
      num_blocks_(num_blocks),
      open_end_(num_blocks),
      blocks_(static_cast<size_t>(std::max(num_blocks, most_blocks))),
      tokens_(blocks_.size() * static_cast<size_t>(block_tokens)),
      buckets_(std::bit_ceil(blocks_.size() * 2 + 1), kNone) {
  CHECK_GE(num_blocks, 0);
  CHECK_LT(this->most_blocks(), int64_t{1} << 31);
  CHECK_GT(block_tokens, 0);
  for (int64_t block = 0; block < num_blocks; ++block) PushFree(static_cast<int32_t>(block), false);
  for (size_t block = static_cast<size_t>(num_blocks); block < blocks_.size(); ++block) {
    Close(static_cast<int32_t>(block));
  }
}

// One that nobody has and that is in no list.
void KvBlockPool::Close(int32_t block) {
  Block& b = At(block);
  if (b.prefix != kEmptyPrefix) Unseal(block);
  b.closed = true;
  ++closed_count_;
}

void KvBlockPool::SetBlocks(int64_t num_blocks) {
  CHECK(0 <= num_blocks && num_blocks <= most_blocks());
  for (int64_t i = num_blocks; i < num_blocks_; ++i) {
    const auto block = static_cast<int32_t>(i);
    if (At(block).references > 0) continue;
    UnlinkFree(block);
    Close(block);
  }
  for (int64_t i = num_blocks_; i < num_blocks; ++i) {
    const auto block = static_cast<int32_t>(i);
    if (!std::exchange(At(block).closed, false)) continue;  // held since before it was to close
    --closed_count_;
    PushFree(block, false);
  }
  num_blocks_ = num_blocks;
  open_end_ = std::max(open_end_, num_blocks);
  while (open_end_ > num_blocks && blocks_[static_cast<size_t>(open_end_) - 1].closed) --open_end_;
}

KvBlockPool::Block& KvBlockPool::At(int32_t block) {
  CHECK_GE(block, 0);
  CHECK_LT(block, most_blocks());
  return blocks_[static_cast<size_t>(block)];
}

std::optional<int32_t> KvBlockPool::Allocate() {
  if (first_free_ == kNone) return std::nullopt;
  const int32_t block = first_free_;
  UnlinkFree(block);
  if (At(block).prefix != kEmptyPrefix) {
    Unseal(block);
    ++counters_.displaced;
  }
  At(block).references = 1;
  return block;
}

void KvBlockPool::Release(int32_t block) {
  Block& b = At(block);
  CHECK_GT(b.references, 0);
  if (--b.references > 0) return;
  if (block < num_blocks_) return PushFree(block, b.prefix == kEmptyPrefix);
  Close(block);
  while (open_end_ > num_blocks_ && blocks_[static_cast<size_t>(open_end_) - 1].closed) --open_end_;
}

std::optional<KvBlockPool::Match> KvBlockPool::Peek(PrefixId parent,
                                                    std::span<const int32_t> tokens,
                                                    size_t group) const {
  const int32_t block = Find(parent, tokens, group);
  if (block == kNone) return std::nullopt;
  return Match{block, At(block).prefix};
}

std::optional<KvBlockPool::Match> KvBlockPool::Lookup(PrefixId parent,
                                                      std::span<const int32_t> tokens,
                                                      size_t group) {
  ++counters_.lookups;
  const int32_t block = Find(parent, tokens, group);
  if (block == kNone) return std::nullopt;
  ++counters_.hits;
  Block& b = At(block);
  if (b.references++ == 0) {
    UnlinkFree(block);
    ++counters_.revived;
  }
  return Match{block, b.prefix};
}

PrefixId KvBlockPool::Seal(int32_t block, PrefixId parent, std::span<const int32_t> tokens,
                           size_t group) {
  Block& b = At(block);
  CHECK_GT(b.references, 0);
  CHECK_EQ(b.prefix, kEmptyPrefix);
  const int32_t twin = Find(parent, tokens, group);
  if (twin != kNone) return At(twin).prefix;
  SealAs(block, ++last_prefix_, parent, tokens, group);
  return b.prefix;
}

void KvBlockPool::SealAs(int32_t block, PrefixId prefix, PrefixId parent,
                         std::span<const int32_t> tokens, size_t group) {
  Block& b = At(block);
  std::copy(tokens.begin(), tokens.end(), Tokens(block).begin());
  b.parent = parent;
  b.group = group;
  b.prefix = prefix;
  size_t bucket = HomeBucket(parent, tokens, group);
  while (buckets_[bucket] != kNone) bucket = (bucket + 1) & (buckets_.size() - 1);
  buckets_[bucket] = block;
  ++sealed_count_;
}

bool KvBlockPool::Adopt(int32_t block, PrefixId prefix, PrefixId parent,
                        std::span<const int32_t> tokens) {
  CHECK_EQ(At(block).references, 0);
  CHECK_EQ(At(block).prefix, kEmptyPrefix);
  CHECK(prefix != kEmptyPrefix);
  if (Find(parent, tokens, 0) != kNone) return false;
  UnlinkFree(block);
  SealAs(block, prefix, parent, tokens, 0);
  PushFree(block, false);
  SkipTo(prefix);
  return true;
}

void KvBlockPool::Forget(int32_t block) {
  CHECK_GT(At(block).references, 0);
  if (At(block).prefix != kEmptyPrefix) Unseal(block);
}

std::span<int32_t> KvBlockPool::Tokens(int32_t block) {
  return {tokens_.data() + block * block_tokens_, static_cast<size_t>(block_tokens_)};
}

size_t KvBlockPool::HomeBucket(PrefixId parent, std::span<const int32_t> tokens,
                               size_t group) const {
  // FNV-1a over words; equality is checked on the tokens themselves.
  uint64_t hash = 0xcbf29ce484222325ull ^ parent ^ (static_cast<uint64_t>(group) << 32);
  for (const int32_t token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x100000001b3ull;
  }
  hash ^= hash >> 32;
  return static_cast<size_t>(hash) & (buckets_.size() - 1);
}

int32_t KvBlockPool::Find(PrefixId parent, std::span<const int32_t> tokens, size_t group) const {
  CHECK_EQ(static_cast<int64_t>(tokens.size()), block_tokens_);
  for (size_t bucket = HomeBucket(parent, tokens, group); buckets_[bucket] != kNone;
       bucket = (bucket + 1) & (buckets_.size() - 1)) {
    const int32_t block = buckets_[bucket];
    const std::span<const int32_t> held =
        std::span(tokens_).subspan(static_cast<size_t>(block * block_tokens_), tokens.size());
    const Block& b = At(block);
    if (b.parent == parent && b.group == group &&
        std::equal(held.begin(), held.end(), tokens.begin())) {
      return block;
    }
  }
  return kNone;
}

// Removal by shifting back: every later entry of the run moves into the hole when that keeps it
// reachable from its home (Knuth, TAOCP 3, 6.4, algorithm R).
void KvBlockPool::Unseal(int32_t block) {
  const size_t mask = buckets_.size() - 1;
  Block& b = At(block);
  size_t hole = HomeBucket(b.parent, Tokens(block), b.group);
  while (buckets_[hole] != block) hole = (hole + 1) & mask;
  for (size_t next = (hole + 1) & mask; buckets_[next] != kNone; next = (next + 1) & mask) {
    const int32_t other = buckets_[next];
    const size_t home = HomeBucket(At(other).parent, Tokens(other), At(other).group);
    if (((next - home) & mask) >= ((next - hole) & mask)) {
      buckets_[hole] = other;
      hole = next;
    }
  }
  buckets_[hole] = kNone;
  b.prefix = kEmptyPrefix;
  b.parent = kEmptyPrefix;
  --sealed_count_;
}

void KvBlockPool::PushFree(int32_t block, bool front) {
  Block& b = At(block);
  b.previous_free = front ? kNone : last_free_;
  b.next_free = front ? first_free_ : kNone;
  if (b.previous_free != kNone) At(b.previous_free).next_free = block;
  if (b.next_free != kNone) At(b.next_free).previous_free = block;
  if (b.previous_free == kNone) first_free_ = block;
  if (b.next_free == kNone) last_free_ = block;
  ++free_count_;
  if (b.prefix != kEmptyPrefix) ++cached_count_;
}

void KvBlockPool::UnlinkFree(int32_t block) {
  Block& b = At(block);
  (b.previous_free == kNone ? first_free_ : At(b.previous_free).next_free) = b.next_free;
  (b.next_free == kNone ? last_free_ : At(b.next_free).previous_free) = b.previous_free;
  b.previous_free = b.next_free = kNone;
  --free_count_;
  if (b.prefix != kEmptyPrefix) --cached_count_;
}

}  // namespace moesaic
