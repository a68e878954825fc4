#include "core/io/expert_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/io/expert_store_json.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSlotBytes = 8192;

ExpertStoreHeader SmallHeader() {
  ExpertStoreHeader header;
  header.source_fingerprint = 0xfedcba9876543210;
  header.model_type = "qwen3_moe";
  header.layout.sections = {
      {"gate", DType::kBF16, SectionFormat::kPanel16, 16, 64, 0, 2048},
      {"up", DType::kBF16, SectionFormat::kPanel16, 16, 64, 2048, 2048},
      {"down", DType::kF32, SectionFormat::kRowMajor, 64, 16, 4096, 4096},
  };
  header.layout.blob_bytes = 8192;
  header.layout.slot_bytes = kSlotBytes;
  header.sparse_layers = {1, 3, 7};
  header.num_experts = 5;
  return header;
}

std::vector<std::byte> Blob(int position) {
  std::mt19937 random(static_cast<uint32_t>(position));
  std::vector<std::byte> blob(kSlotBytes);
  for (std::byte& b : blob) b = static_cast<std::byte>(random());
  return blob;
}

void WriteStore(const fs::path& directory, const ExpertStoreHeader& header) {
  ExpertStoreWriter writer(directory, header);
  const int count = static_cast<int>(header.sparse_layers.size()) * header.num_experts;
  for (int i = 0; i < count; ++i) writer.Append(Blob(i));
  writer.Finish();
}

std::string ReadAll(const fs::path& path) { return ReadTextFile(path, 1 << 20); }

void WriteAll(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<std::string> Names(const fs::path& directory) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class ExpertStoreTest : public testing::Test {
 protected:
  TempDir dir_;
  fs::path store_ = dir_.path() / "experts";
};

TEST_F(ExpertStoreTest, RoundTrip) {
  const ExpertStoreHeader header = SmallHeader();
  WriteStore(store_, header);
  const ExpertStoreHeader read = OpenExpertStore(store_);
  EXPECT_EQ(read.source_fingerprint, header.source_fingerprint);
  EXPECT_EQ(read.model_type, header.model_type);
  EXPECT_EQ(read.sparse_layers, header.sparse_layers);
  EXPECT_EQ(read.num_experts, header.num_experts);
  EXPECT_EQ(read.layout.blob_bytes, header.layout.blob_bytes);
  EXPECT_EQ(read.layout.slot_bytes, header.layout.slot_bytes);
  ASSERT_EQ(read.layout.sections.size(), 3u);
  EXPECT_EQ(read.layout.Section("down").dtype, DType::kF32);
  EXPECT_EQ(read.layout.Section("down").format, SectionFormat::kRowMajor);
  EXPECT_EQ(read.layout.Section("up").offset, 2048u);
  EXPECT_EQ(read.layout.Section("gate").rows, 16);

  const File data(ExpertStoreDataFile(store_));
  int position = 0;
  for (const uint16_t layer : {1, 3, 7}) {
    for (uint16_t index = 0; index < 5; ++index, ++position) {
      ExpertId id;
      id.layer = layer;
      id.index = index;
      const Extent extent = ExpertStoreExtent(read, id);
      EXPECT_EQ(extent.offset % 4096, 0u);
      ASSERT_EQ(extent.bytes, kSlotBytes);
      std::vector<std::byte> blob(extent.bytes);
      ASSERT_EQ(data.ReadAt(extent.offset, blob), extent.bytes);
      EXPECT_EQ(blob, Blob(position));
    }
  }
  VerifyExpertStore(store_);
  EXPECT_EQ(Names(dir_.path()), std::vector<std::string>{"experts"});
}

// tests/data/stored/README.md says who wrote it.
TEST(StoredFilesTest, AStoreOfAnEarlierBuildHasItsChecksums) {
  const fs::path store = fs::path(MOESAIC_TEST_DATA_DIR) / "stored" / "expert_store";
  EXPECT_NO_THROW(VerifyExpertStore(store));
  EXPECT_EQ(DescribeExpertStore(store).checksums.size(), 16u);
}

TEST_F(ExpertStoreTest, SeveralStoresAreNamedWithCommas) {
  const auto stores = [](const std::string& setting) { return ExpertStoresOf(setting); };
  EXPECT_EQ(stores("/a"), std::vector<fs::path>{"/a"});
  EXPECT_EQ(stores("/a,b c"), (std::vector<fs::path>{"/a", "b c"}));
  for (const std::string setting : {"/a,", ",/a", "/a,,/b"}) {
    EXPECT_TRUE(Contains(Caught([&] { stores(setting); }), "a directory is missing")) << setting;
  }
  EXPECT_TRUE(Contains(Caught([&] { stores("/a,/b,/a/."); }), "/a and /a/. are the same"));
  const fs::path comma = dir_.path() / "a,b";
  fs::create_directory(comma);
  EXPECT_EQ(stores(comma), std::vector<fs::path>{comma});
  fs::create_symlink(comma, dir_.path() / "link");
  EXPECT_EQ(Caught([&] {
              stores((dir_.path() / "link").string() + "," + (dir_.path() / "x/../link").string());
            }).kind(),
            ErrorKind::kInvalidArgument);
  std::string many = "/0";
  for (int i = 1; i < 16; ++i) many += fmt::format(",/{}", i);
  EXPECT_EQ(stores(many).size(), 16u);
  EXPECT_TRUE(Contains(Caught([&] { stores(many + ",/16"); }), "16 is the most"));
}

TEST_F(ExpertStoreTest, ServersComeBehindTheStoresHere) {
  const auto stores = [](const std::string& setting) { return ExpertStoresOf(setting); };
  EXPECT_EQ(stores("tcp://b:1,/a,tcp://c:2,/d"),
            (std::vector<fs::path>{"/a", "/d", "tcp://b:1", "tcp://c:2"}));
  for (const std::string setting : {"tcp://b:1", "tcp://b:1,tcp://c:2"}) {
    EXPECT_TRUE(Contains(Caught([&] { stores(setting); }), "a server alone is not enough"))
        << setting;
  }
  EXPECT_TRUE(Contains(Caught([&] { stores("/a,tcp://b"); }), "tcp://b is no address"));
}

TEST_F(ExpertStoreTest, StoresWithTheSameExpertsHaveOneIdentity) {
  ExpertStoreDescription a;
  a.header = SmallHeader();
  a.checksums = {1, 2, 3};
  ExpertStoreDescription b = a;
  b.header.source_fingerprint = 1;  // packed of another copy of the checkpoint
  EXPECT_EQ(IdentityOf(a), IdentityOf(b));
  EXPECT_EQ(IdentityOf(a).bytes, a.header.sparse_layers.size() *
                                     static_cast<size_t>(a.header.num_experts) *
                                     a.header.layout.slot_bytes);
  b.checksums[2] = 4;
  EXPECT_NE(IdentityOf(a), IdentityOf(b));
  b = a;
  b.header.sparse_layers.back() += 1;
  EXPECT_NE(IdentityOf(a), IdentityOf(b));
  b = a;
  b.header.model_type = "another";
  EXPECT_NE(IdentityOf(a), IdentityOf(b));
}

TEST_F(ExpertStoreTest, StoresHaveTheSameExpertsOrWhyNot) {
  const ExpertStoreHeader header = SmallHeader();
  ExpertStoreDescription a;
  a.header = header;
  a.checksums = {1, 2, 3};
  ExpertStoreDescription b = a;
  EXPECT_EQ(WhyNotSameExperts(a, b), "");
  b.checksums[2] = 4;
  EXPECT_EQ(WhyNotSameExperts(a, b), "their experts have different weights");
  b = a;
  b.header.source_fingerprint = 1;
  EXPECT_NE(WhyNotSameExperts(a, b).find("different copies"), std::string::npos);
  b = a;
  b.header.num_experts = 4;
  EXPECT_EQ(WhyNotSameExperts(a, b),
            "one has 3 x 5 experts of qwen3_moe, the other 3 x 4 of qwen3_moe");
  b = a;
  b.header.sparse_layers[0] = 0;
  EXPECT_NE(WhyNotSameExperts(a, b), "");
  b = a;
  b.header.layout.sections[0].dtype = DType::kF32;
  EXPECT_EQ(WhyNotSameExperts(a, b),
            "one has experts of 8192 bytes (bf16), the other of 8192 (f32)");
}

TEST_F(ExpertStoreTest, VerifyNamesTheDamagedExpert) {
  WriteStore(store_, SmallHeader());
  {
    std::fstream data(ExpertStoreDataFile(store_), std::ios::in | std::ios::out | std::ios::binary);
    data.seekp(8 * kSlotBytes + 77);  // layer 3, expert 3
    data.put(static_cast<char>(Blob(8)[77] ^ std::byte{1}));
  }
  const Error error = Caught([&] { VerifyExpertStore(store_); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_TRUE(Contains(error, "expert 3 of layer 3")) << error.what();
  EXPECT_TRUE(Contains(error, ExpertStoreDataFile(store_).string())) << error.what();
  EXPECT_TRUE(Contains(error, "run `moesaic pack` again")) << error.what();
  OpenExpertStore(store_);  // cheap checks do not read the data
  const ExpertStoreDescription store = DescribeExpertStore(store_);
  EXPECT_NO_THROW(CheckExpert(store, "file", 8, Blob(8)));
  EXPECT_THROW(CheckExpert(store, "file", 8, Blob(7)), Error);
  EXPECT_THROW(CheckExpert(store, "file", 8, std::vector<std::byte>(4096)), Error);
}

// The first and the last one, at their first and last bytes, too.
TEST_F(ExpertStoreTest, VerifyLooksAtEveryByte) {
  WriteStore(store_, SmallHeader());
  for (const int position : {0, 4, 5, 14}) {
    for (const uint64_t at : {uint64_t{0}, kSlotBytes - 1}) {
      const auto write = [&](std::byte value) {
        std::fstream data(ExpertStoreDataFile(store_),
                          std::ios::in | std::ios::out | std::ios::binary);
        data.seekp(static_cast<std::streamoff>(static_cast<uint64_t>(position) * kSlotBytes + at));
        data.put(static_cast<char>(value));
      };
      const std::byte good = Blob(position)[at];
      write(good ^ std::byte{0x80});
      const Error error = Caught([&] { VerifyExpertStore(store_); });
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << position;
      const int layers[] = {1, 3, 7};
      EXPECT_TRUE(Contains(
          error, fmt::format("expert {} of layer {} ", position % 5, layers[position / 5])))
          << error.what();
      write(good);
    }
  }
  VerifyExpertStore(store_);
}

TEST_F(ExpertStoreTest, UnfinishedWriterLeavesNothing) {
  {
    ExpertStoreWriter writer(store_, SmallHeader());
    writer.Append(Blob(0));
  }
  EXPECT_TRUE(Names(dir_.path()).empty());
  EXPECT_EQ(Caught([&] { OpenExpertStore(store_); }).kind(), ErrorKind::kNotFound);
}

TEST_F(ExpertStoreTest, ReplacesAnOlderStoreOnlyWhenComplete) {
  WriteStore(store_, SmallHeader());
  ExpertStoreHeader changed = SmallHeader();
  changed.source_fingerprint = 5;
  {
    ExpertStoreWriter writer(store_, changed);
    writer.Append(Blob(0));
    EXPECT_EQ(OpenExpertStore(store_).source_fingerprint, SmallHeader().source_fingerprint);
  }
  EXPECT_EQ(OpenExpertStore(store_).source_fingerprint, SmallHeader().source_fingerprint);
  WriteStore(store_, changed);
  EXPECT_EQ(OpenExpertStore(store_).source_fingerprint, 5u);
  VerifyExpertStore(store_);
  EXPECT_EQ(Names(dir_.path()), std::vector<std::string>{"experts"});
}

TEST_F(ExpertStoreTest, TakesATrailingSlashAndAnEmptyDirectory) {
  fs::create_directories(store_);
  WriteStore(store_ / "", SmallHeader());
  EXPECT_EQ(OpenExpertStore(store_).num_experts, 5);
  EXPECT_EQ(Names(dir_.path()), std::vector<std::string>{"experts"});
}

TEST_F(ExpertStoreTest, LeavesOtherDirectoriesAlone) {
  fs::create_directories(store_);
  WriteAll(store_ / "thesis.txt", "precious");
  const Error error = Caught([&] { ExpertStoreWriter(store_, SmallHeader()); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(Contains(error, store_.string())) << error.what();
  EXPECT_EQ(ReadAll(store_ / "thesis.txt"), "precious");
}

TEST_F(ExpertStoreTest, KilledWriterIsCleanedUpByTheNext) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ExpertStoreWriter writer(store_, SmallHeader());
    writer.Append(Blob(0));
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(Names(dir_.path()), std::vector<std::string>{".experts.packing"});
  WriteStore(store_, SmallHeader());
  EXPECT_EQ(Names(dir_.path()), std::vector<std::string>{"experts"});
  VerifyExpertStore(store_);
}

TEST_F(ExpertStoreTest, TwoWritersDoNotMix) {
  ExpertStoreWriter first(store_, SmallHeader());
  const Error error = Caught([&] { ExpertStoreWriter(store_, SmallHeader()); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  for (int i = 0; i < 15; ++i) first.Append(Blob(i));
  first.Finish();
  VerifyExpertStore(store_);
}

TEST_F(ExpertStoreTest, SaysHowMuchSpaceIsMissing) {
  ExpertStoreHeader header = SmallHeader();
  header.layout.slot_bytes = uint64_t{1} << 40;
  header.num_experts = 60000;
  const Error error = Caught([&] { ExpertStoreWriter(store_, header); });
  EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
  EXPECT_TRUE(Contains(error, "missing")) << error.what();
  EXPECT_TRUE(Names(dir_.path()).empty());
}

TEST_F(ExpertStoreTest, FileSizeLimitLeavesNothingBehind) {
  // A process of its own, because the limit is the process's.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {5 * kSlotBytes, 5 * kSlotBytes};
    int code = 1;
    if (setrlimit(RLIMIT_FSIZE, &limit) == 0) {
      const Error error = Caught([&] { WriteStore(store_, SmallHeader()); });
      code =
          error.kind() == ErrorKind::kResourceExhausted && Contains(error, "experts.bin") ? 0 : 2;
    }
    _exit(code);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(Names(dir_.path()).empty());
}

TEST_F(ExpertStoreTest, DataFileOfAnotherSize) {
  WriteStore(store_, SmallHeader());
  for (const uint64_t bytes :
       {uint64_t{0}, 14 * kSlotBytes, 15 * kSlotBytes - 1, 15 * kSlotBytes + 1, 16 * kSlotBytes}) {
    fs::resize_file(ExpertStoreDataFile(store_), bytes);
    for (const bool verify : {false, true}) {
      const Error error = Caught([&] {
        if (verify) {
          VerifyExpertStore(store_);
        } else {
          OpenExpertStore(store_);
        }
      });
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << bytes;
      EXPECT_TRUE(Contains(error, "experts.bin")) << error.what();
      EXPECT_TRUE(Contains(error, fmt::format("has {} bytes, expected {}", bytes, 15 * kSlotBytes)))
          << error.what();
    }
  }
}

TEST_F(ExpertStoreTest, MissingDataFile) {
  WriteStore(store_, SmallHeader());
  fs::remove(ExpertStoreDataFile(store_));
  EXPECT_EQ(Caught([&] { OpenExpertStore(store_); }).kind(), ErrorKind::kNotFound);
}

// Each damage to store.json, and what the message has to name.
TEST_F(ExpertStoreTest, DamagedHeader) {
  WriteStore(store_, SmallHeader());
  const fs::path json = store_ / "store.json";
  const std::string good = ReadAll(json);
  struct Damage {
    std::string from, to, named;
  };
  const Damage damages[] = {
      {"\"version\": 2", "\"version\": 1", "version 1, expected 2"},
      {"\"version\": 2", "\"version\": -1", "version"},
      {"\"num_experts\": 5", "\"num_experts\": 0", "num_experts"},
      {"\"num_experts\": 5", "\"num_experts\": 6", "checksums"},
      {"\"num_experts\": 5", "\"num_experts\": 5.5", "num_experts"},
      {"\"num_experts\"", "\"num_expert\"", "num_experts: is missing"},
      {"\"slot_bytes\": 8192", "\"slot_bytes\": 4096", "slot_bytes"},
      {"\"slot_bytes\": 8192", "\"slot_bytes\": 18446744073709551615", "slot_bytes"},
      {"\"offset\": 2048", "\"offset\": 2016", "up"},
      {"\"offset\": 2048", "\"offset\": 1024", "up"},
      {"\"offset\": 4096", "\"offset\": 8128", "down"},
      {"\"dtype\": \"f32\"", "\"dtype\": \"f99\"", "dtype"},
      {"panel16", "panel17", "format"},
      {"\"cols\": 64", "\"cols\": 128", "gate"},
      {"fedcba9876543210", "fedcba987654321", "source_fingerprint"},
      {"fedcba9876543210", "fedcba987654321x", "source_fingerprint"},
      {"\"model_type\": \"qwen3_moe\"", "\"model_type\": 3", "model_type"},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.from + " -> " + damage.to);
    std::string bad = good;
    const size_t at = bad.find(damage.from);
    ASSERT_NE(at, std::string::npos);
    bad.replace(at, damage.from.size(), damage.to);
    WriteAll(json, bad);
    const Error error = Caught([&] { OpenExpertStore(store_); });
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_TRUE(Contains(error, json.string())) << error.what();
    EXPECT_TRUE(Contains(error, damage.named)) << error.what();
  }
  for (size_t length = 0; length + 1 < good.size(); length += 13) {
    WriteAll(json, good.substr(0, length));
    EXPECT_EQ(Caught([&] { OpenExpertStore(store_); }).kind(), ErrorKind::kCorrupt) << length;
  }
  WriteAll(json, good);
  OpenExpertStore(store_);
}

TEST_F(ExpertStoreTest, DescendingLayers) {
  ExpertStoreHeader header = SmallHeader();
  header.sparse_layers = {3, 1, 7};
  WriteStore(store_, header);
  const Error error = Caught([&] { OpenExpertStore(store_); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_TRUE(Contains(error, "sparse_layers")) << error.what();
}

using ExpertStoreDeathTest = ExpertStoreTest;
TEST_F(ExpertStoreDeathTest, FinishWantsAllExperts) {
  EXPECT_DEATH(
      {
        ExpertStoreWriter writer(store_, SmallHeader());
        writer.Append(Blob(0));
        writer.Finish();
      },
      "written_bytes");
  ExpertId dense;
  dense.layer = 2;
  const ExpertStoreHeader header = SmallHeader();
  EXPECT_DEATH(ExpertStoreExtent(header, dense), "");
}

TEST(ExpertStoreJsonTest, BlocksHaveATypeInEachLayer) {
  ExpertStoreDescription store;
  store.header = SmallHeader();
  ExpertSection& down = store.header.layout.sections.back();
  down.dtype = DType::kGguf;
  down.format = SectionFormat::kBlockPanel16;
  down.gguf_types = {14, 12, 12, 14};
  store.checksums.assign(15, 1);
  const std::string text = FormatExpertStoreJson(store);
  const ExpertLayout read = ParseExpertStoreJson(text, "store.json").header.layout;
  EXPECT_EQ(read.Section("down").gguf_types, down.gguf_types);
  EXPECT_TRUE(read.Section("up").gguf_types.empty());
  std::string without = text;
  without.replace(without.find("gguf_types"), 10, "other_keys");
  const Error error = Caught([&] { ParseExpertStoreJson(without, "store.json"); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_NE(std::string(error.what()).find("gguf_types"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace moesaic
