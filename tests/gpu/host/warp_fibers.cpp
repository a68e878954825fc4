#include "tests/gpu/host/warp_fibers.h"

#include <ucontext.h>

#include <bit>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/check.h"

namespace moesaic::host_gpu {

Index g_thread;
Index g_block;

namespace {

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = ~0U;
constexpr size_t kStackBytes = 256 * 1024;

// What __builtin_setjmp keeps: the frame, the stack and where to go on. It is much cheaper than
// setjmp of the C library, and a grid makes millions of switches.
struct Place {
  void* kept[5];
};

struct Fiber {
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  ucontext_t start = {};  // used once
  bool started = false;
  Place place;
  unsigned exchanges = 0;
};

// The lanes of a warp, a bit each. One in neither mask waits for its block, or has returned.
struct Warp {
  uint32_t ready = kAllLanes;
  uint32_t at_warp = 0;
};

// All below is global, as is what kernels share (__shared__): one kernel at a time.
std::mutex g_one_kernel;
std::vector<Fiber> g_fibers;  // [threads]
// [threads] each. Two, taking turns: a lane may already show the next while another reads this one.
std::vector<Registers> g_shown[2];
std::vector<Warp> g_warps;
int g_current = 0;
int g_at_block = 0;
int g_done = 0;
Place g_grid;  // where the block was begun
const std::function<void()>* g_kernel = nullptr;

Fiber& Current() { return g_fibers[static_cast<size_t>(g_current)]; }
Warp& CurrentWarp() { return g_warps[static_cast<size_t>(g_current / kWarp)]; }
uint32_t CurrentLane() { return 1U << (g_current % kWarp); }
int Threads() { return static_cast<int>(g_warps.size()) * kWarp; }

// The next lane that can go on: of the warp at hand while it has one, for their loads are near each
// other.
int NextReady() {
  const int warps = static_cast<int>(g_warps.size());
  for (int i = 0, warp = g_current / kWarp; i < warps;
       ++i, warp = warp + 1 == warps ? 0 : warp + 1) {
    const uint32_t ready = g_warps[static_cast<size_t>(warp)].ready;
    if (ready != 0) return warp * kWarp + std::countr_zero(ready);
  }
  CHECK(false);  // a deadlock: some returned, the others wait for them
  return 0;
}

[[noreturn]] __attribute__((noinline)) void Continue(int thread) {
  g_current = thread;
  g_thread.x = static_cast<unsigned>(thread);
  Fiber& fiber = Current();
  if (fiber.started) __builtin_longjmp(fiber.place.kept, 1);
  fiber.started = true;
  setcontext(&fiber.start);
  std::abort();  // setcontext returns only when it fails
}

// Not inlined, like all that returns twice: what a caller keeps in registers must not live across a
// jump.
__attribute__((noinline)) void GiveWay() {
  if (__builtin_setjmp(Current().place.kept) == 0) Continue(NextReady());
}

[[noreturn]] __attribute__((noinline)) void ContinueGrid() { __builtin_longjmp(g_grid.kept, 1); }

// A fiber lives on from block to block: to make one takes system calls.
void Entry() {
  for (;;) {
    (*g_kernel)();
    CurrentWarp().ready &= ~CurrentLane();
    if (++g_done < Threads()) {
      GiveWay();
    } else if (__builtin_setjmp(Current().place.kept) == 0) {
      ContinueGrid();
    }
  }
}

__attribute__((noinline)) void RunBlock() {
  g_done = 0;
  g_current = 0;
  for (Warp& warp : g_warps) warp = {};
  if (__builtin_setjmp(g_grid.kept) == 0) Continue(0);
}

void Prepare(Fiber& fiber) {
  if (fiber.started) return;
  CHECK_EQ(getcontext(&fiber.start), 0);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStackBytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, Entry, 0);
}

}  // namespace

void RunGrid(Index grid, int threads, const std::function<void()>& kernel) {
  CHECK_EQ(threads % kWarp, 0);
  const std::lock_guard lock(g_one_kernel);
  const auto count = static_cast<size_t>(threads);
  if (g_fibers.size() < count) {
    g_fibers.resize(count);
    for (std::vector<Registers>& shown : g_shown) shown.resize(count);
  }
  for (size_t i = 0; i < count; ++i) Prepare(g_fibers[i]);
  g_warps.resize(count / kWarp);
  g_kernel = &kernel;
  for (g_block.z = 0; g_block.z < grid.z; ++g_block.z) {
    for (g_block.y = 0; g_block.y < grid.y; ++g_block.y) {
      for (g_block.x = 0; g_block.x < grid.x; ++g_block.x) RunBlock();
    }
  }
}

void WaitForBlock() {
  CurrentWarp().ready &= ~CurrentLane();
  if (++g_at_block < Threads()) {
    GiveWay();
    return;
  }
  g_at_block = 0;
  for (Warp& warp : g_warps) warp = {};
}

void WaitForWarp() {
  Warp& warp = CurrentWarp();
  warp.ready &= ~CurrentLane();
  warp.at_warp |= CurrentLane();
  if (warp.at_warp == kAllLanes) {
    warp = {};
  } else {
    GiveWay();
  }
}

const Registers* Exchange(const Registers& mine) {
  const auto thread = static_cast<size_t>(g_current);
  std::vector<Registers>& shown = g_shown[++Current().exchanges % 2];
  shown[thread] = mine;
  WaitForWarp();
  return &shown[thread - thread % kWarp];
}

int Lane() { return g_current % kWarp; }

}  // namespace moesaic::host_gpu
