// RequestMemory: a budget for what requests take while they are parsed and tokenised, which is many
// times their bodies. Without one, a few bodies of the largest size would take gigabytes that no
// plan of the machine's memory knows.
//
// Thread contract: any thread. Leases must not outlive it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace moesaic {

class RequestMemory {
 public:
  // Measured as the growth of a server's resident peak by one request of 2 and of 15 MiB, less its
  // idle size: /tokenize with the strings of tokens 94 (text of rare characters, whose bytes are
  // tokens), template arguments of empty arrays 78, chat messages without content 48, one long word
  // 46, English 19, a prompt of token ids 28.
  static constexpr uint64_t kBytesPerBodyByte = 96;

  class Lease {
   public:
    Lease(RequestMemory& memory, uint64_t bytes) : memory_(&memory), bytes_(bytes) {}
    Lease(Lease&& other) noexcept
        : memory_(other.memory_), bytes_(std::exchange(other.bytes_, 0)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() { memory_->used_bytes_.fetch_sub(bytes_); }

   private:
    RequestMemory* memory_;
    uint64_t bytes_;
  };

  explicit RequestMemory(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // For as long as the request is worked on. Throws ApiError: 503 when others have too much of the
  // budget, 413 when the body alone needs more than all of it.
  Lease Reserve(size_t body_bytes) { return Reserve(body_bytes, kBytesPerBodyByte); }
  // For one that is no JSON.
  Lease Reserve(size_t body_bytes, uint64_t bytes_per_body_byte);
  uint64_t used_bytes() const { return used_bytes_.load(); }

 private:
  const uint64_t limit_bytes_;
  std::atomic<uint64_t> used_bytes_{0};
};

}  // namespace moesaic
