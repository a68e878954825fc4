#include "serving/plan/pass_simulation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <numeric>
#include <optional>

#include "core/base/check.h"
#include "prefetch/link/expert_placement.h"
#include "prefetch/link/stream_flow.h"
#include "serving/batch/pass_graph.h"

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
  kVisit,  // devices compute the layer's experts
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

struct Load {
  ExpertIndex expert = kNoExpert;
  int packets_left = 0;
};

// The experts of one device, or the host's, and the link that brings them.
struct ExpertSide {
  StreamFlow flow;
  PlayedLane lane;         // what is computed
  bool open = false;       // it has experts of the open layer to compute
  std::deque<Load> loads;  // on their way
  bool copying = false;    // the link is taken
  bool packet = false;     // by an expert's
  double packet_left_s = 0;
  std::vector<ExpertIndex> held;
  std::vector<ExpertIndex> needed;
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
        placement_(grid_, std::vector<int>(static_cast<size_t>(pass.devices), -1)) {
    for (int d = 0; d < pass.devices; ++d) {
      sides_.push_back({StreamFlow(grid_, SparseLayers(sparse_layers_), pass.slots,
                                   std::clamp<int64_t>(pass.buffers, 1, pass.slots), pass.group,
                                   {.experts = placement_.experts(d)}),
                        {},
                        false,
                        {},
                        false,
                        false,
                        0,
                        {},
                        {}});
    }
    for (ExpertIndex expert = 0; expert < grid_.total(); ++expert) order_.push_back(expert);
    for (int64_t layer = 0; layer < sparse_layers_; ++layer) {
      const auto begin = order_.begin() + layer * pass.num_experts;
      const auto streamed = std::stable_partition(
          begin, begin + pass.num_experts,
          [this](ExpertIndex expert) { return SideOf(expert).flow.resident(expert); });
      residents_.push_back(streamed - begin);
    }
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
    for (ExpertSide& side : sides_) {
      side.flow.BeginPass(visits_);
      side.flow.AllowReadAhead(true);
    }
    std::fill(visits_of_.begin(), visits_of_.end(), 0);
    ++passes_;
    ended_.assign(graph_.tasks().size(), 0);
    lanes_ = {};
    computed_ = 0;
    tasks_left_ = ended_.size();
    while (tasks_left_ > 0) {
      for (int lane = 0; lane < kNumPassLanes; ++lane) Begin(lane);
      for (ExpertSide& side : sides_) StartPacket(side);
      Advance();
    }
    if (pass_.other_s <= 0) return;
    PlayedLane& host = lanes_[kHostLane];
    host.step = LaneStep::kHead;
    host.left_s = pass_.other_s;
    while (host.step != LaneStep::kNone) {
      for (ExpertSide& side : sides_) StartPacket(side);
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
    const bool experts_follow = task.kind == TaskKind::kExpert ||
                                (task.kind == TaskKind::kPostAttention && visits_of_pass());
    if (lane.step == LaneStep::kCompute && experts_follow && sparse(task.layer)) {
      lane.step = LaneStep::kVisit;
      return OpenLayer(task.layer);
    }
    EndTask(lane);
  }

  void EndTask(PlayedLane& lane) {
    ended_[lane.next++] = 1;
    --tasks_left_;
    lane.step = LaneStep::kNone;
  }

  void EndExperts(ExpertSide& side) {
    for (const ExpertIndex expert : side.held) side.flow.Release(expert, 0);
    side.held.clear();
    Experts(side);
  }

  // A side's next experts of the open layer, or its end; with the last one's end the layer's.
  void Experts(ExpertSide& side) {
    side.flow.TakeReady(side.held, 0);
    if (!side.held.empty()) {
      computed_ += std::ssize(side.held);
      return Set(side.lane, LaneStep::kExperts,
                 static_cast<double>(side.held.size()) * pass_.expert_s);
    }
    if (side.flow.waiting() > 0) return Set(side.lane, LaneStep::kWait, 0);
    side.flow.EndLayer(0);
    side.lane.step = LaneStep::kNone;
    side.open = false;
    if (std::any_of(sides_.begin(), sides_.end(), [](const ExpertSide& s) { return s.open; })) {
      return;
    }
    EndTask(lanes_[static_cast<size_t>(lanes_of_[static_cast<size_t>(Resource::kDevice)])]);
  }

  // Residents are a layer's first experts in its order. Both kinds are used alike: a pass uses a
  // window of each, around the end, that moves from pass to pass by what is not repeated; visits
  // use windows of that, the first from its beginning, the last up to its end. Experts are read in
  // the order of their numbers, which has nothing to do with that of the windows.
  void OpenLayer(int layer) {
    const int number = number_[static_cast<size_t>(layer)];
    const int visit = visits_of_[static_cast<size_t>(number)]++;
    const int64_t residents = residents_[static_cast<size_t>(number)];
    needed_.clear();
    Use(number, visit, 0, residents);
    Use(number, visit, residents, pass_.num_experts - residents);
    if (needed_.empty()) needed_.push_back(IndexOf(number, 0));
    for (ExpertSide& side : sides_) side.needed.clear();
    for (const ExpertIndex expert : needed_) SideOf(expert).needed.push_back(expert);
    for (ExpertSide& side : sides_) side.open = !side.needed.empty();
    for (ExpertSide& side : sides_) {
      if (!side.open) continue;
      side.flow.BeginLayer(side.needed, 0);
      Experts(side);
    }
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
    return order_[static_cast<size_t>(number * pass_.num_experts + expert)];
  }
  ExpertSide& SideOf(ExpertIndex expert) {
    return sides_[static_cast<size_t>(placement_.device(expert))];
  }

  // The link into a device takes what is in line: on the first one's an attention output before a
  // packet, unless the last was one.
  void StartPacket(ExpertSide& side) {
    while (std::ssize(side.loads) < std::max<int64_t>(1, pass_.loads_ahead)) {
      const std::optional<ExpertIndex> expert = side.flow.NextLoad();
      if (!expert) break;
      side.loads.push_back({*expert, pass_.packets});
      ++times_.loads;
    }
    if (side.copying) return;
    PlayedLane& hidden = lanes_[kLinkInLane];
    if (&side == &sides_.front() && hidden.step == LaneStep::kInLine &&
        !(last_was_hidden_ && !side.loads.empty())) {
      hidden.step = LaneStep::kCopyIn;
      side.copying = last_was_hidden_ = true;
    } else if (!side.loads.empty()) {
      side.packet_left_s = pass_.load_s / pass_.packets;
      side.copying = side.packet = true;
      if (&side == &sides_.front()) last_was_hidden_ = false;
    }
  }

  void EndPacket(ExpertSide& side) {
    side.copying = side.packet = false;
    if (--side.loads.front().packets_left > 0) return;
    side.flow.Loaded(side.loads.front().expert, 0);
    side.loads.pop_front();
    if (side.lane.step == LaneStep::kWait && side.flow.ready()) Experts(side);
  }

  static bool Computes(const PlayedLane& lane) {
    return lane.step == LaneStep::kCompute || lane.step == LaneStep::kExperts ||
           lane.step == LaneStep::kHead;
  }

  // Of everything that computes: what its threads get of the processors, beside what is copied.
  double ComputingSpeed() const {
    double threads = 0;  // that compute, in the host's
    double copying = 0;
    const double of_device = pass_.device ? pass_.device_share : 1;
    if (Computes(lanes_[kHostLane])) threads += 1;
    if (Computes(lanes_[kDeviceLane])) threads += of_device;
    for (const ExpertSide& side : sides_) {
      if (Computes(side.lane)) threads += of_device;
      if (side.copying) copying += 1;
    }
    copying /= static_cast<double>(sides_.size());
    return (threads > 1 ? std::min(1.0, 2 * pass_.both_share / threads) : 1) *
           (1 - copying * (1 - pass_.copy_share));
  }

  static bool Runs(const PlayedLane& lane) {
    return Computes(lane) || lane.step == LaneStep::kCopyIn || lane.step == LaneStep::kCopyOut;
  }

  // The lanes, then the sides' own.
  PlayedLane& LaneAt(size_t i) {
    return i < lanes_.size() ? lanes_[i] : sides_[i - lanes_.size()].lane;
  }

  // To the next end of something.
  void Advance() {
    const size_t count = lanes_.size() + sides_.size();
    const double speed = ComputingSpeed();
    bool computes = false;
    for (size_t i = 0; i < count; ++i) computes = computes || Computes(LaneAt(i));
    const double link_speed = computes ? pass_.link_share : 1;
    double step = INFINITY;
    ends_.assign(count + sides_.size(), INFINITY);
    for (size_t i = 0; i < count; ++i) {
      const PlayedLane& lane = LaneAt(i);
      if (Runs(lane)) ends_[i] = lane.left_s / (Computes(lane) ? speed : 1);
      step = std::min(step, ends_[i]);
    }
    for (size_t d = 0; d < sides_.size(); ++d) {
      if (sides_[d].packet) ends_[count + d] = sides_[d].packet_left_s / link_speed;
      step = std::min(step, ends_[count + d]);
    }
    CHECK(std::isfinite(step));  // else everything waits for ever
    times_.seconds += step;
    for (const ExpertSide& side : sides_) {
      if (!side.loads.empty()) times_.link_s += step;
    }
    for (size_t i = 0; i < count; ++i) {
      PlayedLane& lane = LaneAt(i);
      if (double* const spent = SpentOn(lane.step)) *spent += step;
      // Before anything ends and speeds change.
      if (std::isfinite(ends_[i])) lane.left_s *= ends_[i] > step ? 1 - step / ends_[i] : 0;
    }
    for (ExpertSide& side : sides_) {
      if (side.packet) side.packet_left_s -= step * link_speed;
    }
    for (size_t i = 0; i < count; ++i) {
      if (ends_[i] > step) continue;
      if (i >= lanes_.size()) {
        EndExperts(sides_[i - lanes_.size()]);
        continue;
      }
      if (lanes_[i].step == LaneStep::kCopyIn) sides_.front().copying = false;
      EndStep(static_cast<int>(i));
    }
    for (size_t d = 0; d < sides_.size(); ++d) {
      if (ends_[count + d] <= step) EndPacket(sides_[d]);
    }
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
      case LaneStep::kVisit:
      case LaneStep::kNone:
        break;
    }
    return nullptr;
  }

  const PlannedPass& pass_;
  const std::array<int, kNumResources> lanes_of_;
  const int visits_;
  const TaskGraph graph_;
  const int sparse_layers_;
  const ExpertGrid grid_;  // layers with experts only
  const ExpertPlacement placement_;
  std::deque<ExpertSide> sides_;    // [devices]; one of the host
  std::vector<ExpertIndex> order_;  // [layers with experts * experts] residents of each first
  std::vector<int64_t> residents_;  // [layers with experts]
  std::vector<int> number_;         // [layers] of those with experts; -1: it has none
  std::vector<int> visits_of_;      // [layers with experts] by this pass
  std::vector<uint8_t> ended_;      // [tasks]
  size_t tasks_left_ = 0;
  int64_t passes_ = 0;
  bool uses_all_ = false;
  std::array<PlayedLane, kNumPassLanes> lanes_;
  bool last_was_hidden_ = false;  // on the first device's link
  std::vector<double> ends_;      // of an Advance
  std::vector<ExpertIndex> needed_;
  int64_t computed_ = 0;  // experts, by this pass
  PassTimes times_;
};

}  // namespace

PassTimes SimulatePass(const PlannedPass& pass) {
  CHECK_GT(pass.slots, 0);
  CHECK_GT(pass.groups, 0);
  CHECK_GT(pass.packets, 0);
  CHECK(pass.devices == 1 || (pass.devices > 1 && pass.device));
  CHECK_LE(pass.visit_active, pass.active + 1e-9);
  CHECK(pass.both_share > 0 && pass.copy_share > 0 && pass.link_share > 0);
  return PassPlayer(pass).Run();
}

}  // namespace moesaic
