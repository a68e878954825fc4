// What matching a running iteration against a collection of request EAMs costs, for 48 layers of
// 128 experts, top 8: the setting of MoE-Infinity's 21 us (1,000 entries) and 226 us (10,000) per
// query. Prints a Markdown table.
//
//   eamc_bench [rounds]
//
// Every number is the median over rounds of one thread's CPU time per layer. A round goes through
// all 48 layers several times, never one layer again and again, which would only measure the cache.
// "like before": each layer's experts are those of the pass before (neighbouring tokens share
// most); "drawn anew": they are random in each pass, so that a large collection comes from memory.
#include <faiss/IndexFlat.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "tracer/eam_collection.h"
#include "tracer/request_tracer.h"

namespace moesaic {
namespace {

constexpr int kLayers = 48;
constexpr int kExperts = 128;
constexpr int kTopK = 8;
constexpr int kPrefillTokens = 64;
constexpr int kDrawnPasses = 16;

double NowSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Timing {
  double median_s = 0;
  double spread = 0;  // half the distance between the quartiles, relative to the median
};

// Per unit of what `run` does, which is `units` of it.
Timing Measure(int rounds, double units, const std::function<void()>& run) {
  run();
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    const double start = NowSeconds();
    run();
    seconds.push_back((NowSeconds() - start) / units);
  }
  std::sort(seconds.begin(), seconds.end());
  const size_t n = seconds.size();
  return {seconds[n / 2], (seconds[n * 3 / 4] - seconds[n / 4]) / 2 / seconds[n / 2]};
}

void Print(int entries, const std::string& what, const Timing& t, double bytes) {
  std::printf("| %d | %s | %.2f us | %.0f%% |", entries, what.c_str(), t.median_s * 1e6,
              t.spread * 100);
  if (bytes > 0) std::printf(" %.1f GB/s |\n", bytes / t.median_s * 1e-9);
  if (bytes == 0) std::printf(" |\n");
  std::fflush(stdout);
}

// A request of 50 to 250 tokens whose experts follow a Zipf law in an order of its own.
ExpertActivationMatrix MakeRequest(std::mt19937_64& random) {
  ExpertActivationMatrix eam(kLayers, kExperts);
  const auto tokens = static_cast<double>(50 + random() % 200);
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto first = static_cast<int>(random() % kExperts);
    const auto step = static_cast<int>(random() % (kExperts / 2) * 2 + 1);
    for (int rank = 0; rank < kExperts; ++rank) {
      const auto count = static_cast<uint32_t>(std::min(tokens, tokens * kTopK / 5.4 / (rank + 1)));
      if (count > 0) eam.Add(layer, (first + rank * step) % kExperts, count);
    }
  }
  return eam;
}

std::vector<int32_t> DrawExperts(std::mt19937_64& random) {
  std::vector<int32_t> experts(kExperts);
  for (int e = 0; e < kExperts; ++e) experts[static_cast<size_t>(e)] = e;
  std::shuffle(experts.begin(), experts.end(), random);
  experts.resize(kTopK);
  return experts;
}

// What counting costs before any matching: iteration and request matrices of one request.
void BenchTracer(int rounds) {
  std::mt19937_64 random(2);
  RequestTracer tracer(kLayers, kExperts, 1);
  const std::vector<RoutingSlice> slices = {{tracer.Begin(), 0, 1, false}};
  std::vector<std::vector<int32_t>> drawn;
  drawn.reserve(kDrawnPasses * kLayers);
  for (int i = 0; i < kDrawnPasses * kLayers; ++i) drawn.push_back(DrawExperts(random));
  const std::vector<float> weights(kTopK, 0.125f);
  Print(0, "RequestTracer: one token observed",
        Measure(rounds, kDrawnPasses * kLayers,
                [&] {
                  for (int pass = 0; pass < kDrawnPasses; ++pass) {
                    tracer.BeginIteration(slices);
                    for (int layer = 0; layer < kLayers; ++layer) {
                      tracer.Observe(
                          {layer, kTopK,
                           drawn[static_cast<size_t>(pass) * kLayers + static_cast<size_t>(layer)],
                           weights, slices});
                    }
                  }
                }),
        0);
}

void Bench(int entries, int rounds, const CpuKernels& kernels) {
  std::mt19937_64 random(1);
  EamCollection collection(kLayers, kExperts, entries, kernels);
  while (collection.size() < entries) collection.Insert(MakeRequest(random));
  EamMatcher matcher(collection, 8);
  double hash = 0;

  // One decode token per pass.
  std::vector<std::vector<int32_t>> drawn;  // [passes * layers]
  drawn.reserve(kDrawnPasses * kLayers);
  for (int i = 0; i < kDrawnPasses * kLayers; ++i) drawn.push_back(DrawExperts(random));
  const auto decode = [&](bool anew, int best) {
    for (int pass = 0; pass < kDrawnPasses; ++pass) {
      matcher.Begin();
      for (int layer = 0; layer < kLayers; ++layer) {
        const int of = anew ? pass : 0;
        matcher.ObserveExperts(
            layer, drawn[static_cast<size_t>(of) * kLayers + static_cast<size_t>(layer)]);
        if (best > 0) hash += matcher.Best(best).front().similarity;
      }
      if (best == 0) hash += matcher.Best(1).front().similarity;
    }
  };
  const double updates = kDrawnPasses * kLayers;
  const double decode_bytes = static_cast<double>(entries) * kTopK;
  Print(entries, "decode row, like before", Measure(rounds, updates, [&] { decode(false, 0); }),
        decode_bytes);
  Print(entries, "decode row, drawn anew", Measure(rounds, updates, [&] { decode(true, 0); }),
        decode_bytes);
  Print(entries, "decode row, like before, and best 4",
        Measure(rounds, updates, [&] { decode(false, 4); }), 0);

  // A dense row: a piece of a prompt.
  std::vector<std::vector<uint32_t>> rows;
  double dense_bytes = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<uint32_t> row(kExperts);
    for (int token = 0; token < kPrefillTokens; ++token) {
      for (const int32_t expert : DrawExperts(random)) ++row[static_cast<size_t>(expert)];
    }
    for (const uint32_t count : row) dense_bytes += count > 0 ? entries : 0;
    rows.push_back(std::move(row));
  }
  Print(entries, "dense row of 64 tokens",
        Measure(rounds, kLayers,
                [&] {
                  matcher.Begin();
                  for (int layer = 0; layer < kLayers; ++layer) {
                    matcher.ObserveRow(layer, rows[static_cast<size_t>(layer)]);
                  }
                  hash += matcher.Best(1).front().similarity;
                }),
        dense_bytes / kLayers);

  // What this core reads of the same memory without computing anything, for comparison.
  const size_t store_bytes = static_cast<size_t>(entries) * kLayers * kExperts;
  const std::vector<uint8_t> store(store_bytes, 1);
  Print(entries, "reading as much as a dense row, all 48 in turn",
        Measure(rounds, kLayers,
                [&] {
                  uint64_t sum = 0;
                  for (size_t i = 0; i + 64 <= store_bytes; i += 64) {
                    uint64_t word;
                    __builtin_memcpy(&word, store.data() + i, sizeof(word));
                    sum += word;
                  }
                  hash += static_cast<double>(sum & 1);
                }),
        static_cast<double>(store_bytes) / kLayers);

  std::vector<float> row(kExperts);
  matcher.Begin();
  matcher.ObserveExperts(0, drawn[0]);
  const std::span<const EamMatch> best = matcher.Best(4);
  Print(entries, "prediction of one row from 4 matches",
        Measure(rounds, kLayers,
                [&] {
                  for (int layer = 0; layer < kLayers; ++layer) {
                    collection.PredictRow(layer, best, row);
                    hash += row[0];
                  }
                }),
        0);

  std::vector<ExpertActivationMatrix> arriving;
  arriving.reserve(4);
  for (int i = 0; i < 4; ++i) arriving.push_back(MakeRequest(random));
  Print(entries, "whole matrix: replacing the nearest",
        Measure(rounds, 4,
                [&] {
                  for (const auto& eam : arriving) hash += collection.Insert(eam);
                }),
        0);
  if (entries <= 10000) {
    faiss::IndexFlatIP index(kLayers * kExperts);
    std::vector<float> flat(static_cast<size_t>(kLayers * kExperts));
    for (int i = 0; i < entries; ++i) {
      const std::span<const uint8_t> counts = collection.Counts(i);
      std::copy(counts.begin(), counts.end(), flat.begin());
      index.add(1, flat.data());
    }
    float similarity = 0;
    int64_t nearest = 0;
    Print(entries, "whole matrix: nearest by faiss::IndexFlatIP",
          Measure(std::min(rounds, 9), 1,
                  [&] {
                    index.search(1, flat.data(), 1, &similarity, &nearest);
                    hash += similarity;
                  }),
          static_cast<double>(entries) * kLayers * kExperts * sizeof(float));
  }
  std::printf("| %d | memory: %.1f MB, of a matcher %.1f KB | | | (hash %.6g) |\n", entries,
              static_cast<double>(collection.memory_bytes()) * 1e-6,
              static_cast<double>(matcher.memory_bytes()) * 1e-3, hash);
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 31;
  const moesaic::CpuKernels& kernels = moesaic::SelectKernels();
  std::printf("%s, one thread, %d rounds, %d layers of %d experts, top %d\n\n",
              moesaic::IsaName(kernels.isa), rounds, moesaic::kLayers, moesaic::kExperts,
              moesaic::kTopK);
  std::printf("| entries | work | median per layer | spread | rate |\n|---|---|---|---|---|\n");
  moesaic::BenchTracer(rounds);
  for (const int entries : {120, 1000, 10000}) moesaic::Bench(entries, rounds, kernels);
  return 0;
}
