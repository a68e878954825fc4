#include "tests/serving/text/tokenizer_test_data.h"

#include <stdlib.h>
#include <zlib.h>

#include <array>
#include <fstream>
#include <map>
#include <stdexcept>

#include "core/base/check.h"

namespace moesaic {
namespace {

std::filesystem::path DataDir() {
  return std::filesystem::path(MOESAIC_TEST_DATA_DIR) / "tokenizers";
}

}  // namespace

std::string ReadGzip(const std::filesystem::path& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error("cannot open " + path.string());
  std::string text;
  std::array<char, 65536> buffer;
  int count;
  while ((count = gzread(file, buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  const bool complete = count == 0 && gzclose(file) == Z_OK;
  if (!complete) throw std::runtime_error("cannot read " + path.string());
  return text;
}

std::string TokenizerTextData(const std::string& file) {
  return ReadGzip(DataDir() / (file + ".gz"));
}

nlohmann::json TokenizerJsonData(const std::string& file) {
  return nlohmann::json::parse(TokenizerTextData(file));
}

const Tokenizer& TestTokenizer(std::string_view name) {
  static auto& loaded = *new std::map<std::string, std::unique_ptr<Tokenizer>>;
  std::unique_ptr<Tokenizer>& tokenizer = loaded[std::string(name)];
  if (!tokenizer) {
    if (name == "sample") {
      tokenizer = LoadTokenizer(MOESAIC_SAMPLE_MODEL_DIR);
    } else {
      const TemporaryDirectory directory;
      for (const auto& entry : std::filesystem::directory_iterator(DataDir() / name)) {
        const std::string stem = entry.path().stem().string();
        if (stem.starts_with("tokenizer")) directory.Write(stem, ReadGzip(entry.path()));
      }
      tokenizer = LoadTokenizer(directory.path());
    }
  }
  return *tokenizer;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "moesaic-tokenizer-XXXXXX").string();
  CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TemporaryDirectory::Write(const std::string& name, std::string_view content) const {
  std::ofstream stream(path_ / name, std::ios::binary);
  stream.write(content.data(), static_cast<std::streamsize>(content.size()));
  CHECK(stream.good());
}

}  // namespace moesaic
