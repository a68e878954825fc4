// Reading a request's JSON: 16 MiB of each shape of tests/serving/api/json_shapes.h.
//
// ignored: as a field that the server does not know, checked and not built. kept: built as a whole.
// Both start from the bytes of the body and end with everything released again.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "serving/api/json_document.h"
#include "tests/serving/api/json_shapes.h"

namespace moesaic {
namespace {

constexpr size_t kBytes = size_t{16} << 20;

void Report(benchmark::State& state, size_t text_bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text_bytes));
}

void Register(const JsonShape& shape) {
  JsonLimits limits;
  if (shape.name == kOneWideObject) limits.max_members = size_t{1} << 24;
  benchmark::RegisterBenchmark(("ignored/" + shape.name).c_str(), [limits,
                                                                   text = R"({"prompt":"a","zz":)" +
                                                                          shape.text + "}"](
                                                                      benchmark::State& state) {
    for (auto _ : state) {
      const JsonDocument document(text, limits);
      Json prompt = document.BuildMember(0);
      benchmark::DoNotOptimize(prompt);
    }
    Report(state, text.size());
  })->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark(("kept/" + shape.name).c_str(), [limits, text = shape.text](
                                                                   benchmark::State& state) {
    for (auto _ : state) {
      Json value = ParseJson(text, limits);
      benchmark::DoNotOptimize(value);
    }
    Report(state, text.size());
  })->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  for (const moesaic::JsonShape& shape : moesaic::JsonShapes(moesaic::kBytes)) {
    moesaic::Register(shape);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
