#include "core/io/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <random>

#include "core/base/error.h"
#include "core/io/checkpoint_index.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

void WriteText(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A safetensors file with this header and data; header_bytes overrides the length that is written.
void WriteSafetensors(const fs::path& path, const std::string& header, const std::string& data,
                      std::optional<uint64_t> header_bytes = std::nullopt) {
  const uint64_t length = header_bytes.value_or(header.size());
  std::string text(reinterpret_cast<const char*>(&length), sizeof(length));
  WriteText(path, text + header + data);
}

std::string Counting(size_t bytes) {
  std::string data(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 7 + 3);
  return data;
}

class CheckpointTest : public testing::Test {
 protected:
  fs::path Single() const { return dir_.path() / "model.safetensors"; }
  fs::path Index() const { return dir_.path() / "model.safetensors.index.json"; }
  Error OpenError() const {
    return Caught([&] { Checkpoint::Open(dir_.path()); });
  }
  // Opens a single file with this header and expects a kCorrupt that names the file and each of
  // `parts`.
  void ExpectCorrupt(const std::string& header, size_t data_bytes,
                     const std::vector<std::string>& parts) {
    SCOPED_TRACE(header);
    WriteSafetensors(Single(), header, Counting(data_bytes));
    const Error error = OpenError();
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_TRUE(Contains(error, Single().string())) << error.what();
    for (const std::string& part : parts) EXPECT_TRUE(Contains(error, part)) << error.what();
  }

  TempDir dir_;
};

TEST_F(CheckpointTest, ReadsASingleFile) {
  // Not in order, with a hole, a scalar, an empty tensor and metadata.
  WriteSafetensors(Single(),
                   R"({"__metadata__":{"format":"pt"},
                       "b":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]},
                       "a":{"data_offsets":[0,6],"dtype":"BF16","shape":[3]},
                       "scalar":{"dtype":"F16","shape":[],"data_offsets":[8,10]},
                       "empty":{"dtype":"F32","shape":[0,9223372036854775807,4],"data_offsets":[12,12]},
                       "odd":{"dtype":"F64","shape":[1],"data_offsets":[32,40]},
                       "new":{"dtype":"Q7_K","shape":[100],"data_offsets":[40,41]}}   )",
                   Counting(50));
  const Checkpoint checkpoint = Checkpoint::Open(dir_.path());
  EXPECT_EQ(checkpoint.tensors().size(), 6u);
  EXPECT_EQ(checkpoint.files(), std::vector<fs::path>{Single()});
  EXPECT_EQ(checkpoint.total_bytes(), 16u + 6 + 2 + 8 + 1);
  const std::vector<int64_t> shape = {2, 2};
  const TensorInfo& b = checkpoint.Require("b", shape);
  EXPECT_EQ(b.dtype, DType::kF32);
  std::vector<std::byte> bytes(16);
  checkpoint.Read(b, bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), Counting(50).data() + 16, 16), 0);
  const TensorInfo* scalar = checkpoint.Find("scalar");
  ASSERT_NE(scalar, nullptr);
  EXPECT_EQ(scalar->extent.bytes, 2u);
  EXPECT_TRUE(scalar->shape.empty());
  EXPECT_EQ(checkpoint.Find("empty")->extent.bytes, 0u);
  checkpoint.Read(*checkpoint.Find("empty"), {});
  EXPECT_EQ(checkpoint.Find("c"), nullptr);

  // Types that cannot be computed with are an error only when they are asked for.
  const std::vector<int64_t> one = {1};
  const std::vector<int64_t> hundred = {100};
  for (const auto& [name, wanted] : {std::pair("odd", one), std::pair("new", hundred)}) {
    EXPECT_FALSE(checkpoint.Find(name)->supported_dtype);
    const Error error = Caught([&, n = name, w = wanted] { checkpoint.Require(n, w); });
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_TRUE(Contains(error, Single().string())) << error.what();
    EXPECT_TRUE(Contains(error, name)) << error.what();
    EXPECT_TRUE(Contains(error, "expected BF16, F16 or F32")) << error.what();
  }
}

TEST_F(CheckpointTest, AFileMayEndWithItsHeader) {
  WriteSafetensors(Single(), R"({"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", "");
  const Checkpoint checkpoint = Checkpoint::Open(dir_.path());
  EXPECT_EQ(checkpoint.Find("w")->extent.bytes, 0u);
  EXPECT_EQ(checkpoint.total_bytes(), 0u);
}

// A tensor without elements has no bytes that could be another's: wherever it lies, the others are
// compared with each other.
TEST_F(CheckpointTest, EmptyTensorsOverlapNothing) {
  for (const int at : {0, 3, 8, 12, 16}) {
    // Named before and behind the others, because the order of equal offsets is that of the names.
    for (const char* name : {"a", "z"}) {
      const std::string empty =
          fmt::format(R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[{},{}]}})", name, at, at);
      WriteSafetensors(Single(),
                       R"({"m":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                           "n":{"dtype":"U8","shape":[8],"data_offsets":[8,16]},)" +
                           empty + "}",
                       Counting(16));
      const Checkpoint checkpoint = Checkpoint::Open(dir_.path());
      EXPECT_EQ(checkpoint.tensors().size(), 3u);
      EXPECT_EQ(checkpoint.Find(name)->extent.bytes, 0u);
      ExpectCorrupt(R"({"m":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},
                        "n":{"dtype":"U8","shape":[8],"data_offsets":[8,16]},)" +
                        empty + "}",
                    16, {"\"m\"", "\"n\"", "overlap"});
    }
  }
}

TEST_F(CheckpointTest, RequireNamesWhatItExpects) {
  WriteSafetensors(Single(), R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
                                 "i":{"dtype":"I32","shape":[2],"data_offsets":[24,32]}})",
                   Counting(32));
  const Checkpoint checkpoint = Checkpoint::Open(dir_.path());
  const std::vector<int64_t> wrong = {3, 2};
  const Error shape = Caught([&] { checkpoint.Require("w", wrong); });
  EXPECT_EQ(shape.kind(), ErrorKind::kCorrupt);
  for (const char* part : {"\"w\"", "[2, 3]", "[3, 2]", "model.safetensors"}) {
    EXPECT_TRUE(Contains(shape, part)) << shape.what();
  }
  const Error missing = Caught([&] { checkpoint.Require("v", wrong); });
  EXPECT_EQ(missing.kind(), ErrorKind::kNotFound);
  for (const std::string& part :
       {std::string("\"v\""), dir_.path().string(), std::string("[3, 2]")}) {
    EXPECT_TRUE(Contains(missing, part)) << missing.what();
  }
  const std::vector<int64_t> two = {2};
  const Error type = Caught([&] { checkpoint.Require("i", two); });
  EXPECT_EQ(type.kind(), ErrorKind::kCorrupt);
  EXPECT_TRUE(Contains(type, "I32")) << type.what();
}

TEST_F(CheckpointTest, MalformedHeaders) {
  ExpectCorrupt(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,12]}})", 16,
                {"\"w\"", "16 bytes", "cover 12"});
  ExpectCorrupt(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 15,
                {"\"w\"", "[0, 16]", "15 data bytes", "truncated"});
  ExpectCorrupt(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})", 16,
                {"\"w\"", "[16, 0]"});
  ExpectCorrupt(
      R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[18446744073709551600,18446744073709551615]}})",
      16, {"\"w\"", "18446744073709551600"});
  ExpectCorrupt(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}})",
                16, {"\"w\""});
  ExpectCorrupt(R"({"w":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 16,
                {"\"w\""});
  ExpectCorrupt(R"({"w":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]}})", 16,
                {"\"w\"", "18446744073709551615"});
  ExpectCorrupt(R"({"w":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 16, {"\"w\""});
  ExpectCorrupt(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                    "b":{"dtype":"U8","shape":[8],"data_offsets":[7,15]}})",
                16, {"\"a\"", "\"b\"", "overlap"});
  ExpectCorrupt(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                    "w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                16, {"\"w\"", "twice"});
  ExpectCorrupt(R"({"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 16,
                {"\"w\"", "\"dtype\" twice"});
  ExpectCorrupt(R"({"w":{"shape":[1],"data_offsets":[0,1]}})", 16, {"\"w\"", "no dtype"});
  ExpectCorrupt(R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 16, {"\"w\"", "no shape"});
  ExpectCorrupt(R"({"w":{"dtype":"U8","shape":[1]}})", 16, {"\"w\"", "no data_offsets"});
  ExpectCorrupt(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 16,
                {"\"w\"", "expected two numbers, found 1"});
  ExpectCorrupt(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 16,
                {"\"w\"", "expected two numbers"});
  ExpectCorrupt(R"({"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 16,
                {"\"w\"", "shape", "-1"});
  ExpectCorrupt(R"({"w":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 16, {"\"w\"", "1.5"});
  ExpectCorrupt(R"({"w":{"dtype":"U8","shape":"1","data_offsets":[0,1]}})", 16, {"\"w\"", "shape"});
  ExpectCorrupt(R"({"w":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 16, {"\"w\"", "dtype"});
  ExpectCorrupt(R"({"w":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 16,
                {"\"w\"", "dimensions"});
  ExpectCorrupt(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":1}})", 16,
                {"\"w\"", "\"extra\""});
  ExpectCorrupt(R"({"w":[1]})", 16, {"\"w\"", "expected an object"});
  ExpectCorrupt(R"({"w":null})", 16, {"\"w\"", "expected an object"});
  ExpectCorrupt(R"({"__metadata__":{"a":1}})", 16, {"__metadata__", "strings"});
  ExpectCorrupt(R"({"__metadata__":{"a":{"b":"c"}}})", 16, {"__metadata__"});
  ExpectCorrupt(R"([1])", 16, {"expected a JSON object"});
  ExpectCorrupt(R"("x")", 16, {"expected a JSON object"});
  ExpectCorrupt("", 16, {"JSON"});
  ExpectCorrupt("{\"w\":", 16, {"JSON"});
  ExpectCorrupt("{} {}", 16, {"JSON"});
  ExpectCorrupt("{\"\xff\":{}}", 16, {"JSON"});
  ExpectCorrupt(std::string(1 << 20, '['), 16, {"expected a JSON object"});
  ExpectCorrupt("{\"w\":{\"shape\":" + std::string(1 << 20, '['), 16, {"\"w\""});
}

TEST_F(CheckpointTest, LyingHeaderLengths) {
  const std::string header = R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  WriteSafetensors(Single(), header, "x", 100'000'001);
  EXPECT_TRUE(Contains(OpenError(), "at most 100000000")) << OpenError().what();
  WriteSafetensors(Single(), header, "x", UINT64_MAX);
  EXPECT_TRUE(Contains(OpenError(), "18446744073709551615")) << OpenError().what();
  WriteSafetensors(Single(), header, "x", header.size() + 2);
  EXPECT_TRUE(Contains(OpenError(), "truncated")) << OpenError().what();
  WriteSafetensors(Single(), header, "x", header.size() + 1);  // takes the data for JSON
  EXPECT_EQ(OpenError().kind(), ErrorKind::kCorrupt);
  WriteText(Single(), "1234567");
  EXPECT_TRUE(Contains(OpenError(), "7 bytes")) << OpenError().what();
  WriteText(Single(), "");
  EXPECT_EQ(OpenError().kind(), ErrorKind::kCorrupt);
  EXPECT_TRUE(Contains(OpenError(), Single().string()));
}

class ShardedCheckpointTest : public CheckpointTest {
 protected:
  void SetUp() override {
    WriteSafetensors(dir_.path() / "one.safetensors",
                     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "aaaa");
    WriteSafetensors(dir_.path() / "two.safetensors",
                     R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                         "extra":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                     "bbee");
  }
  void ExpectIndexError(const std::string& index, ErrorKind kind,
                        const std::vector<std::string>& parts) {
    SCOPED_TRACE(index);
    WriteText(Index(), index);
    const Error error = OpenError();
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (const std::string& part : parts) EXPECT_TRUE(Contains(error, part)) << error.what();
  }
};

TEST_F(ShardedCheckpointTest, ReadsWithAnIndex) {
  WriteText(Index(), R"({"metadata":{"total_size":6,"x":[[1],{"y":null}]},
                         "weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const Checkpoint checkpoint = Checkpoint::Open(dir_.path());
  EXPECT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(checkpoint.tensors().size(), 3u);  // those that the index leaves out too
  std::vector<std::byte> bytes(2);
  checkpoint.Read(*checkpoint.Find("b"), bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), "bb", 2), 0);
}

TEST_F(ShardedCheckpointTest, ReadsWithoutAnIndex) {
  const Checkpoint checkpoint = Checkpoint::Open(dir_.path());
  EXPECT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
}

TEST_F(CheckpointTest, FilesAreInOrderOfTheirNames) {
  std::vector<fs::path> expected;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) {
    expected.push_back(dir_.path() / (std::string(name) + ".safetensors"));
  }
  // No file system lists what was made in this order by name.
  for (const size_t i : {3, 0, 5, 1, 6, 2, 4}) {
    WriteSafetensors(
        expected[i],
        R"({"t)" + std::to_string(i) + R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
        "aaaa");
  }
  EXPECT_EQ(Checkpoint::Open(dir_.path()).files(), expected);
}

TEST_F(ShardedCheckpointTest, IndexChoosesAmongCopies) {
  WriteSafetensors(dir_.path() / "three.safetensors",
                   R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                       "c":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})",
                   "AAAAc");
  const Error error = OpenError();
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  for (const char* part : {"\"a\"", "one.safetensors", "three.safetensors"}) {
    EXPECT_TRUE(Contains(error, part)) << error.what();
  }
  WriteText(Index(), R"({"weight_map":{"a":"one.safetensors","c":"three.safetensors"}})");
  const Checkpoint checkpoint = Checkpoint::Open(dir_.path());
  std::vector<std::byte> bytes(4);
  checkpoint.Read(*checkpoint.Find("a"), bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), "aaaa", 4), 0);
}

TEST_F(ShardedCheckpointTest, MalformedIndexes) {
  ExpectIndexError(R"({"weight_map":{"a":"one.safetensors","z":"nine.safetensors"}})",
                   ErrorKind::kNotFound,
                   {"nine.safetensors", "\"z\"", "model.safetensors.index.json"});
  ExpectIndexError(R"({"weight_map":{"a":"one.safetensors","z":"two.safetensors"}})",
                   ErrorKind::kCorrupt,
                   {"two.safetensors", "\"z\"", "model.safetensors.index.json"});
  // Never outside the directory.
  for (const char* name : {"../one.safetensors", "/etc/passwd.safetensors", "x/../../y.safetensors",
                           "..", ".", "", "sub/one.safetensors", "one.bin", ".hidden.safetensors",
                           "a\\\\b.safetensors", "a\\u0000.safetensors"}) {
    ExpectIndexError(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name), ErrorKind::kCorrupt,
                     {"\"a\"", Index().string(), "same directory"});
  }
  ExpectIndexError(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})",
                   ErrorKind::kCorrupt, {"\"a\"", "twice"});
  ExpectIndexError(R"({"weight_map":{"a":1}})", ErrorKind::kCorrupt, {"\"a\"", "not a file name"});
  ExpectIndexError(R"({"weight_map":{"a":{}}})", ErrorKind::kCorrupt, {"\"a\"", "not a file name"});
  ExpectIndexError(R"({"weight_map":{"a":["x"]}})", ErrorKind::kCorrupt, {"weight_map"});
  ExpectIndexError(R"({"weight_map":[]})", ErrorKind::kCorrupt, {"weight_map"});
  ExpectIndexError(R"({"weight_map":"x"})", ErrorKind::kCorrupt, {"weight_map"});
  ExpectIndexError(R"({"weight_map":{}})", ErrorKind::kCorrupt, {"weight_map is empty"});
  ExpectIndexError(R"({"weight_map":{},"weight_map":{}})", ErrorKind::kCorrupt, {"two weight_map"});
  ExpectIndexError(R"({"metadata":{}})", ErrorKind::kCorrupt, {"no weight_map"});
  ExpectIndexError("[]", ErrorKind::kCorrupt, {"object"});
  ExpectIndexError("{", ErrorKind::kCorrupt, {"JSON"});
  ExpectIndexError("{\"x\":" + std::string(1 << 20, '['), ErrorKind::kCorrupt, {"nested"});
}

TEST_F(CheckpointTest, NothingToOpen) {
  EXPECT_EQ(OpenError().kind(), ErrorKind::kNotFound);
  EXPECT_TRUE(Contains(OpenError(), dir_.path().string()));
  WriteText(dir_.path() / "pytorch_model.bin", "x");
  EXPECT_TRUE(Contains(OpenError(), "PyTorch")) << OpenError().what();
  const Error error = Caught([&] { Checkpoint::Open(dir_.path() / "none"); });
  EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  ASSERT_EQ(mkfifo((dir_.path() / "model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(OpenError().kind(), ErrorKind::kIo);  // and does not wait for a writer
}

TEST_F(CheckpointTest, FileThatShrinksLater) {
  WriteSafetensors(Single(), R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
                   Counting(16));
  const Checkpoint checkpoint = Checkpoint::Open(dir_.path());
  fs::resize_file(Single(), fs::file_size(Single()) - 3);
  std::vector<std::byte> bytes(16);
  const Error error = Caught([&] { checkpoint.Read(*checkpoint.Find("w"), bytes); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_TRUE(Contains(error, Single().string())) << error.what();
}

TEST_F(CheckpointTest, FingerprintFollowsTheContent) {
  const std::string header = R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
  WriteSafetensors(Single(), header, Counting(16));
  const uint64_t first = Checkpoint::Open(dir_.path()).Fingerprint();
  EXPECT_EQ(Checkpoint::Open(dir_.path()).Fingerprint(), first);
  fs::last_write_time(Single(), fs::last_write_time(Single()) + std::chrono::seconds(2));
  const uint64_t touched = Checkpoint::Open(dir_.path()).Fingerprint();
  EXPECT_NE(touched, first);
  const auto time = fs::last_write_time(Single());
  WriteSafetensors(Single(), R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})",
                   Counting(16));
  fs::last_write_time(Single(), time);
  EXPECT_NE(Checkpoint::Open(dir_.path()).Fingerprint(), touched);
  EXPECT_NE(Checkpoint::Open(dir_.path()).Fingerprint(), first);
}

// The header of a model with 30,000 tensors is 4 MB; opening it must not be felt.
TEST_F(CheckpointTest, LargeHeader) {
  std::string header = "{";
  uint64_t offset = 0;
  for (int i = 0; i < 30'000; ++i) {
    header += fmt::format(
        R"({}"model.layers.{}.mlp.experts.{}.gate_proj.weight":{{"dtype":"BF16","shape":[768,2048],"data_offsets":[{},{}]}})",
        i == 0 ? "" : ",", i / 640, i % 640, offset, offset + 3145728);
    offset += 3145728;
  }
  header += "}";
  ASSERT_GT(header.size(), 3'500'000u);
  const auto tensors =
      ParseSafetensorsHeader(header, 8 + header.size(), 8 + header.size() + offset, "big");
  EXPECT_EQ(tensors.size(), 30'000u);
}

TEST(CheckpointFilesTest, OpensTheSampleAndTheFixtures) {
  const Checkpoint sample = Checkpoint::Open(MOESAIC_SAMPLE_MODEL_DIR);
  const std::vector<int64_t> shape = {4096, 192};
  EXPECT_EQ(sample.Require("model.embed_tokens.weight", shape).dtype, DType::kBF16);
  int opened = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(MOESAIC_TEST_DATA_DIR) / "models")) {
    SCOPED_TRACE(entry.path().string());
    const Checkpoint checkpoint = Checkpoint::Open(entry.path());
    // That of a model which also sees is the one of its text.
    EXPECT_TRUE(checkpoint.Find("model.norm.weight") != nullptr ||
                checkpoint.Find("model.language_model.norm.weight") != nullptr ||
                checkpoint.Find("language_model.model.norm.weight") != nullptr ||
                checkpoint.Find("transformer.norm_f.weight") != nullptr);  // DBRX's
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      std::vector<std::byte> bytes(tensor.extent.bytes);
      checkpoint.Read(tensor, bytes);
    }
    ++opened;
  }
  EXPECT_GE(opened, 11);
}

}  // namespace
}  // namespace moesaic
