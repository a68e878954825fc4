// How fast the expert loader brings experts in, cold and on demand, against plain reads of the same
// file by the same reader in the same run; and how long one expert takes.
//
//   expert_loader_bench [DIRECTORY] [FILE_GIB] [ROUNDS] [DEPTH] [PACKET_KIB] [LINK_MB]
//                                               (default: the temporary directory, 2, 7, defaults)
//
// With LINK_MB: only one, two and three links of so many megabytes a second each.
//
// Two sizes of expert: 9.4 MB (hidden 2048, intermediate 768, bf16) and 73 KB (hidden 128,
// intermediate 96). Two sources: "store" (one aligned extent, read into the slot; "checked": with
// the checksum that the first read of an expert has, at every read) and "checkpoint" (three
// unaligned extents, packed into panels by the kernels' packer), the latter with the I/O thread
// packing and with one and two packing threads. A round runs all candidates one after the other, so
// that a slow phase of the machine hits all of them; the first round warms up. Reads are O_DIRECT
// where the file system has it: past this machine's page cache, not past its host's. A sample of
// blobs is compared with what plain reads and the packer make of the file.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/units.h"
#include "core/io/async_reader.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/link/expert_loader.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr int kExpertsPerLayer = 32;
constexpr uint64_t kHeadBytes = 12'346;  // a checkpoint's header: tensors are not aligned after it

struct Shape {
  const char* name;
  int64_t hidden;
  int64_t intermediate;

  uint64_t matrix_bytes() const { return static_cast<uint64_t>(hidden * intermediate) * 2; }
  uint64_t expert_bytes() const { return 3 * matrix_bytes(); }
};

class TemporaryFile {
 public:
  TemporaryFile(const fs::path& directory, uint64_t bytes)
      : path_(directory / fmt::format("moesaic-expert-loader-bench-{}", getpid())) {
    constexpr size_t kChunkBytes = 8 << 20;
    std::vector<char> chunk(kChunkBytes);
    std::mt19937_64 random(1);
    for (size_t i = 0; i < chunk.size(); i += 8) {
      const uint64_t value = random() & 0x3fff3fff3fff3fffull;  // finite bf16 numbers
      std::memcpy(chunk.data() + i, &value, 8);
    }
    std::ofstream out(path_, std::ios::binary);
    for (uint64_t at = 0; at < bytes && out; at += kChunkBytes) {
      for (uint64_t i = 0; i < kChunkBytes; i += 4096) {  // no two pages are equal
        const uint64_t stamp = (at + i) & 0x3fff3fff3fffull;
        std::memcpy(chunk.data() + i, &stamp, sizeof(stamp));
      }
      out.write(chunk.data(), static_cast<std::streamsize>(kChunkBytes));
    }
    out.close();
    if (!out) {
      std::error_code ignored;
      fs::remove(path_, ignored);
      Fail(ErrorKind::kIo, "{}: cannot write {}", path_.string(), FormatBytes(bytes));
    }
    const File file(path_);
    fdatasync(file.fd());
  }
  ~TemporaryFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// As many experts as the file holds, of one shape.
class BenchSource : public ExpertSource {
 public:
  BenchSource(const Shape& shape, const fs::path& file, uint64_t file_bytes, bool store,
              bool checked = false)
      : shape_(shape), store_(store), checked_(checked), kernels_(SelectKernels()), files_({file}) {
    const int64_t rows[] = {shape.intermediate, shape.intermediate, shape.hidden};
    const int64_t cols[] = {shape.hidden, shape.hidden, shape.intermediate};
    for (int i = 0; i < 3; ++i) {
      const auto bytes =
          static_cast<uint64_t>(PackedMatrix::Bytes(WeightType::kBf16, rows[i], cols[i]));
      layout_.sections.push_back(
          {"", DType::kBF16, SectionFormat::kPanel16, rows[i], cols[i], layout_.blob_bytes, bytes});
      layout_.blob_bytes += bytes;
    }
    layout_.slot_bytes = RoundUp(layout_.blob_bytes, 4096);
    const uint64_t stride = store ? layout_.slot_bytes : shape.expert_bytes();
    const uint64_t begin = store ? 0 : kHeadBytes;
    layers_ = static_cast<int>((file_bytes - begin) / stride) / kExpertsPerLayer;
    CHECK_GT(layers_, 0);
    layers_ = std::min(layers_, 1000);
    for (int e = 0; e < layers_ * kExpertsPerLayer; ++e) {
      const uint64_t at = begin + static_cast<uint64_t>(e) * stride;
      if (store) {
        extents_.push_back({0, at, layout_.slot_bytes});
      } else {
        for (uint64_t m = 0; m < 3; ++m) {
          extents_.push_back({0, at + m * shape.matrix_bytes(), shape.matrix_bytes()});
        }
      }
    }
  }

  const std::vector<fs::path>& files() const override { return files_; }
  const ExpertLayout& layout() const override { return layout_; }
  std::span<const Extent> Extents(ExpertId id) const override {
    const size_t pieces = store_ ? 1 : 3;
    return {extents_.data() + (id.layer * kExpertsPerLayer + id.index) * pieces, pieces};
  }
  bool direct() const override { return store_; }
  void Pack(ExpertId, std::span<const std::span<const std::byte>> pieces,
            std::span<std::byte> slot) const override {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const ExpertSection& s = layout_.sections[i];
      const int64_t panels = (s.rows + kPanelOutputs - 1) / kPanelOutputs;
      kernels_.pack_panels(pieces[i].data(), DType::kBF16, s.cols, s.rows, s.cols,
                           WeightType::kBf16, 0, panels, slot.data() + s.offset);
    }
  }

  // As if each read were the first one of its expert.
  bool MustCheck(ExpertId) const override { return checked_; }
  bool Check(ExpertId, std::span<std::byte> slot) const override {
    CHECK_NE(Hash64(slot), uint64_t{0});
    return true;
  }
  std::span<const std::vector<fs::path>> replicas() const override { return replicas_; }
  // Read from the file so many times over, as if it lay on as many disks.
  void SetLinks(size_t links) { replicas_.assign(links, files_); }

  const Shape& shape() const { return shape_; }
  int layers() const { return layers_; }
  // What the loader must have made of an expert.
  bool IsBlob(ExpertId id, const std::byte* blob) const {
    const File file(files_[0]);
    const std::span<const Extent> extents = Extents(id);
    AlignedBuffer wanted(layout_.slot_bytes);
    if (store_) {
      file.ReadAt(extents[0].offset, wanted.span());
    } else {
      std::vector<std::vector<std::byte>> bytes;
      std::vector<std::span<const std::byte>> pieces;
      for (const Extent& extent : extents) {
        bytes.emplace_back(extent.bytes);
        file.ReadAt(extent.offset, bytes.back());
      }
      for (const std::vector<std::byte>& piece : bytes) pieces.emplace_back(piece);
      Pack(id, pieces, wanted.span());
    }
    return std::memcmp(blob, wanted.data(), layout_.blob_bytes) == 0;
  }

 private:
  Shape shape_;
  bool store_;
  bool checked_;
  const CpuKernels& kernels_;
  std::vector<fs::path> files_;
  std::vector<std::vector<fs::path>> replicas_;
  ExpertLayout layout_;
  std::vector<Extent> extents_;
  int layers_ = 0;
};

double Quantile(std::vector<double> values, double q) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

struct Settings {
  uint32_t packet_bytes = kDefaultPacketBytes;
  int depth = kDefaultReadDepth;
};

// One thing that is measured, again and again.
class Candidate {
 public:
  explicit Candidate(std::string name) : name_(std::move(name)) {}
  virtual ~Candidate() = default;
  // Reads experts for about `seconds`; returns bytes per second.
  virtual double Throughput(double seconds) = 0;
  // Seconds that one expert takes.
  virtual double Latency() = 0;
  virtual void Check() {}

  const std::string& name() const { return name_; }
  std::vector<double> rates;
  std::vector<double> latencies;

 private:
  std::string name_;
};

// As many reads as a layer of experts takes, at random places, straight through the reader: what
// the disk gives.
class PlainReads : public Candidate {
 public:
  PlainReads(const Shape& shape, const fs::path& file, uint64_t file_bytes,
             const Settings& settings)
      : Candidate("plain reads"),
        expert_bytes_(RoundUp(shape.expert_bytes(), 4096)),
        file_bytes_(file_bytes),
        settings_(settings),
        reader_(OpenAsyncReader({file}, ReadBackend::kAuto, settings.depth)),
        memory_(kExpertsPerLayer * expert_bytes_) {
    memory_.Zero();
  }

  double Throughput(double seconds) override {
    const Stopwatch watch;
    uint64_t bytes = 0;
    do {
      bytes += Read(kExpertsPerLayer);
    } while (watch.seconds() < seconds);
    return static_cast<double>(bytes) / watch.seconds();
  }
  double Latency() override {
    const Stopwatch watch;
    Read(1);
    return watch.seconds();
  }

 private:
  uint64_t Read(int experts) {
    std::vector<ReadCompletion> completions;
    int in_flight = 0;
    const auto reap = [&] {
      completions.clear();
      reader_->Wait(completions, -1);
      for (const ReadCompletion& completion : completions) CHECK_GT(completion.result, 0);
      in_flight -= static_cast<int>(completions.size());
    };
    for (int e = 0; e < experts; ++e) {
      const uint64_t begin = random_() % ((file_bytes_ - expert_bytes_) / 4096) * 4096;
      std::byte* slot = memory_.data() + static_cast<uint64_t>(e) * expert_bytes_;
      for (uint64_t at = 0; at < expert_bytes_; at += settings_.packet_bytes) {
        if (in_flight == settings_.depth) reap();
        const auto bytes =
            static_cast<uint32_t>(std::min<uint64_t>(settings_.packet_bytes, expert_bytes_ - at));
        reader_->Submit({0, begin + at, bytes, slot + at, 0});
        ++in_flight;
      }
    }
    while (in_flight > 0) reap();
    return static_cast<uint64_t>(experts) * expert_bytes_;
  }

  uint64_t expert_bytes_;
  uint64_t file_bytes_;
  Settings settings_;
  std::unique_ptr<AsyncReader> reader_;
  AlignedBuffer memory_;  // as much as the loaders' slots: a disk fills a cached page faster
  std::mt19937_64 random_{3};
};

class Loader : public Candidate {
 public:
  Loader(std::string name, const BenchSource& source, const Settings& settings, int pack_threads,
         uint64_t link_bytes_per_s = 0)
      : Candidate(std::move(name)), source_(source) {
    ExpertLoaderOptions options;
    options.budget_bytes = kExpertsPerLayer * source.layout().slot_bytes;
    options.packet_bytes = settings.packet_bytes;
    options.depth = settings.depth;
    options.pack_threads = pack_threads;
    options.link_bytes_per_s = link_bytes_per_s;
    loader_ =
        std::make_unique<ExpertLoader>(source, source.layers(), kExpertsPerLayer,
                                       MakeLruPolicy(source.layers() * kExpertsPerLayer), options);
  }

  // Whole layers, one after another; each finds nothing resident.
  double Throughput(double seconds) override {
    const Stopwatch watch;
    uint64_t bytes = 0;
    do {
      loader_->Clear();
      std::vector<ExpertId> needed;
      const int layer = static_cast<int>(random_() % static_cast<uint64_t>(source_.layers()));
      for (int e = 0; e < kExpertsPerLayer; ++e) needed.push_back(Id(layer, e));
      std::shuffle(needed.begin(), needed.end(), random_);
      bytes += RunLayer(needed);
    } while (watch.seconds() < seconds);
    return static_cast<double>(bytes) / watch.seconds();
  }
  double Latency() override {
    loader_->Clear();
    const std::vector<ExpertId> needed = {Any()};
    const Stopwatch watch;
    RunLayer(needed);
    return watch.seconds();
  }
  void Check() override {
    const ExpertId id = Any();
    const std::vector<ExpertId> needed = {id};
    loader_->BeginLayer(needed);
    std::vector<PinnedExpert> ready;
    CHECK(loader_->NextReady(ready));
    CHECK(source_.IsBlob(id, ready[0].blob));
    loader_->EndLayer();
  }

  ReadBackend backend() const { return loader_->backend(); }
  uint64_t staging_bytes() const {
    return loader_->slot_memory_bytes() - kExpertsPerLayer * source_.layout().slot_bytes;
  }

 private:
  static ExpertId Id(int layer, int index) {
    ExpertId id;
    id.layer = static_cast<uint16_t>(layer);
    id.index = static_cast<uint16_t>(index);
    return id;
  }
  ExpertId Any() {
    return Id(static_cast<int>(random_() % static_cast<uint64_t>(source_.layers())),
              static_cast<int>(random_() % kExpertsPerLayer));
  }
  uint64_t RunLayer(const std::vector<ExpertId>& needed) {
    loader_->BeginLayer(needed);
    while (loader_->NextReady(ready_)) {
      for (const PinnedExpert& pinned : ready_) loader_->Release(pinned);
      ready_.clear();
    }
    const ExpertStats stats = loader_->EndLayer();
    CHECK_EQ(stats.misses, needed.size());
    return stats.bytes_read;
  }

  const BenchSource& source_;
  std::unique_ptr<ExpertLoader> loader_;
  std::vector<PinnedExpert> ready_;
  std::mt19937_64 random_{5};
};

// Seconds that packing one expert takes on an otherwise idle thread.
double PackSeconds(const BenchSource& source) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<const std::byte>> pieces;
  for (const Extent& extent : source.Extents(ExpertId{})) bytes.emplace_back(extent.bytes);
  for (const std::vector<std::byte>& piece : bytes) pieces.emplace_back(piece);
  AlignedBuffer slot(source.layout().slot_bytes);
  std::vector<double> seconds;
  for (int i = 0; i < 30; ++i) {
    const Stopwatch watch;
    source.Pack(ExpertId{}, pieces, slot.span());
    seconds.push_back(watch.seconds());
  }
  return Quantile(seconds, 0.5);
}

// Likewise for its checksum, of bytes that are in memory and no cache.
double HashSeconds(const BenchSource& source) {
  const uint64_t bytes = source.layout().slot_bytes;
  const uint64_t experts = std::max<uint64_t>(1, (256 << 20) / bytes);
  AlignedBuffer slots(experts * bytes);
  slots.Zero();
  const Stopwatch watch;
  for (uint64_t e = 0; e < experts; ++e) {
    source.Check(ExpertId{}, slots.span().subspan(e * bytes, bytes));
  }
  return watch.seconds() / static_cast<double>(experts);
}

void RunShape(const Shape& shape, const fs::path& file, uint64_t file_bytes, int rounds,
              const Settings& settings) {
  const BenchSource store(shape, file, file_bytes, true);
  const BenchSource checked(shape, file, file_bytes, true, true);
  const BenchSource checkpoint(shape, file, file_bytes, false);
  std::vector<std::unique_ptr<Candidate>> candidates;
  candidates.push_back(std::make_unique<PlainReads>(shape, file, file_bytes, settings));
  auto first = std::make_unique<Loader>("loader, store", store, settings, 0);
  const ReadBackend backend = first->backend();
  candidates.push_back(std::move(first));
  candidates.push_back(std::make_unique<Loader>("loader, store, checked", checked, settings, 0));
  uint64_t staging_bytes = 0;
  for (const int pack_threads : {0, 1, 2}) {
    auto loader = std::make_unique<Loader>(
        pack_threads == 0 ? "loader, checkpoint"
                          : fmt::format("loader, checkpoint, {} packing", pack_threads),
        checkpoint, settings, pack_threads);
    staging_bytes = loader->staging_bytes();
    candidates.push_back(std::move(loader));
  }
  for (int round = -1; round < rounds; ++round) {
    for (const std::unique_ptr<Candidate>& candidate : candidates) {
      const double rate = candidate->Throughput(0.3);
      std::vector<double> latencies;
      for (int i = 0; i < 20; ++i) latencies.push_back(candidate->Latency());
      if (round < 0) {
        candidate->Check();
        continue;
      }
      candidate->rates.push_back(rate);
      candidate->latencies.insert(candidate->latencies.end(), latencies.begin(), latencies.end());
    }
  }
  const double pack_seconds = PackSeconds(checkpoint);
  const double hash_seconds = HashSeconds(checked);
  fmt::print(
      "\n{} ({} bytes), {}, packets of {}, {} in flight, staging {}; packing alone {:.2f} ms = "
      "{:.1f} GB/s, checksum alone {:.1f} GB/s\n\n"
      "| | GB/s median (min .. max) | of plain reads | one expert: median, 90%, us |\n"
      "|---|---|---|---|\n",
      shape.name, shape.expert_bytes(), ReadBackendName(backend),
      FormatBytes(settings.packet_bytes), settings.depth, FormatBytes(staging_bytes),
      pack_seconds * 1e3, static_cast<double>(shape.expert_bytes()) / pack_seconds * 1e-9,
      static_cast<double>(checked.layout().slot_bytes) / hash_seconds * 1e-9);
  const double plain = Quantile(candidates[0]->rates, 0.5);
  for (const std::unique_ptr<Candidate>& candidate : candidates) {
    const double rate = Quantile(candidate->rates, 0.5);
    fmt::print("| {} | {:.2f} ({:.2f} .. {:.2f}) | {:.0f}% | {:.0f}, {:.0f} |\n", candidate->name(),
               rate * 1e-9, Quantile(candidate->rates, 0) * 1e-9,
               Quantile(candidate->rates, 1) * 1e-9, 100 * rate / plain,
               Quantile(candidate->latencies, 0.5) * 1e6,
               Quantile(candidate->latencies, 0.9) * 1e6);
  }
  std::fflush(stdout);
}

// One, two and three links of a given rate each (throttled: core/io/throttled_reader.h), against
// the same number of times one.
void RunLinks(const Shape& shape, const fs::path& file, uint64_t file_bytes, int rounds,
              const Settings& settings, double link_bytes_per_s) {
  struct Row {
    bool store;
    size_t links;
    std::unique_ptr<BenchSource> source;
    std::unique_ptr<Loader> loader;
  };
  std::vector<Row> rows;
  for (const bool store : {true, false}) {
    for (const size_t links : {1, 2, 3}) {
      // Of several stores what was not right once from its link is compared with its checksum.
      auto source = std::make_unique<BenchSource>(shape, file, file_bytes, store, links > 1);
      source->SetLinks(links);
      auto loader = std::make_unique<Loader>(
          fmt::format("{}, {} link{}", store ? "store" : "checkpoint", links, links > 1 ? "s" : ""),
          *source, settings, 1, static_cast<uint64_t>(link_bytes_per_s));
      rows.push_back({store, links, std::move(source), std::move(loader)});
    }
  }
  for (int round = -1; round < rounds; ++round) {
    for (const Row& row : rows) {
      const double rate = row.loader->Throughput(0.3);
      std::vector<double> latencies;
      for (int i = 0; i < 5; ++i) latencies.push_back(row.loader->Latency());
      if (round < 0) {
        row.loader->Check();
        continue;
      }
      row.loader->rates.push_back(rate);
      row.loader->latencies.insert(row.loader->latencies.end(), latencies.begin(), latencies.end());
    }
  }
  fmt::print(
      "\n{} ({} bytes), links throttled to {:.0f} MB/s each, packets of {}, {} in flight on "
      "each\n\n"
      "| | MB/s median (min .. max) | times one link | one expert: median, 90%, us |\n"
      "|---|---|---|---|\n",
      shape.name, shape.expert_bytes(), link_bytes_per_s * 1e-6, FormatBytes(settings.packet_bytes),
      settings.depth);
  double one = 0;
  for (const Row& row : rows) {
    const double rate = Quantile(row.loader->rates, 0.5);
    if (row.links == 1) one = rate;
    fmt::print("| {} | {:.1f} ({:.1f} .. {:.1f}) | {:.2f} | {:.0f}, {:.0f} |\n", row.loader->name(),
               rate * 1e-6, Quantile(row.loader->rates, 0) * 1e-6,
               Quantile(row.loader->rates, 1) * 1e-6, rate / one,
               Quantile(row.loader->latencies, 0.5) * 1e6,
               Quantile(row.loader->latencies, 0.9) * 1e6);
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  using namespace moesaic;
  try {
    const fs::path directory = argc > 1 ? fs::path(argv[1]) : fs::temp_directory_path();
    const double gib = std::clamp(argc > 2 ? std::atof(argv[2]) : 2.0, 0.5, 4.0);
    const int rounds = std::max(argc > 3 ? std::atoi(argv[3]) : 7, 1);
    Settings settings;
    if (argc > 4 && std::atoi(argv[4]) > 0) settings.depth = std::atoi(argv[4]);
    if (argc > 5 && std::atoi(argv[5]) > 0) {
      settings.packet_bytes = static_cast<uint32_t>(std::max(std::atoi(argv[5]), 4)) * 1024;
    }
    const auto file_bytes = static_cast<uint64_t>(gib * static_cast<double>(kGiB));
    const TemporaryFile file(directory, file_bytes);
    const double link_bytes_per_s = argc > 6 ? std::atof(argv[6]) * 1e6 : 0;
    for (const Shape& shape :
         {Shape{"experts of 9.4 MB", 2048, 768}, Shape{"experts of 73 KB", 128, 96}}) {
      if (link_bytes_per_s > 0) {
        RunLinks(shape, file.path(), file_bytes, rounds, settings, link_bytes_per_s);
      } else {
        RunShape(shape, file.path(), file_bytes, rounds, settings);
      }
    }
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return ExitCode(error.kind());
  }
}
