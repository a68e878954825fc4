#include "serving/plan/link_measuring.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "serving/plan/batch_prediction.h"
#include "serving/plan/measuring.h"

namespace moesaic {
namespace {

constexpr int kJointPasses = 2;  // of a round
// Of the time, for reading by itself in a round: rounds are short beside the moods of a disk.
constexpr double kAloneShare = 0.05;
constexpr int64_t kContext = 16;
constexpr int64_t kMostRows = 1024;

struct LinkUse {
  double wall_s = 0;
  double idle_s = 0;  // nothing to read
  double bytes = 0;
  double active_s() const { return std::max(1e-9, wall_s - idle_s); }
  double rate() const { return bytes / active_s(); }
};

class LinkMeter {
 public:
  LinkMeter(PassMeter& passes, double seconds, ModuleCosts& costs)
      : passes_(passes), config_(passes.config()), seconds_(seconds), costs_(costs) {}

  void Run() {
    ReadAlone();  // warms up
    LinkUse all;
    std::vector<double> rates;
    std::vector<double> link_shares;
    std::vector<double> compute_shares;
    size_t rows = 0;
    for (const Stopwatch watch; rates.empty() || watch.seconds() < seconds_;) {
      LinkUse alone;
      for (const Stopwatch round; alone.bytes == 0 || round.seconds() < kAloneShare * seconds_;) {
        const LinkUse use = ReadAlone();
        alone.wall_s += use.wall_s;
        alone.bytes += use.bytes;
        if (use.bytes == 0) break;  // all experts are residents
      }
      all.wall_s += alone.wall_s;
      all.bytes += alone.bytes;
      rates.push_back(alone.rate());
      rows = static_cast<size_t>(BalancedRows(all.rate()));
      const double slowness = Slowness(static_cast<int64_t>(rows));
      const auto slices = passes_.DecodeSlices(static_cast<int64_t>(rows), kContext);
      passes_.routing().Observe();
      passes_.Run(slices, 0);  // it begins with empty buffers
      for (int pass = 0; pass < kJointPasses; ++pass) {
        const PassPoint point = passes_.Run(slices, 0);
        const double joint_s = point.dense_s + point.experts_s;
        const LinkUse use = {point.wall_s, point.link_idle_s,
                             static_cast<double>(point.bytes_read)};
        const double overlap = use.active_s() / use.wall_s;
        if (use.bytes == 0 || joint_s <= use.idle_s || overlap < 0.1) continue;
        const double alone_s =
            slowness * ComputeSeconds(point, point.routed_experts, point.routed_pairs);
        // Where computing waits, the link is by itself.
        const double both_s = joint_s - use.idle_s;
        const double waiting_s = use.active_s() - both_s;
        link_shares.push_back(
            std::clamp((use.bytes / alone.rate() - waiting_s) / both_s, 0.1, 1.0));
        compute_shares.push_back(
            std::clamp((alone_s / joint_s - (1 - overlap)) / overlap, 0.1, 1.0));
      }
    }
    costs_.link = Summarise(rates, "byte/s",
                            fmt::format("mean of {} runs over {:.1f} s, from disk into slots",
                                        rates.size(), all.wall_s));
    costs_.link.value = all.rate();
    if (link_shares.empty()) link_shares = compute_shares = {1};
    const std::string how =
        fmt::format("median of {} passes over {} rows beside reading", link_shares.size(), rows);
    costs_.contended_link_share = Summarise(std::move(link_shares), "share", how);
    costs_.contended_compute_share = Summarise(std::move(compute_shares), "share", how);
  }

 private:
  // Each layer's absent experts, one layer after another, each let go as soon as it is there.
  LinkUse ReadAlone() {
    LinkUse use;
    const Stopwatch watch;
    std::vector<ExpertId> wanted;
    std::vector<PinnedExpert> ready;
    StreamingExperts& experts = passes_.experts();
    experts.StepBegan();
    for (int64_t layer = 0; layer < config_.num_layers(); ++layer) {
      if (!config_.is_sparse(layer)) continue;
      wanted.clear();
      for (int64_t e = passes_.residents(); e < config_.num_experts(); ++e) {
        ExpertId id;
        id.layer = static_cast<uint16_t>(layer);
        id.index = static_cast<uint16_t>(e);
        wanted.push_back(id);
      }
      experts.BeginLayer(wanted, static_cast<int64_t>(wanted.size()));
      for (;;) {
        ready.clear();
        if (!experts.NextReady(ready)) break;
        for (const PinnedExpert& expert : ready) experts.Release(expert);
      }
      use.bytes += static_cast<double>(experts.EndLayer().bytes_read);
      // A slow link is known after a few layers as well as after all.
      if (watch.seconds() > 2 * kAloneShare * seconds_) break;
    }
    use.wall_s = watch.seconds();
    return use;
  }

  // Rows with which computing takes as long as reading.
  int64_t BalancedRows(double bytes_per_s) const {
    const double read_s = AsDouble(config_.num_experts() - passes_.residents()) *
                          static_cast<double>(passes_.slot_bytes()) / bytes_per_s;
    const double rows = TokenBudget(config_, costs_, read_s);
    return static_cast<int64_t>(
        std::clamp(rows, 16.0, AsDouble(std::min(kMostRows, passes_.limits().max_batch_tokens))));
  }

  // How much longer than the costs say a pass without reading takes at this moment.
  double Slowness(int64_t rows) {
    if (rows * config_.top_k() < passes_.spreadable()) return 1;
    const auto slices = passes_.DecodeSlices(rows, kContext);
    passes_.Run(slices, passes_.spreadable());  // what was read ahead is still being read
    const PassPoint point = passes_.Run(slices, passes_.spreadable());
    const double predicted_s = ComputeSeconds(point, point.active_experts, point.pairs);
    return predicted_s > 0 ? (point.dense_s + point.experts_s) / predicted_s : 1;
  }

  // Of a pass of decoding rows by itself, with so many experts and rows of experts in all layers.
  double ComputeSeconds(const PassPoint& point, double experts, double pairs) const {
    const double rows = AsDouble(point.rows);
    const int64_t sparse_layers = config_.num_sparse_layers();
    return AsDouble(config_.num_layers()) *
               (costs_[Module::kAttentionIn].seconds(rows) + costs_[Module::kOutput].seconds(rows) +
                costs_[Module::kDecodeAttention].seconds(point.decode_positions)) +
           AsDouble(config_.num_layers() - sparse_layers) * DenseMlpSeconds(config_, costs_, rows) +
           AsDouble(sparse_layers) * costs_[Module::kRouter].seconds(rows) +
           experts * costs_[Module::kExpert].fixed_s + pairs * costs_[Module::kExpert].per_unit_s;
  }

  PassMeter& passes_;
  const ModelConfig& config_;  // the first layers
  const double seconds_;
  ModuleCosts& costs_;
};

}  // namespace

void MeasureLink(PassMeter& passes, double seconds, ModuleCosts& costs) {
  LinkMeter(passes, seconds, costs).Run();
}

}  // namespace moesaic
