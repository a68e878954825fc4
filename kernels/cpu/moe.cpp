#include "kernels/cpu/moe.h"

#include <algorithm>
#include <new>

#include "core/base/check.h"

namespace moesaic {
namespace {

// A loop is cut into about this many tasks per thread: enough that a slow thread costs a small part
// of the loop, few enough that handing them out costs nothing.
constexpr int64_t kTasksPerThread = 4;
// Below this many multiply-adds (about 2 us on one core) a task costs more to hand out than to run.
constexpr int64_t kMinTaskWork = 64 * 1024;
// Reading a weight costs about as much as this many multiply-adds with it (AVX-512, weights in
// memory), so an expert with one row is not much cheaper than one with this many.
constexpr int64_t kReadCost = 8;
// Rows are cut only where there are many: a block of rows reads all the weights.
constexpr int64_t kBlockRows = 192;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One product cut into row blocks times panel chunks.
struct Grid {
  int64_t rows = 0;
  int64_t panels = 0;
  int64_t row_blocks = 0;
  int64_t panel_chunk = 0;
  int64_t panel_chunks = 0;

  int64_t tasks() const { return row_blocks * panel_chunks; }
  int64_t row_begin(int64_t block) const { return block * rows / row_blocks; }
};

int64_t ProductWork(int64_t rows, int64_t panels, int64_t k) {
  return (rows + kReadCost) * panels * kPanelOutputs * k;
}

// Tasks of about `task_work`; their panels begin at a multiple of `panel_unit`.
Grid MakeGrid(int64_t rows, int64_t panels, int64_t k, int64_t task_work, int64_t panel_unit = 1) {
  Grid grid;
  grid.rows = rows;
  grid.panels = panels;
  if (rows == 0 || panels == 0) return grid;
  grid.row_blocks = CeilDiv(rows, kBlockRows);
  const int64_t panel_work =
      std::max<int64_t>(1, ProductWork(CeilDiv(rows, grid.row_blocks), 1, k));
  grid.panel_chunk = std::clamp<int64_t>(task_work / panel_work, 1, panels);
  grid.panel_chunks = CeilDiv(panels, grid.panel_chunk);
  grid.panel_chunk = CeilDiv(CeilDiv(panels, grid.panel_chunks), panel_unit) * panel_unit;
  grid.panel_chunks = CeilDiv(panels, grid.panel_chunk);
  return grid;
}

// Two panels of gate and up are one group of integer activations.
Grid GateUpGrid(int64_t rows, const PackedMatrix& gate, int64_t task_work) {
  return MakeGrid(rows, gate.panels(), 2 * gate.k, task_work, IsQuantized(gate.type) ? 2 : 1);
}

int64_t TaskWork(const ThreadPool& pool, int64_t total_work) {
  return std::max(kMinTaskWork, total_work / (pool.threads() * kTasksPerThread));
}

struct Share {
  int64_t row_begin, rows, panel_begin, panel_end;
};

// Consecutive tasks of a grid take consecutive panels of the same rows.
Share ShareOf(const Grid& grid, int64_t task) {
  const int64_t block = task / grid.panel_chunks;
  const int64_t panel = task % grid.panel_chunks * grid.panel_chunk;
  const int64_t first = grid.row_begin(block);
  return {first, grid.row_begin(block + 1) - first, panel,
          std::min(panel + grid.panel_chunk, grid.panels)};
}

// Args of one share: rows of a gathered product move in the index, of a plain one in the base
// pointer.
void TakeRows(const Share& share, const std::byte*& x, int64_t x_stride_bytes,
              const int32_t*& x_rows) {
  if (x_rows != nullptr) {
    x_rows += share.row_begin;
  } else {
    x += share.row_begin * x_stride_bytes;
  }
}

void RunShare(const CpuKernels& kernels, MatmulArgs args, const Share& share) {
  TakeRows(share, args.x, args.x_stride_bytes, args.x_rows);
  if (args.y_rows != nullptr) {
    args.y_rows += share.row_begin;
  } else {
    args.y += share.row_begin * args.y_stride;
  }
  args.m = share.rows;
  args.panel_begin = share.panel_begin;
  args.panel_end = share.panel_end;
  kernels.ProductsFor(args.w.type, args.m).matmul(args);
}

void RunShare(const CpuKernels& kernels, GateUpArgs args, const Share& share) {
  TakeRows(share, args.x, args.x_stride_bytes, args.x_rows);
  args.h += share.row_begin * args.h_stride_bytes;
  args.m = share.rows;
  args.panel_begin = share.panel_begin;
  args.panel_end = share.panel_end;
  kernels.ProductsFor(args.gate.type, args.m).gate_up(args);
}

// One expert of a call: where its tasks begin in the loop, and its rows of the hidden activations.
struct ExpertPlan {
  const ExpertWork* work;
  int64_t first_task;
  std::byte* hidden;
  int64_t hidden_stride_bytes;
  Grid grid;
};

const ExpertPlan& OwnerOf(std::span<const ExpertPlan> plans, int64_t task) {
  const auto after = [](int64_t value, const ExpertPlan& plan) { return value < plan.first_task; };
  return *(std::upper_bound(plans.begin(), plans.end(), task, after) - 1);
}

int64_t HiddenRowBytes(const CpuKernels& kernels, const ExpertWork& e) {
  return ActivationRowBytes(ActivationTypeOf(kernels.numerics, e.gate.type), e.gate.n);
}

// Every expert that runs has a row, so the plans of a call never outnumber its rows.
int64_t PlanBytes(int64_t max_rows) {
  return CeilDiv(max_rows * static_cast<int64_t>(sizeof(ExpertPlan)), 64) * 64;
}

}  // namespace

void MoeWorkspace::Reserve(ActivationType type, int64_t max_rows, int64_t max_intermediate) {
  const int64_t needed =
      PlanBytes(max_rows) + max_rows * ActivationRowBytes(type, max_intermediate);
  if (bytes() < needed) hidden_ = AlignedBuffer(static_cast<size_t>(needed));
}

void RunExperts(ThreadPool& pool, const CpuKernels& kernels, const std::byte* x,
                int64_t x_stride_bytes, std::span<const ExpertWork> experts, float* slot_out,
                MoeWorkspace& workspace) {
  int64_t rows = 0;
  int64_t gate_up_work = 0;
  int64_t down_work = 0;
  int64_t hidden_bytes = 0;
  for (const ExpertWork& e : experts) {
    if (e.count == 0) continue;
    CHECK_EQ(e.gate.n, e.up.n);
    CHECK_EQ(e.gate.k, e.up.k);
    CHECK_EQ(e.gate.n, e.down.k);
    CHECK(e.gate.type == e.up.type);
    CHECK(IsQuantized(e.gate.type) == IsQuantized(e.down.type));
    rows += e.count;
    gate_up_work += ProductWork(e.count, e.gate.panels() + e.up.panels(), e.gate.k);
    down_work += ProductWork(e.count, e.down.panels(), e.down.k);
    hidden_bytes += e.count * HiddenRowBytes(kernels, e);
  }
  if (rows == 0) return;
  CHECK_LE(PlanBytes(rows) + hidden_bytes, workspace.bytes());

  auto* const memory = workspace.hidden().as<ExpertPlan>();
  std::byte* hidden = workspace.hidden().data() + PlanBytes(rows);
  int64_t tasks = 0;
  int64_t count = 0;
  const int64_t gate_up_task = TaskWork(pool, gate_up_work);
  for (const ExpertWork& e : experts) {
    if (e.count == 0) continue;
    const int64_t stride = HiddenRowBytes(kernels, e);
    ExpertPlan* const plan = new (memory + count++)
        ExpertPlan{&e, tasks, hidden, stride, GateUpGrid(e.count, e.gate, gate_up_task)};
    tasks += plan->grid.tasks();
    hidden += e.count * stride;
  }
  const std::span<const ExpertPlan> plans(memory, static_cast<size_t>(count));

  pool.ParallelFor(tasks, [&](int64_t task, int) {
    const ExpertPlan& plan = OwnerOf(plans, task);
    const ExpertWork& e = *plan.work;
    RunShare(kernels,
             GateUpArgs{.x = x,
                        .x_stride_bytes = x_stride_bytes,
                        .x_rows = e.token_rows,
                        .gate = e.gate,
                        .up = e.up,
                        .h = plan.hidden,
                        .h_stride_bytes = plan.hidden_stride_bytes},
             ShareOf(plan.grid, task - plan.first_task));
  });

  tasks = 0;
  const int64_t down_task = TaskWork(pool, down_work);
  for (int64_t i = 0; i < count; ++i) {
    const ExpertWork& e = *memory[i].work;
    memory[i].first_task = tasks;
    memory[i].grid = MakeGrid(e.count, e.down.panels(), e.down.k, down_task);
    tasks += memory[i].grid.tasks();
  }
  // The output rows of an expert are named one by one: slot_rows.
  pool.ParallelFor(tasks, [&](int64_t task, int) {
    const ExpertPlan& plan = OwnerOf(plans, task);
    const ExpertWork& e = *plan.work;
    RunShare(kernels,
             MatmulArgs{.x = plan.hidden,
                        .x_stride_bytes = plan.hidden_stride_bytes,
                        .w = e.down,
                        .y = slot_out,
                        .y_stride = e.down.n,
                        .y_rows = e.slot_rows},
             ShareOf(plan.grid, task - plan.first_task));
  });
}

void CombineSlots(ThreadPool& pool, const CpuKernels& kernels, const float* slot_out,
                  const float* weights, int64_t tokens, int64_t top_k, int64_t hidden, float* y,
                  SlotMask slots) {
  if (tokens == 0 || hidden == 0) return;
  const int64_t work = tokens * top_k * hidden;
  const int64_t wanted =
      std::clamp<int64_t>(work / kMinTaskWork, 1, pool.threads() * kTasksPerThread);
  // Tokens first; a token is cut (in cache lines) only when there are fewer tokens than tasks.
  const int64_t pieces = std::min(CeilDiv(wanted, tokens), CeilDiv(hidden, kPanelOutputs));
  const int64_t piece = CeilDiv(CeilDiv(hidden, pieces), kPanelOutputs) * kPanelOutputs;
  const int64_t blocks = std::min(tokens, wanted);
  pool.ParallelFor(blocks * pieces, [&](int64_t task, int) {
    const int64_t block = task / pieces;
    const int64_t begin = task % pieces * piece;
    const int64_t length = std::min(begin + piece, hidden) - begin;
    if (length <= 0) return;
    for (int64_t t = block * tokens / blocks; t < (block + 1) * tokens / blocks; ++t) {
      for (int64_t slot = t * top_k; slot < (t + 1) * top_k; ++slot) {
        if (slots.mask != nullptr && slots.mask[slot] != slots.value) continue;
        kernels.axpy(weights[slot], slot_out + slot * hidden + begin, length,
                     y + t * hidden + begin);
      }
    }
  });
}

void ParallelMatmul(ThreadPool& pool, const CpuKernels& kernels, const MatmulArgs& args) {
  const int64_t work = ProductWork(args.m, args.w.panels(), args.w.k);
  const Grid grid = MakeGrid(args.m, args.w.panels(), args.w.k, TaskWork(pool, work));
  pool.ParallelFor(grid.tasks(),
                   [&](int64_t task, int) { RunShare(kernels, args, ShareOf(grid, task)); });
}

void ParallelGateUp(ThreadPool& pool, const CpuKernels& kernels, const GateUpArgs& args) {
  const int64_t work = ProductWork(args.m, 2 * args.gate.panels(), args.gate.k);
  const Grid grid = GateUpGrid(args.m, args.gate, TaskWork(pool, work));
  pool.ParallelFor(grid.tasks(),
                   [&](int64_t task, int) { RunShare(kernels, args, ShareOf(grid, task)); });
}

}  // namespace moesaic
