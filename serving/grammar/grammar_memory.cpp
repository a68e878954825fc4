#include "serving/grammar/grammar_memory.h"

namespace moesaic {

GrammarMemory::Part::~Part() {
  if (memory_ != nullptr) memory_->used_bytes_.fetch_sub(bytes_);
}

bool GrammarMemory::Part::Take(uint64_t bytes) {
  if (!memory_->Take(bytes)) return false;
  bytes_ += bytes;
  return true;
}

bool GrammarMemory::Part::TakeEvicting(uint64_t bytes) {
  while (!Take(bytes)) {
    if (!memory_->Evict()) return false;
  }
  return true;
}

void GrammarMemory::SetEvict(std::function<bool()> evict) {
  MutexLock lock(mutex_);
  evict_ = std::move(evict);
}

bool GrammarMemory::Take(uint64_t bytes) {
  uint64_t used = used_bytes_.load();
  do {
    if (used > limit_bytes_ || bytes > limit_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  return true;
}

bool GrammarMemory::Evict() {
  std::function<bool()> evict;
  {
    MutexLock lock(mutex_);
    evict = evict_;
  }
  return evict && evict();
}

}  // namespace moesaic
