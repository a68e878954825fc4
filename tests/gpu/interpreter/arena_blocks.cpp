// Tells the interpreter which buffers the project's own arenas hand out, so that an access outside
// of one is found though it hits another of the same device. MemoryArena::Allocate and
// ArenaBlock::Reset are replaced at link time (--wrap, by their mangled names).
#include <optional>

#include "core/device/memory_arena.h"
#include "tests/gpu/interpreter/machine.h"

namespace moesaic::ptx {
// A member function takes the object as its first argument.
std::optional<ArenaBlock> RealAllocate(MemoryArena* arena, uint64_t bytes)  //
    asm("__real__ZN7moesaic11MemoryArena8AllocateEm");
std::optional<ArenaBlock> WrappedAllocate(MemoryArena* arena, uint64_t bytes)  //
    asm("__wrap__ZN7moesaic11MemoryArena8AllocateEm");
void RealReset(ArenaBlock* block) asm("__real__ZN7moesaic10ArenaBlock5ResetEv");
void WrappedReset(ArenaBlock* block) asm("__wrap__ZN7moesaic10ArenaBlock5ResetEv");

std::optional<ArenaBlock> WrappedAllocate(MemoryArena* arena, uint64_t bytes) {
  std::optional<ArenaBlock> block = RealAllocate(arena, bytes);
  if (!block || bytes == 0) return block;
  const auto extent =
      Machine::Get().memory().AddBlock(reinterpret_cast<uint64_t>(block->data()), bytes);
  if (extent && extent->kind == MemoryKind::kDevice) FillUnwritten(block->data(), bytes);
  return block;
}

void WrappedReset(ArenaBlock* block) {
  if (block->data() != nullptr) {
    Machine::Get().memory().RemoveBlock(reinterpret_cast<uint64_t>(block->data()));
  }
  RealReset(block);
}

}  // namespace moesaic::ptx
