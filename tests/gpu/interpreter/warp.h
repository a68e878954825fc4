// Warp: the registers of 32 threads that run together, and where each of them is. Owned by its
// Block, and used by the thread that runs it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/gpu/interpreter/defect.h"
#include "tests/gpu/interpreter/kernel.h"

namespace moesaic::ptx {

class Block;

inline constexpr uint32_t kAllLanes = 0xffffffffu;

// Calls `f` with each lane whose bit is set.
template <typename F>
inline void ForLanes(uint32_t lanes, F&& f) {
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}
// The same for an `f` that reads and writes nothing but what is the lane's own, so that the
// compiler may use vectors.
template <typename F>
inline void ForLanesApart(uint32_t lanes, F&& f) {
  if (lanes != kAllLanes) return ForLanes(lanes, f);
#if !defined(__clang__)  // which has no such pragma; its own complains where it cannot
#pragma GCC ivdep
#endif
  for (int lane = 0; lane < kLanes; ++lane) f(lane);
}

// What a value of T lies in: registers of 8 and 16 bits are held in 32, extended by zeros.
template <typename T>
using Cell = std::conditional_t<sizeof(T) >= 4, T, uint32_t>;

class Warp {
 public:
  Warp(Block& block, const Kernel& kernel, int first_thread, int threads);

  Block& block() const { return *block_; }
  const Kernel& kernel() const { return *kernel_; }

  template <typename T>
  Cell<T>* To(const Operand& operand) {
    return reinterpret_cast<Cell<T>*>(registers_ + operand.offset);
  }
  template <typename T>
  const Cell<T>* From(const Operand& operand) const {
    const std::byte* base = operand.constant ? kernel_->constants.data() : registers_;
    return reinterpret_cast<const Cell<T>*>(base + operand.offset);
  }
  uint32_t& ToPredicate(const Operand& operand) { return *To<uint32_t>(operand); }
  uint32_t FromPredicate(const Operand& operand) const { return *From<uint32_t>(operand); }

  // A value as its register has it, extended by zeros.
  uint64_t Raw(const Operand& operand, int lane) const {
    return operand.lane_bytes == 8 ? From<uint64_t>(operand)[lane] : From<uint32_t>(operand)[lane];
  }
  void SetRaw(const Operand& operand, int lane, uint64_t value) {
    if (operand.lane_bytes == 8) {
      To<uint64_t>(operand)[lane] = value;
    } else {
      To<uint32_t>(operand)[lane] = static_cast<uint32_t>(value);
    }
  }

  std::byte* local(int lane) {
    return local_.data() + static_cast<size_t>(lane) * kernel_->local_bytes;
  }
  uint32_t thread(int lane) const { return static_cast<uint32_t>(first_thread_ + lane); }

  // Throws a Defect that says where: at the current instruction of this lane.
  [[noreturn]] void Fail(int lane, const std::string& what,
                         Defect::Kind kind = Defect::Kind::kOther) const;

  // Where its lanes are. Of a lane that runs `pc` is right when it stops.
  uint32_t pc[kLanes] = {};
  uint32_t live = 0;        // have not ended
  uint32_t at_warp = 0;     // wait at an instruction of the whole warp
  uint32_t at_barrier = 0;  // wait at a barrier of the block
  uint32_t interval = 0;    // counts the barriers of the warp (bar.warp.sync)
  uint32_t current = 0;     // the instruction that runs

  // For another block of the same kernel.
  void Restart(int threads);

 private:
  Block* block_;
  const Kernel* kernel_;
  int first_thread_;
  std::vector<uint64_t> storage_;
  std::byte* registers_;
  std::vector<std::byte> local_;
};

}  // namespace moesaic::ptx
