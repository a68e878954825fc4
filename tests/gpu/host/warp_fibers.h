// Runs the blocks of a CUDA kernel on the host: every thread of a block is a fiber, and they take
// turns on the calling thread. A fiber runs until it waits for its warp or its block.
// Safe from any thread: kernels run one after the other.
//
// Slow, and blind to races and to memory that a GPU would not see; what it shows is that every
// thread computes the right addresses, masks and operands.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

namespace moesaic::host_gpu {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

extern Index g_thread;
extern Index g_block;

void RunGrid(Index grid, int threads, const std::function<void()>& kernel);

// Aborts when a thread of the block (of the warp) has returned before: on a GPU the others would
// wait for it for ever, or exchange rubbish.
void WaitForBlock();
void WaitForWarp();

using Registers = std::array<uint32_t, 6>;
// Shows `mine` to the other lanes of the warp, waits for theirs and returns them, [32], which stay
// until the next Exchange.
const Registers* Exchange(const Registers& mine);
int Lane();

}  // namespace moesaic::host_gpu
