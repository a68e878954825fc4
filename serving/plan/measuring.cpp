#include "serving/plan/measuring.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <ctime>
#include <functional>
#include <thread>
#include <utility>

#include "core/base/aligned_buffer.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

void PinThisThread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  // Best effort; without it the numbers only scatter more.
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

// Seconds of each of `rounds` rounds in which all threads run body(thread) once.
std::vector<double> TimeRounds(int threads, const std::vector<int>& cpus, int rounds,
                               const std::function<void(int thread)>& prepare,
                               const std::function<void(int thread)>& body) {
  std::vector<double> seconds;
  Stopwatch watch;
  // The completion step runs on one thread while the others wait: it may touch what is shared.
  bool first = true;
  std::barrier barrier(threads, [&]() noexcept {
    if (!first) seconds.push_back(watch.seconds());
    first = false;
    watch.Restart();
  });
  seconds.reserve(static_cast<size_t>(rounds));
  const auto work = [&](int thread) {
    if (!cpus.empty()) PinThisThread(cpus[static_cast<size_t>(thread) % cpus.size()]);
    prepare(thread);
    barrier.arrive_and_wait();
    for (int round = 0; round < rounds; ++round) {
      body(thread);
      barrier.arrive_and_wait();
    }
  };
  std::vector<std::jthread> workers;
  for (int thread = 0; thread < threads; ++thread) workers.emplace_back(work, thread);
  workers.clear();
  return seconds;
}

uint64_t SumWords(const uint64_t* words, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Measured Summarise(std::vector<double> samples, std::string unit, std::string how) {
  CHECK(!samples.empty());
  std::sort(samples.begin(), samples.end());
  Measured result;
  result.value = samples[samples.size() / 2];
  result.low = samples.front();
  result.high = samples.back();
  result.unit = std::move(unit);
  result.how = std::move(how);
  result.when = UtcNow();
  return result;
}

Measured MeasurePeak(float (*run)(int64_t iterations), int64_t multiply_adds, int threads,
                     const std::vector<int>& cpus, bool quick) {
  const int rounds = quick ? 3 : 7;
  const double round_s = quick ? 0.01 : 0.05;
  std::atomic<float> sink{0};
  // One thread finds how many iterations fill a round, after a warm-up that lets the clock settle.
  int64_t iterations = 1000;
  for (double seconds = 0; seconds < round_s;) {
    const Stopwatch watch;
    sink.store(run(iterations), std::memory_order_relaxed);
    seconds = watch.seconds();
    if (seconds < round_s) iterations *= 2;
  }
  std::vector<double> rates = TimeRounds(
      threads, cpus, rounds, [](int) {},
      [&](int) { sink.store(run(iterations), std::memory_order_relaxed); });
  const double flops =
      2.0 * static_cast<double>(multiply_adds) * static_cast<double>(iterations) * threads;
  for (double& rate : rates) rate = flops / rate;
  return Summarise(
      std::move(rates), "flop/s",
      fmt::format("median of {} runs of {:.0f} ms, operands in registers", rounds, round_s * 1e3));
}

Measured MeasureMemoryRead(int threads, const std::vector<int>& cpus, uint64_t usable_memory_bytes,
                           bool quick) {
  const int rounds = quick ? 3 : 7;
  const long cache_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  // Four times the last-level cache leaves little of it in the cache between rounds. (A virtual
  // machine may report its host's whole cache, hence the upper bounds.)
  uint64_t total_bytes =
      std::max<uint64_t>(uint64_t{256} << 20, 4 * static_cast<uint64_t>(std::max(0L, cache_bytes)));
  total_bytes = std::min(total_bytes, uint64_t{quick ? 512u : 2048u} << 20);
  total_bytes = std::min(total_bytes, usable_memory_bytes / 4);
  const uint64_t thread_bytes =
      RoundUp(std::max<uint64_t>(total_bytes / static_cast<uint64_t>(threads), 1 << 20), 1 << 20);
  std::vector<AlignedBuffer> buffers;
  for (int thread = 0; thread < threads; ++thread) buffers.emplace_back(thread_bytes);
  std::atomic<uint64_t> sink{0};
  std::vector<double> rates = TimeRounds(
      threads, cpus, rounds, [&](int thread) { buffers[static_cast<size_t>(thread)].Zero(); },
      [&](int thread) {
        const AlignedBuffer& buffer = buffers[static_cast<size_t>(thread)];
        sink.fetch_add(SumWords(buffer.as<uint64_t>(), buffer.bytes() / sizeof(uint64_t)),
                       std::memory_order_relaxed);
      });
  const double bytes = static_cast<double>(thread_bytes) * threads;
  for (double& rate : rates) rate = bytes / rate;
  return Summarise(std::move(rates), "byte/s",
                   fmt::format("median of {} passes over {}", rounds,
                               FormatBytes(thread_bytes * static_cast<uint64_t>(threads))));
}

}  // namespace moesaic
