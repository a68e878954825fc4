// What who looks on costs the engine's thread: its CPU time for a sample, and the time for the
// routing of a layer, by shape, and what part of a second both are at four samples and at 100
// tokens a second, one token a step. Prints a Markdown table.
//
//   live_sampler_bench [rounds]
//
// Medians over rounds, and over layers. Between two samples and two layers other memory is gone
// through, as a step of the model does: otherwise the planes would stay in the cache.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "serving/engine/live_sampler.h"
#include "tests/serving/engine/idle_provider.h"

namespace moesaic {
namespace {

constexpr size_t kLayerWords = (8 << 20) / sizeof(uint64_t);  // more than a level 2 cache

double NowSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A quarter of the experts is resident, as an ExpertLoader writes it down: slot after slot.
class QuarterResident final : public IdleProvider {
 public:
  explicit QuarterResident(size_t experts) : slots_(experts / 4) {
    std::vector<int32_t> all(experts);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), std::mt19937(1));
    std::copy_n(all.begin(), slots_.size(), slots_.begin());
  }
  int64_t slots() const override { return std::ssize(slots_); }
  int64_t resident() const override { return std::ssize(slots_); }
  bool Look(std::span<ExpertPresence> places, std::vector<LinkUse>& links) const override {
    for (const int32_t expert : slots_) {
      places[static_cast<size_t>(expert)] = ExpertPresence::kResident;
    }
    links.emplace_back();
    return true;
  }

 private:
  std::vector<int32_t> slots_;
};

void Measure(int64_t layers, int64_t experts, int64_t top_k, int rounds) {
  LiveView view({}, [] {});
  const LiveView::Watch watch(view);
  const auto start = LiveSampler::Clock::now();
  LiveSampler sampler(view, layers, experts, start);
  KvManager kv({{0}, kKvBlockTokens, kAttentionChunkTokens}, 1 << 10);
  Scheduler scheduler({}, kv);
  for (RequestId id = 1; id <= 8; ++id) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = id;
    sequence->request.id = "req-0123456789abcdef0123456789abcdef";
    sequence->tokens.resize(100);
    sequence->prompt_tokens = 90;
    scheduler.Add(std::move(sequence));
  }
  const QuarterResident provider(static_cast<size_t>(layers * experts));
  std::mt19937 random(2);
  std::vector<int32_t> chosen(static_cast<size_t>(top_k));
  std::vector<uint64_t> other((64 << 20) / sizeof(uint64_t));
  std::vector<double> sample_s;
  std::vector<double> layer_s;
  uint64_t sum = 0;
  for (int round = 0; round < rounds; ++round) {
    for (uint64_t& word : other) sum += ++word;
    for (int32_t& expert : chosen) {
      expert = static_cast<int32_t>(random() % static_cast<uint64_t>(experts));
    }
    sampler.BeginStep(1);
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (size_t i = 0; i < kLayerWords; ++i) sum += ++other[i];
      // Not the thread's CPU time: to ask for that takes longer than what is measured.
      const auto began = LiveSampler::Clock::now();
      if (!sampler.counting()) continue;
      sampler.CountUse(layer, chosen);
      // What the engine's loop does at each layer: is a sample due?
      const auto now = LiveSampler::Clock::now();
      sum += sampler.Due(now) ? 1 : 0;
      layer_s.push_back(std::chrono::duration<double>(LiveSampler::Clock::now() - began).count());
    }
    for (uint64_t& word : other) sum += ++word;
    const double begin = NowSeconds();
    sampler.Sample({scheduler, kv, &provider, {}, 1, {}}, LiveSampler::Clock::now());
    sample_s.push_back(NowSeconds() - begin);
  }
  const double sample = Median(sample_s);
  const double layer = Median(layer_s);
  std::printf("| %lld x %lld, top %lld | %.1f | %.0f | %.3f%% |\n", static_cast<long long>(layers),
              static_cast<long long>(experts), static_cast<long long>(top_k), sample * 1e6,
              layer * 1e9, 100 * (4 * sample + 100 * static_cast<double>(layers) * layer));
  if (sum == 0) std::printf("\n");
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
  std::printf("| layers x experts | a sample, us | a layer, ns | of the thread's time |\n");
  std::printf("|---|---|---|---|\n");
  moesaic::Measure(8, 32, 4, rounds);
  moesaic::Measure(48, 128, 8, rounds);
  moesaic::Measure(48, 512, 10, rounds);
  moesaic::Measure(61, 384, 8, rounds);
  return 0;
}
