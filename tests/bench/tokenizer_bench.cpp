// Encoding and decoding speed of whole tokenizers on one core, in bytes of text a second.
//
// The texts are given: BENCH_TEXT names a file (plain text); without it a generated English-like
// text is used. Cold: a new tokenizer's first text, word cache empty. Warm: the same text again.
#include <benchmark/benchmark.h>
#include <zlib.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "serving/text/tokenizer.h"
#include "serving/text/tokenizer_json.h"

namespace moesaic {
namespace {

constexpr const char* kDataDir = MOESAIC_BENCH_DATA_DIR "/tokenizers/";

std::string ReadGzip(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) std::abort();
  std::string text;
  std::array<char, 65536> buffer;
  int count;
  while ((count = gzread(file, buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  gzclose(file);
  return text;
}

std::unique_ptr<Tokenizer> Load(const std::string& name) {
  const std::string path = kDataDir + name + "/tokenizer.json.gz";
  return LoadTokenizerJson(ReadGzip(path), path);
}

// Words of Zipf-like frequency, capitals and punctuation: about the statistics of English prose, so
// that the bench needs no file.
std::string GeneratedText() {
  std::mt19937 random(7);
  std::vector<std::string> words;
  const std::string letters = "etaoinshrdlucmfwygpbvkxqjz";
  std::geometric_distribution<int> letter(0.12);
  for (int i = 0; i < 20000; ++i) {
    std::string word;
    const size_t length = 2 + random() % 8;
    while (word.size() < length) {
      word.push_back(letters[static_cast<size_t>(letter(random)) % letters.size()]);
    }
    words.push_back(word);
  }
  std::string text;
  std::uniform_real_distribution<double> uniform(0, 1);
  bool capital = true;
  while (text.size() < (4u << 20)) {
    const double u = uniform(random);
    std::string word = words[static_cast<size_t>(u * u * u * u * 19999)];
    if (capital) word[0] = static_cast<char>(word[0] - 'a' + 'A');
    text += word;
    capital = random() % 14 == 0;
    text += capital ? (random() % 5 == 0 ? ".\n\n" : ". ") : random() % 12 == 0 ? ", " : " ";
  }
  return text;
}

const std::string& Text() {
  static const std::string text = [] {
    const char* path = std::getenv("BENCH_TEXT");
    if (path == nullptr) return GeneratedText();
    std::ifstream file(path, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(file)), {});
  }();
  return text;
}

uint64_t Hash(const std::vector<int32_t>& ids) {
  uint64_t hash = 14695981039346656037ull;
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 1099511628211ull;
  return hash;
}

void Encode(benchmark::State& state, const char* name, bool warm) {
  std::unique_ptr<Tokenizer> tokenizer = Load(name);
  std::vector<int32_t> ids = tokenizer->Encode(Text());
  for (auto _ : state) {
    if (!warm) {
      state.PauseTiming();
      tokenizer = Load(name);
      state.ResumeTiming();
    }
    ids = tokenizer->Encode(Text());
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * Text().size()));
  state.counters["bytes_per_token"] = static_cast<double>(Text().size()) / ids.size();
  state.SetLabel("ids " + std::to_string(Hash(ids)));
}

void Decode(benchmark::State& state, const char* name) {
  const std::unique_ptr<Tokenizer> tokenizer = Load(name);
  const std::vector<int32_t> ids = tokenizer->Encode(Text());
  for (auto _ : state) {
    std::string text = tokenizer->Decode(ids);
    benchmark::DoNotOptimize(text.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * Text().size()));
}

void LoadFile(benchmark::State& state, const char* name) {
  const std::string path = kDataDir + std::string(name) + "/tokenizer.json.gz";
  const std::string json = ReadGzip(path);
  for (auto _ : state) {
    benchmark::DoNotOptimize(LoadTokenizerJson(json, path).get());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * json.size()));
}

void RegisterAll() {
  for (const char* name : {"gpt2", "qwen2", "olmoe", "mixtral_style"}) {
    const std::string suffix = name;
    for (const bool warm : {false, true}) {
      benchmark::RegisterBenchmark(
          ("Encode/" + suffix + (warm ? "/warm" : "/cold")).c_str(),
          [name, warm](benchmark::State& state) { Encode(state, name, warm); })
          ->Unit(benchmark::kMillisecond);
    }
    benchmark::RegisterBenchmark(("Decode/" + suffix).c_str(), [name](benchmark::State& state) {
      Decode(state, name);
    })->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("Load/" + suffix).c_str(), [name](benchmark::State& state) {
      LoadFile(state, name);
    })->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  moesaic::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
