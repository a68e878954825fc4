#include "kernels/cpu/moe.h"

#include <algorithm>
#include <new>

#include "core/base/check.h"
#include "kernels/cpu/expert_queue.h"
#include "kernels/cpu/product_grid.h"

namespace moesaic {
namespace {

// A loop is cut into about this many tasks per thread: enough that a slow thread costs a small part
// of the loop, few enough that handing them out costs nothing.
constexpr int64_t kTasksPerThread = 4;
// Outputs of more than this are gone from the caches of a core when they are summed.
constexpr int64_t kLargeOutputBytes = int64_t{4} << 20;
// Below this many multiply-adds (about 2 us on one core) a task costs more to hand out than to run.
constexpr int64_t kMinTaskWork = 64 * 1024;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool IsLarge(int64_t outputs) {
  return outputs * static_cast<int64_t>(sizeof(float)) > kLargeOutputBytes;
}

int64_t TaskWork(const ThreadPool& pool, int64_t total_work) {
  return std::max(kMinTaskWork, total_work / (pool.threads() * kTasksPerThread));
}

using Share = ProductGrid::Share;

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

template <typename Args>
void RunGrid(ThreadPool& pool, const CpuKernels& kernels, const Args& args,
             const ProductGrid& grid) {
  if (pool.nodes() == 1) {
    pool.ParallelFor(grid.tasks(),
                     [&](int64_t task, int) { RunShare(kernels, args, grid.ShareOf(0, task)); });
    return;
  }
  pool.ParallelForNodes(
      [&](int node) { return grid.tasks(node); },
      [&](int node, int64_t task, int) { RunShare(kernels, args, grid.ShareOf(node, task)); });
}

// One expert of a call, and its rows of the hidden activations.
struct ExpertPlan {
  const ExpertWork* work;
  std::byte* hidden;
  int64_t hidden_stride_bytes;
};

int64_t HiddenRowBytes(const CpuKernels& kernels, const ExpertWork& e) {
  return ActivationRowBytes(ActivationTypeOf(kernels.numerics, e.gate.type), e.gate.n);
}

// Every expert that runs has a row, so the plans of a call never outnumber its rows.
int64_t PlanBytes(int64_t max_rows) {
  static_assert(alignof(ExpertTasks) <= alignof(ExpertPlan));
  constexpr auto kBytes = static_cast<int64_t>(sizeof(ExpertPlan) + sizeof(ExpertTasks));
  return CeilDiv(max_rows * kBytes, 64) * 64;
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
  int64_t outputs = 0;
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
    outputs += e.count * e.down.n;
  }
  if (rows == 0) return;
  CHECK_LE(PlanBytes(rows) + hidden_bytes, workspace.bytes());

  auto* const plans = workspace.hidden().as<ExpertPlan>();
  auto* const tasks = reinterpret_cast<ExpertTasks*>(plans + rows);
  std::byte* hidden = workspace.hidden().data() + PlanBytes(rows);
  const int64_t gate_up_task = TaskWork(pool, gate_up_work);
  const int64_t down_task = TaskWork(pool, down_work);
  size_t count = 0;
  int64_t most_tasks = 0;
  for (const ExpertWork& e : experts) {
    if (e.count == 0) continue;
    const int64_t stride = HiddenRowBytes(kernels, e);
    new (plans + count) ExpertPlan{&e, hidden, stride};
    auto* const cut = new (tasks + count) ExpertTasks;
    cut->gate_up = MakeGateUpGrid(e.count, e.gate, gate_up_task, pool.nodes());
    cut->down = MakeProductGrid(e.count, e.down.panels(), e.down.k, down_task, 1, pool.nodes());
    most_tasks += std::max(cut->gate_up.tasks(), cut->down.tasks());
    hidden += e.count * stride;
    ++count;
  }
  ExpertQueue queue({tasks, count}, pool.nodes());

  const auto gate_up = [&](const ExpertPlan& plan, const Share& share) {
    const ExpertWork& e = *plan.work;
    RunShare(kernels,
             GateUpArgs{.x = x,
                        .x_stride_bytes = x_stride_bytes,
                        .x_rows = e.token_rows,
                        .gate = e.gate,
                        .up = e.up,
                        .gate_bias = e.gate_bias,
                        .up_bias = e.up_bias,
                        .activation = e.activation,
                        .h = plan.hidden,
                        .h_stride_bytes = plan.hidden_stride_bytes},
             share);
  };
  // The output rows of an expert are named one by one: slot_rows.
  const auto down = [&](const ExpertPlan& plan, const Share& share) {
    const ExpertWork& e = *plan.work;
    RunShare(kernels,
             MatmulArgs{.x = plan.hidden,
                        .x_stride_bytes = plan.hidden_stride_bytes,
                        .w = e.down,
                        .bias = e.down_bias,
                        .y = slot_out,
                        .y_stride = e.down.n,
                        .y_rows = e.slot_rows,
                        .y_is_large = IsLarge(outputs)},
             share);
  };
  pool.ParallelFor(std::min<int64_t>(pool.threads(), most_tasks), [&](int64_t, int worker) {
    queue.Work(pool.node(worker), [&](const ExpertQueue::Task& task) {
      const auto expert = static_cast<size_t>(task.expert);
      if (task.product == ExpertQueue::Product::kGateUp) {
        gate_up(plans[expert], tasks[expert].gate_up.ShareOf(task.node, task.index));
      } else {
        down(plans[expert], tasks[expert].down.ShareOf(task.node, task.index));
      }
    });
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

void ParallelMatmul(ThreadPool& pool, const CpuKernels& kernels, MatmulArgs args) {
  const int64_t work = ProductWork(args.m, args.w.panels(), args.w.k);
  args.y_is_large = IsLarge(args.m * args.w.n);
  RunGrid(
      pool, kernels, args,
      MakeProductGrid(args.m, args.w.panels(), args.w.k, TaskWork(pool, work), 1, pool.nodes()));
}

void ParallelGateUp(ThreadPool& pool, const CpuKernels& kernels, const GateUpArgs& args) {
  const int64_t work = ProductWork(args.m, 2 * args.gate.panels(), args.gate.k);
  RunGrid(pool, kernels, args,
          MakeGateUpGrid(args.m, args.gate, TaskWork(pool, work), pool.nodes()));
}

}  // namespace moesaic
