#include "core/perf/layer_schedules.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "core/base/check.h"

namespace moesaic {
namespace {

// Layers of the first attempt at a period: a multiple of the cycle lengths that double and triple
// buffers bring about. And where doubling ends.
constexpr int kFirstLayers = 12;
constexpr int kMostLayers = 384;

double PageSeconds(const LayerTimes& times) {
  return times.weights_copy_s / static_cast<double>(times.micro_batches);
}

// Launches what leads from a micro-batch's hidden states to its attention output.
class Attention {
 public:
  Attention(TaskGraph& graph, const LayerTimes& times) : graph_(graph), times_(times) {}

  void LaunchPre(int layer, int index, std::initializer_list<int> after) {
    pre_ = graph_.Add(TaskKind::kPreAttention, layer, index, Resource::kDevice,
                      times_.pre_attention_s, after);
    offload_ = times_.offload_qkv_s > 0
                   ? graph_.Add(TaskKind::kOffloadQkv, layer, index, Resource::kLinkOut,
                                times_.offload_qkv_s, {pre_})
                   : pre_;
  }
  void LaunchCpu(int layer, int index, std::initializer_list<int> after = {}) {
    if (times_.cpu_attention_s <= 0) return;
    std::vector<int> all(after);
    all.push_back(offload_);
    cpu_ = graph_.Add(TaskKind::kCpuAttention, layer, index, Resource::kCpu, times_.cpu_attention_s,
                      all);
  }
  // The attention of the device, with its keys and values where they have to be fetched.
  void LaunchDevice(int layer, int index, int kv_buffer_free) {
    if (times_.device_attention_s <= 0) return;
    int kv = TaskGraph::kNone;
    if (times_.load_kv_s > 0) {
      kv = graph_.Add(TaskKind::kLoadKv, layer, index, Resource::kLinkIn, times_.load_kv_s,
                      {kv_buffer_free});
    }
    device_ = graph_.Add(TaskKind::kDeviceAttention, layer, index, Resource::kDevice,
                         times_.device_attention_s, {pre_, kv});
  }
  void LaunchLoadHidden(int layer, int index) {
    hidden_ = cpu_;
    if (times_.load_hidden_s <= 0 || cpu_ == TaskGraph::kNone) return;
    hidden_ = graph_.Add(TaskKind::kLoadHidden, layer, index, Resource::kLinkIn,
                         times_.load_hidden_s, {cpu_});
  }

  int pre() const { return pre_; }
  int cpu() const { return cpu_; }
  int device() const { return device_; }
  int hidden() const { return hidden_; }

 private:
  TaskGraph& graph_;
  const LayerTimes& times_;
  int pre_ = TaskGraph::kNone;
  int offload_ = TaskGraph::kNone;
  int cpu_ = TaskGraph::kNone;
  int device_ = TaskGraph::kNone;
  int hidden_ = TaskGraph::kNone;
};

// CGOPipe (MoE-Lightning, Algorithm 1). With fewer than three micro-batches "two ahead" reaches
// into the next layer, which is as valid.
TaskGraph BuildPagedWeights(const LayerTimes& times, int layers) {
  TaskGraph graph(times.shared_cpu);
  const auto count = static_cast<int>(times.micro_batches);
  const auto cell = [&](int layer, int j) { return static_cast<size_t>(layer) * count + j; };
  std::vector<Attention> attention(cell(layers, 0), Attention(graph, times));
  std::vector<int> post(cell(layers, 0), TaskGraph::kNone);
  std::vector<int> last_page(static_cast<size_t>(layers) + 1, TaskGraph::kNone);

  const auto launch_attention = [&](int layer, int j) {
    const int hidden = layer > 0 ? post[cell(layer - 1, j)] : TaskGraph::kNone;
    Attention& a = attention[cell(layer, j)];
    a.LaunchPre(layer, j, {hidden});
    a.LaunchCpu(layer, j);
    // Two KV buffers on the device, as MoE-Lightning has them.
    const size_t at = cell(layer, j);
    a.LaunchDevice(layer, j, at >= 2 ? attention[at - 2].device() : TaskGraph::kNone);
  };
  for (int j = 0; j < std::min(2, count); ++j) launch_attention(0, j);
  for (int layer = 0; layer < layers; ++layer) {
    for (int j = 0; j < count; ++j) {
      Attention& a = attention[cell(layer, j)];
      a.LaunchLoadHidden(layer, j);
      if (times.weights_copy_s > 0) {
        // Into the buffer that the layer before this one has left.
        const int left = layer > 0 ? post[cell(layer - 1, count - 1)] : TaskGraph::kNone;
        last_page[layer + 1] = graph.Add(TaskKind::kWeights, layer + 1, j, Resource::kLinkIn,
                                         PageSeconds(times), {left});
      }
      post[cell(layer, j)] =
          graph.Add(TaskKind::kPostAttention, layer, j, Resource::kDevice, times.post_attention_s,
                    {a.hidden(), a.device(), last_page[layer]});
      const bool same_layer = j + 2 < count;
      const int next_layer = same_layer ? layer : layer + 1;
      if (next_layer < layers) launch_attention(next_layer, same_layer ? j + 2 : (j + 2) % count);
    }
  }
  return graph;
}

// VSLPipe (MoE-Lens 6.2): group alpha's device work overlaps group beta's attention on the CPU,
// then the other way round; both phases end together. A stage's weights go over the link during the
// stage before it.
TaskGraph BuildOverlapped(const LayerTimes& times, int layers) {
  TaskGraph graph(times.shared_cpu);
  std::vector<Attention> alpha(static_cast<size_t>(layers) + 1, Attention(graph, times));
  std::vector<Attention> beta(static_cast<size_t>(layers) + 1, Attention(graph, times));
  alpha[0].LaunchPre(0, 0, {});
  alpha[0].LaunchDevice(0, 0, TaskGraph::kNone);
  beta[0].LaunchPre(0, 1, {});
  beta[0].LaunchDevice(0, 1, TaskGraph::kNone);
  alpha[0].LaunchCpu(0, 0);

  int weights = TaskGraph::kNone;           // of the stage that runs
  int beta_post_before = TaskGraph::kNone;  // frees the buffer of the stage before it
  int sync_device = TaskGraph::kNone;
  int sync_cpu = TaskGraph::kNone;
  for (int i = 0; i < layers; ++i) {
    const int stage_weights = weights;
    const bool last = i + 1 == layers;
    alpha[i].LaunchLoadHidden(i, 0);
    if (!last && times.weights_copy_s > 0) {
      weights = graph.Add(TaskKind::kWeights, i + 1, 0, Resource::kLinkIn, times.weights_copy_s,
                          {beta_post_before});
    }
    const int alpha_post =
        graph.Add(TaskKind::kPostAttention, i, 0, Resource::kDevice, times.post_attention_s,
                  {alpha[i].hidden(), alpha[i].device(), stage_weights, sync_device, sync_cpu});
    int phase_device = alpha_post;
    if (!last) {
      alpha[i + 1].LaunchPre(i + 1, 0, {alpha_post});
      alpha[i + 1].LaunchDevice(i + 1, 0, TaskGraph::kNone);
      phase_device = alpha[i + 1].pre();
    }
    beta[i].LaunchCpu(i, 1, {sync_device, sync_cpu});
    beta[i].LaunchLoadHidden(i, 1);
    const int beta_post =
        graph.Add(TaskKind::kPostAttention, i, 1, Resource::kDevice, times.post_attention_s,
                  {beta[i].hidden(), beta[i].device(), phase_device, beta[i].cpu()});
    sync_device = beta_post;
    if (!last) {
      beta[i + 1].LaunchPre(i + 1, 1, {beta_post});
      beta[i + 1].LaunchDevice(i + 1, 1, TaskGraph::kNone);
      sync_device = beta[i + 1].pre();
      alpha[i + 1].LaunchCpu(i + 1, 0, {phase_device, beta[i].cpu()});
      sync_cpu = alpha[i + 1].cpu();
    }
    beta_post_before = beta_post;
  }
  return graph;
}

// Module-based batching (MoE-Gen): a copy starts when its slot is free. Copies for the next layer
// are spread over its attention, so that hidden states and keys wait behind few of them.
class ModuleBatching {
 public:
  ModuleBatching(const LayerTimes& times, int layers)
      : times_(times),
        graph_(times.shared_cpu),
        copies_(static_cast<int64_t>(layers) * PerLayer()) {}

  TaskGraph Build(int layers) {
    const auto count = static_cast<int>(times_.micro_batches);
    for (int64_t slot = 0; slot < times_.expert_buffers && next_copy_ < copies_; ++slot) {
      LaunchCopy(TaskGraph::kNone);
    }
    int layer_end = TaskGraph::kNone;
    for (int layer = 0; layer < layers; ++layer) layer_end = LaunchLayer(layer, count, layer_end);
    return std::move(graph_);
  }

 private:
  int64_t PerLayer() const { return times_.streamed_experts; }

  void LaunchCopy(int slot_free) {
    const int64_t copy = next_copy_++;
    copy_tasks_.push_back(graph_.Add(TaskKind::kWeights, static_cast<int>(copy / PerLayer()),
                                     static_cast<int>(copy % PerLayer()), Resource::kLinkIn,
                                     times_.expert_copy_s, {slot_free}));
  }
  void LaunchFreed(size_t most) {
    for (; most > 0 && !freed_.empty(); --most) {
      const int slot_free = freed_.front();
      freed_.pop_front();
      if (next_copy_ < copies_) LaunchCopy(slot_free);
    }
  }

  int LaunchLayer(int layer, int count, int layer_end) {
    // Dense weights that are not resident come as one copy into the other of two buffers.
    int dense = TaskGraph::kNone;
    if (times_.weights_copy_s > 0) {
      dense = graph_.Add(TaskKind::kWeights, layer, -1, Resource::kLinkIn, times_.weights_copy_s,
                         {layer_end_before_});
    }
    const size_t share = freed_.size() / (static_cast<size_t>(count) + 1) + 1;
    std::vector<Attention> attention(count, Attention(graph_, times_));
    for (int j = 0; j < count; ++j) {
      attention[j].LaunchPre(layer, j, {layer_end, dense});
      attention[j].LaunchCpu(layer, j);
    }
    LaunchFreed(share);
    int post = TaskGraph::kNone;
    for (int j = 0; j < count; ++j) {
      attention[j].LaunchLoadHidden(layer, j);
      attention[j].LaunchDevice(layer, j, j >= 2 ? attention[j - 2].device() : TaskGraph::kNone);
      post = graph_.Add(TaskKind::kPostAttention, layer, j, Resource::kDevice,
                        times_.post_attention_s, {attention[j].hidden(), attention[j].device()});
      LaunchFreed(share);
    }
    LaunchFreed(freed_.size());

    layer_end_before_ = layer_end;
    int end = post;
    const int64_t resident = times_.experts - times_.streamed_experts;
    for (int64_t e = 0; e < times_.experts; ++e) {
      int copy = TaskGraph::kNone;
      if (e >= resident) copy = copy_tasks_.at(used_copies_++);
      end = graph_.Add(TaskKind::kExpert, layer, static_cast<int>(e), Resource::kDevice,
                       times_.expert_s, {post, copy});
      if (e < resident) continue;
      // This layer's own remaining copies go at once; where no hidden state competes, all do.
      const bool own = next_copy_ / std::max<int64_t>(1, PerLayer()) == layer;
      if ((own || times_.shared_cpu) && next_copy_ < copies_) {
        LaunchCopy(end);
      } else {
        freed_.push_back(end);
      }
    }
    return end;
  }

  const LayerTimes& times_;
  TaskGraph graph_;
  const int64_t copies_;
  int64_t next_copy_ = 0;
  size_t used_copies_ = 0;
  std::vector<int> copy_tasks_;
  std::deque<int> freed_;  // experts whose slots are free once they end
  int layer_end_before_ = TaskGraph::kNone;
};

// Ends of the layers: of the last task of each that later layers wait for.
std::vector<double> LayerEnds(const TaskGraph& graph, int layers) {
  std::vector<double> ends(layers, 0);
  for (const Task& task : graph.tasks()) {
    if (task.layer < layers) ends[task.layer] = std::max(ends[task.layer], task.end_s);
  }
  return ends;
}

double Period(ScheduleKind kind, const LayerTimes& times, double roofline_s, double serial_s) {
  double last = -1;
  double period = serial_s;
  for (int m = kFirstLayers; m <= kMostLayers; m *= 2) {
    // The epilogue of the last layers is no steady state.
    const int layers = 2 * m + 2;
    const std::vector<double> ends = LayerEnds(BuildSchedule(kind, times, layers), layers);
    period = (ends[2 * m - 1] - ends[m - 1]) / m;
    const bool settled = std::abs(period - last) <= 1e-9 * serial_s;
    if (settled && period >= roofline_s * (1 - 1e-9)) break;
    last = period;
  }
  CHECK_GE(period, roofline_s * (1 - 1e-2));
  CHECK_LE(period, serial_s * (1 + 1e-2));
  return std::clamp(period, roofline_s, serial_s);
}

}  // namespace

TaskGraph BuildSchedule(ScheduleKind kind, const LayerTimes& times, int layers) {
  CHECK_GT(layers, 0);
  CHECK_GT(times.micro_batches, 0);
  switch (kind) {
    case ScheduleKind::kPagedWeights:
      return BuildPagedWeights(times, layers);
    case ScheduleKind::kOverlapped:
      return BuildOverlapped(times, layers);
    case ScheduleKind::kModuleBatching:
      break;
  }
  CHECK_GE(times.experts, times.streamed_experts);
  CHECK(times.streamed_experts == 0 || times.expert_buffers > 0);
  return ModuleBatching(times, layers).Build(layers);
}

PhasePrediction LayerRoofline(ScheduleKind kind, const LayerTimes& times) {
  PhasePrediction phase;
  const double count =
      kind == ScheduleKind::kOverlapped ? 2 : static_cast<double>(times.micro_batches);
  const auto add = [&](TaskKind task, Resource resource, double seconds) {
    if (seconds <= 0) return;
    phase.components.push_back({TaskKindName(task), resource, seconds});
    phase.busy_s[static_cast<int>(resource)] += seconds;
    phase.serial_s += seconds;
  };
  const bool modules = kind == ScheduleKind::kModuleBatching;
  add(TaskKind::kPreAttention, Resource::kDevice, count * times.pre_attention_s);
  add(TaskKind::kOffloadQkv, Resource::kLinkOut, count * times.offload_qkv_s);
  add(TaskKind::kCpuAttention, Resource::kCpu, count * times.cpu_attention_s);
  if (times.cpu_attention_s > 0) {
    add(TaskKind::kLoadHidden, Resource::kLinkIn, count * times.load_hidden_s);
  }
  if (times.device_attention_s > 0) {
    add(TaskKind::kLoadKv, Resource::kLinkIn, count * times.load_kv_s);
  }
  add(TaskKind::kDeviceAttention, Resource::kDevice, count * times.device_attention_s);
  add(TaskKind::kPostAttention, Resource::kDevice, count * times.post_attention_s);
  double copies_s = times.weights_copy_s;
  if (modules) {
    add(TaskKind::kExpert, Resource::kDevice, static_cast<double>(times.experts) * times.expert_s);
    copies_s += static_cast<double>(times.streamed_experts) * times.expert_copy_s;
  }
  add(TaskKind::kWeights, Resource::kLinkIn, copies_s);

  if (times.shared_cpu) {
    // One processor: its attention is part of its work.
    double& cpu = phase.busy_s[static_cast<int>(Resource::kCpu)];
    phase.busy_s[static_cast<int>(Resource::kDevice)] += cpu;
    cpu = 0;
  }
  int order[kNumResources] = {0, 1, 2, 3};
  std::stable_sort(order, order + kNumResources,
                   [&](int a, int b) { return phase.busy_s[a] > phase.busy_s[b]; });
  phase.bottleneck = static_cast<Resource>(order[0]);
  phase.next_bottleneck = static_cast<Resource>(order[1]);
  phase.roofline_s = phase.busy_s[order[0]];
  phase.serial_s = std::max(phase.serial_s, phase.roofline_s);  // sums in another order
  phase.slack = phase.roofline_s > 0 ? 1 - phase.busy_s[order[1]] / phase.roofline_s : 0;
  return phase;
}

PhasePrediction PredictLayer(ScheduleKind kind, const LayerTimes& times) {
  PhasePrediction phase = LayerRoofline(kind, times);
  phase.period_s = Period(kind, times, phase.roofline_s, phase.serial_s);
  return phase;
}

}  // namespace moesaic
