#include "serving/plan/stream_schedule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/check.h"
#include "serving/batch/streaming_experts.h"

namespace moesaic {
namespace {

class Player {
 public:
  explicit Player(const StreamPass& pass) : pass_(pass) {
    for (int64_t layer = 0; layer < pass.layers; ++layer) {
      streamed_.push_back(Rounded(pass.streamed_active, layer));
      residents_.push_back(Rounded(pass.resident_active, layer));
    }
  }

  StreamPassTimes Run() {
    // What is read ahead reaches into the next pass; the second one begins as all later ones.
    Play();
    if (!pass_.cold) {
      times_ = {};
      Play();
    }
    times_.compute_alone_s = pass_.lead_s + pass_.other_s;
    for (size_t layer = 0; layer < streamed_.size(); ++layer) {
      times_.compute_alone_s +=
          pass_.dense_s +
          static_cast<double>(streamed_[layer] + residents_[layer]) * pass_.expert_s;
    }
    times_.link_alone_s = times_.loads * pass_.load_s;
    return times_;
  }

 private:
  void Play() {
    layer_ = 0;
    Compute(pass_.lead_s, times_.dense_s);
    for (size_t layer = 0; layer < streamed_.size(); ++layer) {
      layer_ = layer;
      // Read ahead while the layer before ran and now.
      Compute(pass_.dense_s, times_.dense_s);
      OpenLayer();
      while (streamed_left_ > 0 || residents_left_ > 0) {
        if (const int64_t ready = std::min(ready_[layer], streamed_left_); ready > 0) {
          const int64_t group = std::min(ready, pass_.streamed_group);
          Compute(static_cast<double>(group) * pass_.expert_s, times_.experts_s);
          ready_[layer] -= group;
          streamed_left_ -= group;
          buffers_used_ -= group;
        } else if (const int64_t there = std::min(residents_left_, residents_ready_); there > 0) {
          const int64_t group = std::min(there, pass_.group);
          Compute(static_cast<double>(group) * pass_.expert_s, times_.experts_s);
          residents_left_ -= group;
          residents_ready_ -= group;
        } else {
          Wait();
        }
      }
      open_ = false;
      ready_[layer] = 0;
    }
    Compute(pass_.other_s, times_.other_s);
    // The next pass: what was read for its first layers is there.
    next_pass_reads_ -= static_cast<int64_t>(streamed_.size());
    if (next_pass_reads_ < 0) next_pass_reads_ = read_of_layer_ = 0;
  }

  void OpenLayer() {
    open_ = true;
    streamed_left_ = streamed_[layer_];
    residents_left_ = residents_[layer_];
    residents_to_read_ = pass_.cold ? residents_left_ : 0;
    residents_ready_ = residents_left_ - residents_to_read_;
  }

  // Gives the link something to read, if there is something that it may read.
  void StartLoad() {
    if (loading_) return;
    if (open_ && residents_to_read_ > 0) {
      --residents_to_read_;
      loading_resident_ = true;
    } else {
      if (buffers_used_ >= pass_.buffers) return;
      // The cursor: layers in order, over the end into the next pass, less than a pass ahead.
      const auto layers = static_cast<int64_t>(streamed_.size());
      while (read_of_layer_ >= streamed_[static_cast<size_t>(next_pass_reads_ % layers)]) {
        if (next_pass_reads_ - static_cast<int64_t>(layer_) >= layers - 1) return;
        ++next_pass_reads_;
        read_of_layer_ = 0;
      }
      if (next_pass_reads_ - static_cast<int64_t>(layer_) >= layers) return;
      ++read_of_layer_;
      ++buffers_used_;
      loading_resident_ = false;
      loading_layer_ = static_cast<size_t>(next_pass_reads_ % layers);
    }
    loading_ = true;
    load_left_s_ = pass_.load_s;
    ++times_.loads;
  }

  void EndLoad() {
    loading_ = false;
    if (loading_resident_) {
      ++residents_ready_;
    } else {
      ++ready_[loading_layer_];
    }
  }

  // Computes for so long (alone), the link beside it.
  void Compute(double alone_s, double& spent_s) {
    double left_s = alone_s;
    while (left_s > 0) {
      StartLoad();
      if (!loading_) {
        spent_s += left_s;
        times_.seconds += left_s;
        return;
      }
      const double compute_end = left_s / pass_.contended_compute_share;
      const double load_end = load_left_s_ / pass_.contended_link_share;
      const double step = std::min(compute_end, load_end);
      spent_s += step;
      times_.seconds += step;
      times_.link_s += step;
      if (load_end <= compute_end) {
        left_s = load_end < compute_end ? left_s - step * pass_.contended_compute_share : 0;
        EndLoad();
      } else {
        left_s = 0;
        load_left_s_ -= step * pass_.contended_link_share;
      }
    }
  }

  void Wait() {
    StartLoad();
    CHECK(loading_);  // else it would wait for ever
    times_.seconds += load_left_s_;
    times_.stall_s += load_left_s_;
    times_.link_s += load_left_s_;
    EndLoad();
  }

  const StreamPass& pass_;
  std::vector<int64_t> streamed_;   // [layers] that are used
  std::vector<int64_t> residents_;  // [layers] likewise
  std::vector<int64_t> ready_ = std::vector<int64_t>(static_cast<size_t>(pass_.layers), 0);
  size_t layer_ = 0;
  bool open_ = false;
  int64_t streamed_left_ = 0;
  int64_t residents_left_ = 0;
  int64_t residents_to_read_ = 0;
  int64_t residents_ready_ = 0;
  int64_t buffers_used_ = 0;
  int64_t next_pass_reads_ = 0;  // the layer that is read, counted on over the end of the pass
  int64_t read_of_layer_ = 0;
  bool loading_ = false;
  bool loading_resident_ = false;
  size_t loading_layer_ = 0;
  double load_left_s_ = 0;
  StreamPassTimes times_;
};

}  // namespace

StreamPassTimes SimulateStreamPass(const StreamPass& pass) {
  CHECK_GT(pass.layers, 0);
  CHECK(pass.streamed_active <= 0 || pass.buffers > 0);
  CHECK(pass.group > 0 && pass.streamed_group > 0);
  CHECK(pass.contended_link_share > 0 && pass.contended_compute_share > 0);
  return Player(pass).Run();
}

int64_t Rounded(double per_layer, int64_t n) {
  return static_cast<int64_t>(std::floor(per_layer * static_cast<double>(n + 1) + 0.5)) -
         static_cast<int64_t>(std::floor(per_layer * static_cast<double>(n) + 0.5));
}

int64_t ResidentGroup(uint64_t slot_bytes, int64_t buffers, int64_t num_experts) {
  return buffers == 0 ? num_experts : GroupOfExperts(slot_bytes);
}

int64_t StreamedGroup(uint64_t slot_bytes, int64_t buffers) {
  return std::clamp<int64_t>(buffers / 2, 1, GroupOfExperts(slot_bytes));
}

}  // namespace moesaic
