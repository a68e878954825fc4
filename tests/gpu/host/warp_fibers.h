// Runs the blocks of a CUDA kernel on the host: every thread of a block is a fiber, and they take
// turns on the calling thread. A fiber runs until it waits for its warp or its block.
//
// Slow, and blind to races and to memory that a GPU would not see; what it shows is that every
// thread computes the right addresses, masks and operands. State is global: one kernel at a time.
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
// Shows `mine` to the other lanes of the warp and waits for theirs, which OfLane then gives until
// the next Exchange.
void Exchange(const Registers& mine);
const Registers& OfLane(int lane);
int Lane();

}  // namespace moesaic::host_gpu
