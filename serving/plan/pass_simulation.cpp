#include "serving/plan/pass_simulation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <numeric>
#include <optional>

#include "core/base/check.h"
#include "serving/batch/pass_graph.h"
#include "serving/batch/stream_flow.h"

namespace moesaic {
namespace {

// Passes until buffers hold what they do in all later ones.
constexpr int kPassesToSettle = 2;

// i * stride % count scatters 0 .. count-1: no divisor in common, and a golden section of the way.
int64_t ScatteringStride(int64_t count) {
  auto stride = std::max<int64_t>(1, std::llround(0.618 * static_cast<double>(count)));
  while (std::gcd(stride, count) > 1) ++stride;
  return stride;
}

// Of a fractional number per layer, what layer number n has, so that the sum over layers is right.
int64_t Rounded(double per_layer, int64_t n) {
  return static_cast<int64_t>(std::floor(per_layer * static_cast<double>(n + 1) + 0.5)) -
         static_cast<int64_t>(std::floor(per_layer * static_cast<double>(n) + 0.5));
}

// What a lane does now.
enum class LaneStep : uint8_t {
  kNone,     // its next task waits for others
  kCompute,  // dense parts
  kExperts,
  kHead,
  kWait,    // for an expert
  kInLine,  // for the link
  kCopyIn,
  kCopyOut,
};

struct PlayedLane {
  size_t next = 0;  // task
  LaneStep step = LaneStep::kNone;
  double left_s = 0;  // as if alone
};

class PassPlayer {
 public:
  explicit PassPlayer(const PlannedPass& pass)
      : pass_(pass),
        lanes_of_(pass.device ? kDeviceLanes : kOneLane),
        visits_(pass.schedule == ScheduleKind::kModuleBatching ? 1 : pass.groups),
        graph_(PassGraph(pass.schedule, pass.device, pass.groups,
                         static_cast<int>(pass.layer_is_sparse.size()))),
        sparse_layers_(static_cast<int>(
            std::count(pass.layer_is_sparse.begin(), pass.layer_is_sparse.end(), 1))),
        grid_(sparse_layers_, static_cast<int>(pass.num_experts)),
        flow_(grid_, SparseLayers(sparse_layers_), pass.slots,
              std::clamp<int64_t>(pass.buffers, 1, pass.slots), pass.group) {
    int number = 0;
    for (const uint8_t sparse : pass.layer_is_sparse)
      number_.push_back(sparse != 0 ? number++ : -1);
    visits_of_.resize(static_cast<size_t>(sparse_layers_));
  }

  PassTimes Run() {
    if (!pass_.cold) {
      uses_all_ = true;  // every resident is there afterwards
      Play();
      uses_all_ = false;
      for (int i = 0; i < kPassesToSettle; ++i) Play();
      times_ = {};
    }
    Play();
    const auto groups = static_cast<double>(pass_.groups);
    const auto layers = static_cast<double>(pass_.layer_is_sparse.size());
    const double once = pass_.schedule == ScheduleKind::kModuleBatching ? 1 : groups;
    times_.compute_alone_s =
        layers * groups * (pass_.pre_attention_s + pass_.attention_s + pass_.post_attention_s) +
        (layers - sparse_layers_) * once * pass_.dense_mlp_s +
        static_cast<double>(computed_) * pass_.expert_s + pass_.other_s;
    times_.link_alone_s = times_.loads * pass_.load_s;
    if (pass_.device) times_.link_alone_s += layers * groups * pass_.load_hidden_s;
    return times_;
  }

 private:
  void Play() {
    flow_.BeginPass(visits_);
    flow_.AllowReadAhead(true);
    std::fill(visits_of_.begin(), visits_of_.end(), 0);
    ++passes_;
    ended_.assign(graph_.tasks().size(), 0);
    lanes_ = {};
    computed_ = 0;
    tasks_left_ = ended_.size();
    while (tasks_left_ > 0) {
      for (int lane = 0; lane < kNumPassLanes; ++lane) Begin(lane);
      StartPacket();
      Advance();
    }
    if (pass_.other_s <= 0) return;
    PlayedLane& host = lanes_[kHostLane];
    host.step = LaneStep::kHead;
    host.left_s = pass_.other_s;
    while (host.step != LaneStep::kNone) {
      StartPacket();
      Advance();
    }
  }

  const Task* Next(PlayedLane& lane, int number) {
    const std::vector<Task>& tasks = graph_.tasks();
    while (lane.next < tasks.size() &&
           lanes_of_[static_cast<size_t>(tasks[lane.next].resource)] != number) {
      ++lane.next;
    }
    return lane.next < tasks.size() ? &tasks[lane.next] : nullptr;
  }

  // Gives an idle lane its next task, if that can begin.
  void Begin(int number) {
    PlayedLane& lane = lanes_[static_cast<size_t>(number)];
    if (lane.step != LaneStep::kNone) return;
    const Task* const task = Next(lane, number);
    if (task == nullptr) return;
    for (const int before : graph_.after(*task)) {
      if (ended_[static_cast<size_t>(before)] == 0) return;
    }
    switch (task->kind) {
      case TaskKind::kPreAttention:
        return Set(lane, LaneStep::kCompute, pass_.pre_attention_s);
      case TaskKind::kCpuAttention:
        return Set(lane, LaneStep::kCompute, pass_.attention_s);
      case TaskKind::kPostAttention:
        return Set(lane, LaneStep::kCompute,
                   pass_.post_attention_s + (visits_of_pass() ? DenseMlp(task->layer) : 0));
      case TaskKind::kExpert:
        return Set(lane, LaneStep::kCompute, DenseMlp(task->layer));
      case TaskKind::kOffloadQkv:
        return Set(lane, LaneStep::kCopyOut, pass_.offload_qkv_s);
      case TaskKind::kLoadHidden:
        return Set(lane, LaneStep::kInLine, pass_.load_hidden_s);
      case TaskKind::kLoadKv:
      case TaskKind::kDeviceAttention:
      case TaskKind::kWeights:
        CHECK(false);  // PassGraph has none
    }
  }

  static void Set(PlayedLane& lane, LaneStep step, double seconds) {
    lane.step = step;
    lane.left_s = seconds;
  }

  bool visits_of_pass() const { return pass_.schedule != ScheduleKind::kModuleBatching; }
  bool sparse(int layer) const { return pass_.layer_is_sparse[static_cast<size_t>(layer)] != 0; }
  double DenseMlp(int layer) const { return sparse(layer) ? 0 : pass_.dense_mlp_s; }

  // What a lane was doing has ended.
  void EndStep(int number) {
    PlayedLane& lane = lanes_[static_cast<size_t>(number)];
    if (lane.step == LaneStep::kHead) {
      lane.step = LaneStep::kNone;
      return;
    }
    const Task& task = graph_.tasks()[lane.next];
    if (lane.step == LaneStep::kExperts) {
      for (const ExpertIndex expert : held_) flow_.Release(expert);
      held_.clear();
      return Experts(lane);
    }
    const bool experts_follow = task.kind == TaskKind::kExpert ||
                                (task.kind == TaskKind::kPostAttention && visits_of_pass());
    if (lane.step == LaneStep::kCompute && experts_follow && sparse(task.layer)) {
      OpenLayer(task.layer);
      return Experts(lane);
    }
    EndTask(lane);
  }

  void EndTask(PlayedLane& lane) {
    ended_[lane.next++] = 1;
    --tasks_left_;
    lane.step = LaneStep::kNone;
  }

  // The next experts of the open layer, or its end.
  void Experts(PlayedLane& lane) {
    flow_.TakeReady(held_);
    if (!held_.empty()) {
      computed_ += std::ssize(held_);
      return Set(lane, LaneStep::kExperts, static_cast<double>(held_.size()) * pass_.expert_s);
    }
    if (flow_.waiting() > 0) return Set(lane, LaneStep::kWait, 0);
    flow_.EndLayer();
    EndTask(lane);
  }

  // Residents are the first experts of a layer. Both kinds are used alike: a pass uses a window of
  // each, around the end, that moves from pass to pass by what is not repeated; visits use windows
  // of that, the first from its beginning, the last up to its end. Experts are read in the order of
  // their numbers, which has nothing to do with that of the windows.
  void OpenLayer(int layer) {
    const int number = number_[static_cast<size_t>(layer)];
    const int visit = visits_of_[static_cast<size_t>(number)]++;
    int64_t residents = 0;
    while (residents < pass_.num_experts && flow_.resident(IndexOf(number, residents))) ++residents;
    needed_.clear();
    Use(number, visit, 0, residents);
    Use(number, visit, residents, pass_.num_experts - residents);
    if (needed_.empty()) needed_.push_back(IndexOf(number, 0));
    flow_.BeginLayer(needed_);
  }

  void Use(int number, int visit, int64_t first, int64_t count) {
    const double share = static_cast<double>(count) / static_cast<double>(pass_.num_experts);
    const int64_t used = uses_all_ ? count : std::min(count, Rounded(pass_.active * share, number));
    const int64_t now =
        uses_all_ ? count : std::min(used, Rounded(pass_.visit_active * share, number));
    const int64_t moves = used - std::min(used, Rounded(pass_.repeated * share, number));
    const int64_t begin = passes_ * std::min(moves, count - used) +
                          (visits_ > 1 ? (used - now) * visit / (visits_ - 1) : 0);
    const int64_t stride = ScatteringStride(count);
    for (int64_t i = 0; i < now; ++i) {
      needed_.push_back(IndexOf(number, first + (begin + i) * stride % count));
    }
  }

  ExpertIndex IndexOf(int number, int64_t expert) const {
    return static_cast<ExpertIndex>(number * pass_.num_experts + expert);
  }

  // The link into the device takes what is in line: an attention output before a packet, unless the
  // last was one.
  void StartPacket() {
    while (std::ssize(loads_) < std::max<int64_t>(1, pass_.loads_ahead)) {
      const std::optional<ExpertIndex> expert = flow_.NextLoad();
      if (!expert) break;
      loads_.push_back({*expert, pass_.packets});
      ++times_.loads;
    }
    if (copying_) return;
    PlayedLane& hidden = lanes_[kLinkInLane];
    if (hidden.step == LaneStep::kInLine && !(last_was_hidden_ && !loads_.empty())) {
      hidden.step = LaneStep::kCopyIn;
      copying_ = last_was_hidden_ = true;
    } else if (!loads_.empty()) {
      packet_left_s_ = pass_.load_s / pass_.packets;
      copying_ = packet_ = true;
      last_was_hidden_ = false;
    }
  }

  void EndPacket() {
    copying_ = packet_ = false;
    if (--loads_.front().packets_left > 0) return;
    flow_.Loaded(loads_.front().expert, 0);
    loads_.pop_front();
    PlayedLane& computing =
        lanes_[static_cast<size_t>(lanes_of_[static_cast<size_t>(Resource::kDevice)])];
    if (computing.step == LaneStep::kWait && flow_.ready()) Experts(computing);
  }

  static bool Computes(const PlayedLane& lane) {
    return lane.step == LaneStep::kCompute || lane.step == LaneStep::kExperts ||
           lane.step == LaneStep::kHead;
  }

  double SpeedOf(const PlayedLane& lane) const {
    if (!Computes(lane)) return 1;
    const bool both = Computes(lanes_[kHostLane]) && Computes(lanes_[kDeviceLane]);
    return (both ? pass_.both_share : 1) * (copying_ ? pass_.copy_share : 1);
  }

  // To the next end of something.
  void Advance() {
    std::array<double, kNumPassLanes> ends;
    const double link_speed =
        std::any_of(lanes_.begin(), lanes_.end(), Computes) ? pass_.link_share : 1;
    const double packet_end = packet_ ? packet_left_s_ / link_speed : INFINITY;
    double step = packet_end;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      const PlayedLane& lane = lanes_[i];
      const bool runs =
          Computes(lane) || lane.step == LaneStep::kCopyIn || lane.step == LaneStep::kCopyOut;
      ends[i] = runs ? lane.left_s / SpeedOf(lane) : INFINITY;
      step = std::min(step, ends[i]);
    }
    CHECK(std::isfinite(step));  // else everything waits for ever
    times_.seconds += step;
    if (!loads_.empty()) times_.link_s += step;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (double* const spent = SpentOn(lanes_[i].step)) *spent += step;
    }
    for (size_t i = 0; i < lanes_.size(); ++i) {
      // Before anything ends and speeds change.
      if (std::isfinite(ends[i])) lanes_[i].left_s *= ends[i] > step ? 1 - step / ends[i] : 0;
    }
    const bool packet_ends = packet_end <= step;
    if (packet_) packet_left_s_ -= step * link_speed;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (!std::isfinite(ends[i]) || ends[i] > step) continue;
      if (lanes_[i].step == LaneStep::kCopyIn) copying_ = false;
      EndStep(static_cast<int>(i));
    }
    if (packet_ends) EndPacket();
  }

  double* SpentOn(LaneStep step) {
    switch (step) {
      case LaneStep::kCompute:
        return &times_.dense_s;
      case LaneStep::kExperts:
        return &times_.experts_s;
      case LaneStep::kHead:
        return &times_.other_s;
      case LaneStep::kWait:
        return &times_.stall_s;
      case LaneStep::kInLine:
      case LaneStep::kCopyIn:
        return &times_.hidden_in_s;
      case LaneStep::kCopyOut:
        return &times_.hidden_out_s;
      case LaneStep::kNone:
        break;
    }
    return nullptr;
  }

  struct Load {
    ExpertIndex expert = kNoExpert;
    int packets_left = 0;
  };

  const PlannedPass& pass_;
  const std::array<int, kNumResources> lanes_of_;
  const int visits_;
  const TaskGraph graph_;
  const int sparse_layers_;
  const ExpertGrid grid_;  // layers with experts only
  StreamFlow flow_;
  std::vector<int> number_;     // [layers] of those with experts; -1: it has none
  std::vector<int> visits_of_;  // [layers with experts] by this pass
  std::vector<uint8_t> ended_;  // [tasks]
  size_t tasks_left_ = 0;
  int64_t passes_ = 0;
  bool uses_all_ = false;
  std::array<PlayedLane, kNumPassLanes> lanes_;
  std::deque<Load> loads_;  // on their way
  bool copying_ = false;    // to the device
  bool packet_ = false;     // what is copied is an expert's
  bool last_was_hidden_ = false;
  double packet_left_s_ = 0;
  std::vector<ExpertIndex> held_;
  std::vector<ExpertIndex> needed_;
  int64_t computed_ = 0;  // experts, by this pass
  PassTimes times_;
};

}  // namespace

PassTimes SimulatePass(const PlannedPass& pass) {
  CHECK_GT(pass.slots, 0);
  CHECK_GT(pass.groups, 0);
  CHECK_GT(pass.packets, 0);
  CHECK_LE(pass.visit_active, pass.active + 1e-9);
  CHECK(pass.both_share > 0 && pass.copy_share > 0 && pass.link_share > 0);
  return PassPlayer(pass).Run();
}

}  // namespace moesaic
