// GrammarMemory: the memory that a model's structured output has, and how much of it is in use: the
// library's tables of the vocabulary, compiled grammars, and how far sequences are in them.
//
// Shared by the compiler, its grammars and their matches, the last of which may outlive the others.
// Any thread may call; a Part is its owner's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/base/mutex.h"

namespace moesaic {

class GrammarMemory {
 public:
  // Of the memory: taken in pieces, given back whole.
  class Part {
   public:
    explicit Part(std::shared_ptr<GrammarMemory> memory) : memory_(std::move(memory)) {}
    Part(Part&& other) noexcept
        : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Part& operator=(Part&&) = delete;
    ~Part();

    // False: there is no room, and nothing has changed.
    [[nodiscard]] bool Take(uint64_t bytes);
    // Likewise, once what is kept for nobody has left.
    [[nodiscard]] bool TakeEvicting(uint64_t bytes);
    uint64_t bytes() const { return bytes_; }

   private:
    std::shared_ptr<GrammarMemory> memory_;
    uint64_t bytes_ = 0;
  };

  explicit GrammarMemory(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t used_bytes() const { return used_bytes_.load(); }
  // What lets go of something that nobody uses; false: there is nothing. Null: there never is.
  void SetEvict(std::function<bool()> evict) EXCLUDES(mutex_);

 private:
  bool Take(uint64_t bytes);
  bool Evict() EXCLUDES(mutex_);

  const uint64_t limit_bytes_;
  std::atomic<uint64_t> used_bytes_{0};
  Mutex mutex_;
  std::function<bool()> evict_ GUARDED_BY(mutex_);
};

}  // namespace moesaic
