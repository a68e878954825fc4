#include "core/base/aligned_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/units.h"

#ifndef MADV_POPULATE_WRITE  // kernel 5.14; the C library's headers may be older
#define MADV_POPULATE_WRITE 23
#endif

namespace moesaic {

AlignedBuffer::AlignedBuffer(size_t bytes, size_t alignment) : bytes_(bytes) {
  if (bytes == 0) return;
  if (bytes >= 2 * kHugePageBytes) alignment = kHugePageBytes;
  if (bytes > SIZE_MAX - alignment) {
    Fail(ErrorKind::kResourceExhausted, "cannot allocate {} bytes: the size overflows", bytes);
  }
  const size_t rounded_bytes = (bytes + alignment - 1) / alignment * alignment;
  data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded_bytes));
  if (data_ == nullptr) {
    Fail(
        ErrorKind::kResourceExhausted,
        "cannot allocate {}: the machine (or its cgroup) has too little memory; lower --memory, or "
        "--expert-memory and --kv-memory where they are given",
        FormatBytes(bytes));
  }
  // Best effort: without huge pages the same memory is only a little slower to stream.
  if (alignment == kHugePageBytes) madvise(data_, rounded_bytes, MADV_HUGEPAGE);
}

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

void AlignedBuffer::Zero() {
  if (data_ != nullptr) std::memset(data_, 0, bytes_);
}

void AlignedBuffer::GiveBack(size_t begin, size_t bytes) {
  CHECK(begin <= bytes_ && bytes <= bytes_ - begin);
  const size_t page = bytes_ >= 2 * kHugePageBytes ? kHugePageBytes : kPageBytes;
  const size_t first = (begin + page - 1) / page * page;
  const size_t last = std::min((begin + bytes + page - 1) / page * page, bytes_);
  // The allocator's own bytes are never among them: the last page is cut where the buffer ends.
  if (first < last) madvise(data_ + first, last / kPageBytes * kPageBytes - first, MADV_DONTNEED);
}

bool AlignedBuffer::Populate(size_t begin, size_t bytes) {
  CHECK(begin <= bytes_ && bytes <= bytes_ - begin);
  return PopulatePages(data_ + begin, bytes);
}

bool PopulatePages(std::byte* begin, size_t bytes) {
  if (bytes == 0) return true;
  // madvise takes whole pages; the first one may be partly somebody else's, which does no harm.
  const size_t before = reinterpret_cast<uintptr_t>(begin) % AlignedBuffer::kPageBytes;
  return madvise(begin - before, bytes + before, MADV_POPULATE_WRITE) == 0;
}

}  // namespace moesaic
