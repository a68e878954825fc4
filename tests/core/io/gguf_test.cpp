#include "core/io/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/io/gguf_types.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(MOESAIC_TEST_DATA_DIR) / "gguf";

// Writes the parts of a GGUF file, right or wrong.
class GgufText {
 public:
  template <typename T>
  GgufText& Put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  GgufText& Text(std::string_view value) {
    Put<uint64_t>(value.size());
    text_ += value;
    return *this;
  }
  GgufText& Header(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    text_ += "GGUF";
    return Put(version).Put(tensors).Put(keys);
  }
  GgufText& U32(std::string_view key, uint32_t value) {
    return Text(key).Put<uint32_t>(4).Put(value);
  }
  GgufText& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                   uint64_t offset) {
    Text(name).Put(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) Put(dim);
    return Put(type).Put(offset);
  }
  GgufText& Align(size_t to = 32) {
    text_.resize((text_.size() + to - 1) / to * to);
    return *this;
  }
  GgufText& Data(size_t bytes) {
    Align();
    text_.resize(text_.size() + bytes);
    return *this;
  }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

GgufHeader Parse(const std::string& text) {
  return ParseGgufHeader(
      [&](uint64_t offset, std::span<std::byte> to) {
        // In small parts, as a file system may.
        const size_t part = std::min<size_t>({to.size(), text.size() - offset, 7});
        std::memcpy(to.data(), text.data() + offset, part);
        return part;
      },
      text.size(), "m.gguf");
}
GgufHeader Parse(const GgufText& text) { return Parse(text.str()); }

void ExpectRefused(const GgufText& text, const std::vector<std::string>& parts,
                   ErrorKind kind = ErrorKind::kCorrupt) {
  const Error error = Caught([&] { Parse(text); });
  EXPECT_EQ(error.kind(), kind) << error.what();
  EXPECT_TRUE(Contains(error, "m.gguf: ")) << error.what();
  for (const std::string& part : parts) EXPECT_TRUE(Contains(error, part)) << error.what();
}

// --- what the `gguf` package has written

TEST(GgufTest, ReadsAValueOfEveryKind) {
  const GgufHeader header = ReadGgufHeader(File(kData / "types.gguf"));
  const nlohmann::json& m = header.metadata;
  EXPECT_EQ(header.version, 3u);
  EXPECT_EQ(m["general.architecture"], "fixture");
  EXPECT_EQ(m["kind.u8"], 200);
  EXPECT_EQ(m["kind.i8"], -100);
  EXPECT_EQ(m["kind.u16"], 60000);
  EXPECT_EQ(m["kind.i16"], -30000);
  EXPECT_EQ(m["kind.u32"], 4'000'000'000u);
  EXPECT_EQ(m["kind.i32"], -2'000'000'000);
  EXPECT_EQ(m["kind.u64"].get<uint64_t>(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(m["kind.i64"].get<int64_t>(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(m["kind.f32"].get<double>(), double{1e-6f});
  EXPECT_EQ(m["kind.f64"].get<double>(), 0.1);
  EXPECT_EQ(m["kind.bool"], true);
  EXPECT_EQ(m["kind.string"], "Straße");
  EXPECT_EQ(m["kind.strings"], (nlohmann::json{"a", "", "Ġb"}));
  EXPECT_EQ(m["kind.ints"], (nlohmann::json{1, -2, 3}));
  EXPECT_EQ(m["kind.floats"], (nlohmann::json{0.5, -1.5}));
}

TEST(GgufTest, ShapesAreSlowestFirst) {
  const GgufHeader header = ReadGgufHeader(File(kData / "types.gguf"));
  const TensorInfo& plain = header.tensors.at("F32");
  EXPECT_EQ(plain.shape, (std::vector<int64_t>{2, 3, 5}));
  EXPECT_EQ(plain.dtype, DType::kF32);
  EXPECT_TRUE(plain.supported_dtype);
  EXPECT_EQ(plain.extent.bytes, 2u * 3 * 5 * 4);
  const TensorInfo& blocks = header.tensors.at("Q4_K");
  EXPECT_EQ(blocks.shape, (std::vector<int64_t>{3, 1024}));
  EXPECT_FALSE(blocks.supported_dtype);
  EXPECT_EQ(blocks.dtype_name, "Q4_K");
  EXPECT_EQ(blocks.extent.bytes, 3u * 4 * 144);
}

// Any of the files names the model.
TEST(GgufTest, AModelInThreeFiles) {
  for (const char* const name : {"split-00001-of-00003.gguf", "split-00003-of-00003.gguf"}) {
    const std::vector<fs::path> paths = GgufSplitFiles(kData / name);
    ASSERT_EQ(paths.size(), 3u);
    std::vector<File> files;
    for (const fs::path& path : paths) files.emplace_back(path);
    const GgufHeader model = ReadGgufModel(files);
    EXPECT_EQ(model.metadata["general.name"], "three files");
    ASSERT_EQ(model.tensors.size(), 5u);
    EXPECT_EQ(model.tensors.at("blk.0.weight").extent.file, 0);
    EXPECT_EQ(model.tensors.at("blk.4.weight").extent.file, 2);
  }
}

TEST(GgufTest, AFileOfASplitModelIsMissing) {
  TempDir dir;
  fs::copy(kData / "split-00001-of-00003.gguf", dir.path());
  fs::copy(kData / "split-00003-of-00003.gguf", dir.path());
  const Error error = Caught([&] { GgufSplitFiles(dir.path() / "split-00001-of-00003.gguf"); });
  EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  EXPECT_TRUE(Contains(error, "split-00002-of-00003.gguf: is missing")) << error.what();
}

TEST(GgufTest, FilesOfASplitModelInTheWrongOrder) {
  TempDir dir;
  fs::copy(kData / "split-00001-of-00003.gguf", dir.path());
  fs::copy(kData / "split-00002-of-00003.gguf", dir.path() / "split-00003-of-00003.gguf");
  fs::copy(kData / "split-00003-of-00003.gguf", dir.path() / "split-00002-of-00003.gguf");
  const Error error = Caught([&] {
    std::vector<File> files;
    for (const fs::path& path : GgufSplitFiles(dir.path() / "split-00001-of-00003.gguf")) {
      files.emplace_back(path);
    }
    ReadGgufModel(files);
  });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_TRUE(Contains(error, "split.no: is 2, expected 1")) << error.what();
}

TEST(GgufTest, ARenamedFileOfASplitModel) {
  TempDir dir;
  fs::copy(kData / "split-00001-of-00003.gguf", dir.path() / "model.gguf");
  std::vector<File> files;
  files.emplace_back(dir.path() / "model.gguf");
  const Error error = Caught([&] { ReadGgufModel(files); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_TRUE(Contains(error, "split.count: is 3")) << error.what();
  EXPECT_TRUE(Contains(error, "NAME-00001-of-00003.gguf")) << error.what();
}

TEST(GgufTest, OtherNamesAreNoSplits) {
  for (const char* const name :
       {"model.gguf", "-00001-of-00003.gguf", "a-00000-of-00003.gguf", "a-00004-of-00003.gguf",
        "a-0000x-of-00003.gguf", "a-00001_of-00003.gguf"}) {
    EXPECT_EQ(GgufSplitFiles(name), std::vector<fs::path>{name}) << name;
  }
}

// --- what is refused

TEST(GgufTest, CutAnywhere) {
  std::string text;
  {
    std::ifstream in(kData / "split-00001-of-00003.gguf", std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  EXPECT_NO_THROW(Parse(text));
  // The last tensor's data may end in padding that nothing needs.
  for (size_t bytes = 0; bytes + 32 <= text.size(); ++bytes) {
    const Error error = Caught([&] { Parse(text.substr(0, bytes)); });
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << bytes << ": " << error.what();
  }
}

TEST(GgufTest, OtherFilesAndVersions) {
  ExpectRefused(GgufText().Put<uint64_t>(0).Put<uint64_t>(0).Put<uint64_t>(0), {"no GGUF file"});
  ExpectRefused(GgufText().Header(0, 0, 0x03000000), {"big-endian"}, ErrorKind::kUnsupported);
  ExpectRefused(GgufText().Header(0, 0, 1), {"version 1", "2 and 3"}, ErrorKind::kUnsupported);
  EXPECT_EQ(Parse(GgufText().Header(0, 0, 2)).version, 2u);
}

TEST(GgufTest, CountsAboveTheFile) {
  ExpectRefused(GgufText().Header(uint64_t{1} << 60, 0), {"1152921504606846976 tensors"});
  ExpectRefused(GgufText().Header(0, uint64_t{1} << 60), {"keys follow", "truncated"});
  ExpectRefused(GgufText().Header(0, 1).Put<uint64_t>(1000).Put<uint64_t>(0),
                {"a text of 1000 bytes"});
  ExpectRefused(
      GgufText().Header(0, 1).Text("tokens").Put<uint32_t>(9).Put<uint32_t>(8).Put<uint64_t>(
          uint64_t{1} << 61),
      {"key \"tokens\"", "elements follow"});
}

TEST(GgufTest, BadKeys) {
  ExpectRefused(GgufText().Header(0, 2).U32("a", 1).U32("a", 2), {"key \"a\"", "twice"});
  ExpectRefused(GgufText().Header(0, 1).Text("a").Put<uint32_t>(13).Put<uint64_t>(0),
                {"key \"a\"", "type 13"});
  ExpectRefused(GgufText().Header(0, 1).Text("a").Put<uint32_t>(7).Put<uint8_t>(2),
                {"is 2, expected a boolean"});
  GgufText nested;
  nested.Header(0, 1).Text("a").Put<uint32_t>(9);
  for (int i = 0; i < 6; ++i) nested.Put<uint32_t>(9).Put<uint64_t>(1);
  ExpectRefused(nested.Data(64), {"nested more than 4 deep"});
}

TEST(GgufTest, BadTensors) {
  ExpectRefused(GgufText().Header(1, 0).Tensor("t", {}, 0, 0).Data(64), {"0 dimensions"});
  ExpectRefused(GgufText().Header(1, 0).Tensor("t", {1, 1, 1, 1, 1}, 0, 0), {"5 dimensions"});
  ExpectRefused(GgufText().Header(1, 0).Tensor("t", {4, 0}, 0, 0), {"a dimension of 0"});
  ExpectRefused(GgufText().Header(1, 0).Tensor("t", {1ull << 62, 1ull << 62}, 0, 0), {"t"});
  ExpectRefused(GgufText().Header(1, 0).Tensor("t", {33}, 8, 0).Data(64),
                {"rows of 33 values", "32 (Q8_0)"});
  ExpectRefused(GgufText().Header(1, 0).Tensor("t", {32}, 139, 0).Data(64),
                {"139 (a type of ik_llama.cpp's own)"}, ErrorKind::kUnsupported);
  ExpectRefused(GgufText().Header(1, 0).Tensor("t", {32}, 4, 0).Data(64), {"removed"},
                ErrorKind::kUnsupported);
  ExpectRefused(GgufText().Header(1, 0).Tensor("t", {32}, 8, 8).Data(64),
                {"offset 8", "a multiple of 32"});
  ExpectRefused(GgufText().Header(1, 0).Tensor("t", {32}, 0, 0).Data(127),
                {"takes 128 bytes", "127 bytes"});
  ExpectRefused(
      GgufText().Header(1, 0).Tensor("t", {32}, 0, std::numeric_limits<uint64_t>::max() - 31),
      {"\"t\""});
  ExpectRefused(GgufText().Header(2, 0).Tensor("t", {8}, 0, 0).Tensor("t", {8}, 0, 32).Data(64),
                {"\"t\"", "twice"});
  ExpectRefused(GgufText().Header(2, 0).Tensor("a", {16}, 0, 0).Tensor("b", {8}, 0, 32).Data(64),
                {"\"a\" and \"b\" overlap"});
  ExpectRefused(GgufText().Header(1, 0).Tensor(std::string(129, 'n'), {8}, 0, 0).Data(64),
                {"a text of 129 bytes"});
}

TEST(GgufTest, Alignment) {
  const auto aligned = [](uint32_t alignment, uint64_t offset, size_t more = 0) {
    GgufText text;
    text.Header(2, 2).U32("general.alignment", alignment);
    text.Text("more").Put<uint32_t>(8).Text(std::string(more, 'x'));
    text.Tensor("a", {1}, 0, 0).Tensor("b", {1}, 0, offset).Align(alignment == 0 ? 1 : alignment);
    for (uint64_t i = 0; i < offset + 4; ++i) text.Put<char>(0);
    return text;
  };
  // Wherever the header ends.
  for (size_t more = 0; more < 64; more += 5) {
    const GgufText good = aligned(64, 64, more);
    const GgufHeader header = Parse(good);
    EXPECT_EQ(header.tensors.at("a").extent.offset % 64, 0u);
    EXPECT_EQ(header.tensors.at("b").extent.offset, header.tensors.at("a").extent.offset + 64);
    EXPECT_EQ(header.tensors.at("b").extent.offset + 4, good.str().size());
  }
  EXPECT_NO_THROW(Parse(aligned(8, 8)));
  ExpectRefused(aligned(64, 32), {"offset 32", "a multiple of 64"});
  ExpectRefused(aligned(0, 32), {"general.alignment is 0"});
  ExpectRefused(aligned(12, 24), {"general.alignment is 12"});
  ExpectRefused(GgufText().Header(0, 1).Text("general.alignment").Put<uint32_t>(8).Text("x"),
                {"general.alignment is \"x\""});
}

}  // namespace
}  // namespace moesaic
