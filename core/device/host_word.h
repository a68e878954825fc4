// Words of host memory that threads and devices signal each other by (Stream::WaitValue,
// Stream::WriteValue, kernels): who sees a value sees what was written before it.
#pragma once

#include <cstdint>

namespace moesaic {

inline uint32_t LoadWord(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline void StoreWord(uint32_t* word, uint32_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

}  // namespace moesaic
