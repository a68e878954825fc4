// Block: runs the threads of one block of a kernel, warp by warp between barriers, and checks what
// they do: addresses, alignment, races, and that lanes are together where they must be.
//
// Lanes of a warp that have parted run in groups, the one that is furthest behind in the code
// first, so that they come together again where the code does. Nothing rests on that order: where
// lanes must be together is checked, and what is not ordered by a barrier counts as a race, whoever
// ran first.
//
// Owned and used by the thread that launches the kernel. It is used again for the next block of the
// same launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/gpu/interpreter/kernel.h"
#include "tests/gpu/interpreter/memory_map.h"
#include "tests/gpu/interpreter/race_check.h"
#include "tests/gpu/interpreter/warp.h"

namespace moesaic::ptx {

struct Dim {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

// The memory that the kernels of a GPU reach.
struct DeviceView {
  const MemoryMap& memory;
  int device = 0;
  uint32_t peers = 0;  // a bit for each other GPU whose memory it may access
};

class Block {
 public:
  Block(const Kernel& kernel, Dim grid, Dim threads, std::span<const std::byte> parameters,
        const DeviceView& view);

  // Runs the block at this place of the grid to its end. Throws Defect.
  void Run(Dim index);

  // The memory of an access, which is checked. `lane` is one of `warp`.
  std::byte* Access(Warp& warp, const Instruction& instruction, int lane, uint64_t address,
                    uint32_t bytes, bool write);
  // "(1, 0, 0)", for messages.
  std::string Name() const;
  const Dim& threads() const { return threads_; }

 private:
  void RunWarp(Warp& warp);
  void RunGroup(Warp& warp, uint32_t lanes, uint32_t pc, uint32_t others);
  void MeetAtWarp(Warp& warp);
  bool PassBarrier();
  void FillSpecialRegisters(Warp& warp);
  std::byte* AccessShared(Warp& warp, int lane, uint64_t address, uint32_t bytes, bool write);
  std::byte* AccessGlobal(Warp& warp, const Instruction& instruction, int lane, uint64_t address,
                          uint32_t bytes, bool write);
  const Extent& ExtentOf(Warp& warp, int lane, uint64_t address, uint32_t bytes, bool write);

  // What an instruction accessed last, which it mostly accesses again.
  struct Recent {
    uint64_t generation = 0;
    Extent extent;
  };

  const Kernel& kernel_;
  const Dim grid_;
  const Dim threads_;
  const std::span<const std::byte> parameters_;
  const DeviceView& view_;
  Dim index_;
  std::vector<Warp> warps_;
  std::vector<std::byte> shared_;
  std::vector<AccessCell> shared_cells_;  // one for each byte
  std::vector<Recent> recent_;            // by instruction
  RaceCheck races_;
};

// Runs all blocks of a grid, one after another. Throws Defect.
void RunKernel(const Kernel& kernel, Dim grid, Dim threads, std::span<const std::byte> parameters,
               const DeviceView& view);

}  // namespace moesaic::ptx
