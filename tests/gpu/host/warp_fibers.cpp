#include "tests/gpu/host/warp_fibers.h"

#include <setjmp.h>
#include <ucontext.h>

#include <memory>
#include <mutex>
#include <vector>

#include "core/base/check.h"

namespace moesaic::host_gpu {

Index g_thread;
Index g_block;

namespace {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 256 * 1024;

enum class State { kReady, kAtBlock, kAtWarp, kDone };

struct Fiber {
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  ucontext_t start = {};  // used once; jumps are much cheaper than switching contexts
  jmp_buf place;
  bool started = false;
  State state = State::kReady;
  unsigned exchanges = 0;
};

// All below is global, as is what kernels share (__shared__): one kernel at a time.
std::mutex g_one_kernel;
std::vector<Fiber> g_fibers;
// [threads] each. Two, taking turns: a lane may already show the next while another reads this one.
std::vector<Registers> g_shown[2];
int g_current = 0;
jmp_buf g_scheduler;
const std::function<void()>* g_kernel = nullptr;

// Not inlined, like all that returns twice: what a caller keeps in registers must not live across a
// jump.
__attribute__((noinline)) void Leave(State state) {
  Fiber& fiber = g_fibers[static_cast<size_t>(g_current)];
  fiber.state = state;
  if (_setjmp(fiber.place) == 0) _longjmp(g_scheduler, 1);
}

// A fiber lives on from block to block: to make one takes system calls.
void Entry() {
  for (;;) {
    (*g_kernel)();
    Leave(State::kDone);
  }
}

__attribute__((noinline)) void Resume(int thread) {
  Fiber& fiber = g_fibers[static_cast<size_t>(thread)];
  g_current = thread;
  g_thread.x = static_cast<unsigned>(thread);
  if (_setjmp(g_scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

int Count(int begin, int end, State state) {
  int count = 0;
  for (int i = begin; i < end; ++i) count += g_fibers[static_cast<size_t>(i)].state == state;
  return count;
}

// Sets those of [begin, end) free that wait in `state`, when all do. Whether any were.
bool Release(int begin, int end, State state) {
  const int waiting = Count(begin, end, state);
  if (waiting == 0) return false;
  if (waiting + Count(begin, end, State::kDone) < end - begin) return false;
  CHECK_EQ(waiting, end - begin);  // some returned, the others wait for them
  for (int i = begin; i < end; ++i) g_fibers[static_cast<size_t>(i)].state = State::kReady;
  return true;
}

__attribute__((noinline)) void Prepare(Fiber& fiber) {
  fiber.state = State::kReady;
  fiber.exchanges = 0;
  if (fiber.started) return;
  CHECK_EQ(getcontext(&fiber.start), 0);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStackBytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, Entry, 0);
}

void RunBlock(int threads) {
  for (int i = 0; i < threads; ++i) Prepare(g_fibers[static_cast<size_t>(i)]);
  while (Count(0, threads, State::kDone) < threads) {
    bool progress = false;
    for (int i = 0; i < threads; ++i) {
      if (g_fibers[static_cast<size_t>(i)].state != State::kReady) continue;
      Resume(i);
      progress = true;
    }
    for (int warp = 0; warp < threads; warp += kWarp) {
      progress |= Release(warp, warp + kWarp, State::kAtWarp);
    }
    progress |= Release(0, threads, State::kAtBlock);
    CHECK(progress);  // a deadlock
  }
}

}  // namespace

void RunGrid(Index grid, int threads, const std::function<void()>& kernel) {
  CHECK_EQ(threads % kWarp, 0);
  const std::lock_guard lock(g_one_kernel);
  if (g_fibers.size() < static_cast<size_t>(threads)) {
    g_fibers.resize(static_cast<size_t>(threads));
    for (std::vector<Registers>& shown : g_shown) shown.resize(static_cast<size_t>(threads));
  }
  g_kernel = &kernel;
  for (g_block.z = 0; g_block.z < grid.z; ++g_block.z) {
    for (g_block.y = 0; g_block.y < grid.y; ++g_block.y) {
      for (g_block.x = 0; g_block.x < grid.x; ++g_block.x) RunBlock(threads);
    }
  }
}

void WaitForBlock() { Leave(State::kAtBlock); }
void WaitForWarp() { Leave(State::kAtWarp); }

const Registers* Exchange(const Registers& mine) {
  Fiber& fiber = g_fibers[static_cast<size_t>(g_current)];
  std::vector<Registers>& shown = g_shown[++fiber.exchanges % 2];
  shown[static_cast<size_t>(g_current)] = mine;
  WaitForWarp();
  return &shown[static_cast<size_t>(g_current - g_current % kWarp)];
}

int Lane() { return g_current % kWarp; }

}  // namespace moesaic::host_gpu
