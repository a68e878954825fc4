// The loader over real files, with every reading backend of this machine.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "prefetch/link/expert_loader.h"
#include "tests/prefetch/test_source.h"

namespace moesaic {
namespace {

// The files of a test source, in a directory of their own; in several places, if that is wanted.
class SourceFiles {
 public:
  explicit SourceFiles(const TestSourceShape& shape, int places = 1) {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(test->name()) + "_" + std::to_string(getpid());
    for (char& c : name) c = c == '/' ? '_' : c;
    directory_ = std::filesystem::path(testing::TempDir()) / name;
    std::filesystem::create_directories(directory_);
    std::vector<std::filesystem::path> names;
    names.reserve(static_cast<size_t>(shape.files));
    for (int f = 0; f < shape.files; ++f) {
      names.push_back(directory_ / ("part" + std::to_string(f) + ".bin"));
    }
    source = std::make_unique<TestSource>(shape, names);
    Write(names);
    for (int place = 0; place < places && places > 1; ++place) {
      std::vector<std::filesystem::path> copies = names;
      const std::filesystem::path directory = directory_ / ("place" + std::to_string(place));
      std::filesystem::create_directory(directory);
      for (std::filesystem::path& copy : copies) copy = directory / copy.filename();
      Write(copies);
      source->all_places.push_back(copies);
    }
  }
  ~SourceFiles() { std::filesystem::remove_all(directory_); }

  std::unique_ptr<TestSource> source;

 private:
  void Write(const std::vector<std::filesystem::path>& names) const {
    const std::vector<std::vector<std::byte>>& contents = source->Contents();
    for (size_t f = 0; f < names.size(); ++f) {
      std::ofstream out(names[f], std::ios::binary);
      out.write(reinterpret_cast<const char*>(contents[f].data()),
                static_cast<std::streamsize>(contents[f].size()));
    }
  }

  std::filesystem::path directory_;
};

class ExpertLoaderFilesTest : public testing::TestWithParam<ReadBackend> {
 protected:
  std::unique_ptr<ExpertLoader> Open(const TestSource& source, int64_t slots, uint32_t packet_bytes,
                                     int depth, int pack_threads = 0) {
    ExpertLoaderOptions options;
    options.budget_bytes = static_cast<uint64_t>(slots) * source.layout().slot_bytes;
    options.backend = GetParam();
    options.packet_bytes = packet_bytes;
    options.depth = depth;
    options.pack_threads = pack_threads;
    const TestSourceShape& shape = source.shape();
    return std::make_unique<ExpertLoader>(source, shape.num_layers, shape.num_experts,
                                          MakeLruPolicy(shape.num_layers * shape.num_experts),
                                          options);
  }
  static void RunLayer(const TestSource& source, ExpertLoader& loader,
                       const std::vector<ExpertId>& needed) {
    loader.BeginLayer(needed);
    std::vector<PinnedExpert> ready;
    std::set<ExpertId> seen;
    while (loader.NextReady(ready)) {
      for (const PinnedExpert& pinned : ready) {
        EXPECT_TRUE(source.IsBlobOf(pinned.id, pinned.blob));
        EXPECT_TRUE(seen.insert(pinned.id).second);
        loader.Release(pinned);
      }
      ready.clear();
    }
    EXPECT_EQ(seen.size(), needed.size());
    loader.EndLayer();
  }
};

TEST_P(ExpertLoaderFilesTest, RandomLayersOverSeveralShapes) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<TestSourceShape> shapes(4);
  shapes[1].piece_bytes = {100'000, 99'999, 100'001};
  shapes[1].gap_bytes = 12'345;
  shapes[2].piece_bytes = {64 * 4096};
  shapes[2].direct = true;
  shapes[3].piece_bytes = {17};  // many experts on a page
  for (const TestSourceShape& shape : shapes) {
    const SourceFiles files(shape);
    const TestSource& source = *files.source;
    for (const int64_t slots : {1, 3, 8, 32}) {
      const std::unique_ptr<ExpertLoader> loader =
          Open(source, slots, 4096u << (random() % 6), 1 + static_cast<int>(random() % 16),
               static_cast<int>(random() % 2));
      for (int step = 0; step < 20; ++step) {
        std::vector<int> indices;
        for (int e = 0; e < shape.num_experts; ++e) {
          if (random() % 2 == 0) indices.push_back(e);
        }
        RunLayer(source, *loader, source.Ids(static_cast<int>(random() % 4), indices));
      }
      if (slots == 32) {
        loader->Clear();
        EXPECT_EQ(loader->Preload(source.AllIds()), 32);
        RunLayer(source, *loader, source.Ids(2, {0, 1, 2, 3, 4, 5, 6, 7}));
      }
    }
  }
}

TEST_P(ExpertLoaderFilesTest, FileCutShortUnderUs) {
  TestSourceShape shape;
  shape.files = 1;
  const SourceFiles files(shape);
  const TestSource& source = *files.source;
  const std::unique_ptr<ExpertLoader> loader = Open(source, 4, 4096, 8);
  RunLayer(source, *loader, source.Ids(0, {0}));
  const Extent last = source.Extents(source.Id(3, 7)).back();
  std::filesystem::resize_file(source.files()[0], last.offset);
  loader->BeginLayer(source.Ids(3, {7}));
  std::vector<PinnedExpert> ready;
  try {
    loader->NextReady(ready);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << error.what();
    EXPECT_NE(std::string(error.what()).find("part0.bin"), std::string::npos) << error.what();
  }
  loader->EndLayer();
  RunLayer(source, *loader, source.Ids(0, {0, 1, 2}));
}

// Files in several places: blobs are the same, each place carries some of the bytes, and what one
// has no longer comes from another.
TEST_P(ExpertLoaderFilesTest, SeveralPlacesShareTheReading) {
  std::mt19937_64 random(11);
  std::vector<TestSourceShape> shapes(2);
  shapes[0].piece_bytes = {100'000, 99'999, 300'001};
  shapes[1].piece_bytes = {64 * 4096};
  shapes[1].direct = true;
  for (const TestSourceShape& shape : shapes) {
    const SourceFiles files(shape, 3);
    TestSource& source = *files.source;
    const std::unique_ptr<ExpertLoader> loader = Open(source, 4, 64 << 10, 2, 1);
    const auto run = [&] {
      for (int step = 0; step < 12; ++step) {
        std::vector<int> indices = {0, 1, 2, 3, 4, 5, 6, 7};
        indices.erase(indices.begin() + static_cast<int>(random() % 8));
        RunLayer(source, *loader, source.Ids(step % 4, indices));
      }
    };
    run();
    std::vector<ReaderLink> links;
    loader->Links(links);
    ASSERT_EQ(links.size(), 3u);
    uint64_t bytes = 0;
    for (const ReaderLink& link : links) {
      EXPECT_GT(link.bytes, 0u) << link.name;
      bytes += link.bytes;
    }
    EXPECT_GE(bytes, loader->totals().bytes_read);
    for (const std::filesystem::path& file : source.all_places[1]) {
      std::filesystem::resize_file(file, 4096);
    }
    source.damaged = 0b101;  // so that this one is asked first, whatever the rates are
    run();
    loader->Links(links);
    EXPECT_GT(links[1].failed, 0u);
    EXPECT_EQ(links[0].failed + links[2].failed, 0u);
    EXPECT_EQ(loader->totals().failed_reads, 0u);
    // Nobody reads where the source says that its expert is damaged.
    loader->Clear();
    loader->Links(links);
    const uint64_t before = links[0].reads;
    source.damaged = 0b001;
    run();
    loader->Links(links);
    EXPECT_EQ(links[0].reads, before);
  }
}

// Bytes that were right once, in the place that they come from, are not looked at again; where they
// were not, and Check got others, nothing is learned.
TEST_P(ExpertLoaderFilesTest, EachPlaceIsCheckedOnce) {
  TestSourceShape shape;
  shape.piece_bytes = {64 * 4096};
  shape.direct = true;
  for (const bool mended : {false, true}) {
    const SourceFiles files(shape, 2);
    TestSource& source = *files.source;
    std::atomic<int> checks{0};
    source.mended = mended;
    source.must_check = [](ExpertId) { return true; };
    source.on_check = [&](ExpertId id, std::span<std::byte> slot) {
      ++checks;
      EXPECT_TRUE(source.IsBlobOf(id, slot.data()));
    };
    // One packet, of which each half, or the whole, comes from one of two places.
    const std::unique_ptr<ExpertLoader> loader = Open(source, 4, 64 * 4096, 4);
    constexpr int kReads = 60;
    for (int read = 0; read < kReads; ++read) {
      RunLayer(source, *loader, source.Ids(0, {3}));
      loader->Clear();
    }
    if (mended) {
      EXPECT_EQ(checks, kReads);
    } else {
      EXPECT_GE(checks, 1);
      EXPECT_LE(checks, 16);  // eighths of it in two places
    }
  }
}

TEST_P(ExpertLoaderFilesTest, DestroyedWithReadsInFlight) {
  TestSourceShape shape;
  shape.piece_bytes = {1 << 18, 1 << 18, 1 << 18};
  shape.num_layers = 2;
  const SourceFiles files(shape);
  for (int round = 0; round < 5; ++round) {
    const std::unique_ptr<ExpertLoader> loader = Open(*files.source, 8, 65536, 16);
    loader->BeginLayer(files.source->Ids(round % 2, {0, 1, 2, 3, 4, 5, 6, 7}));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ExpertLoaderFilesTest,
                         testing::Values(ReadBackend::kAuto, ReadBackend::kThreads,
                                         ReadBackend::kBuffered, ReadBackend::kMapped),
                         [](const auto& backend) { return ReadBackendName(backend.param); });

}  // namespace
}  // namespace moesaic
