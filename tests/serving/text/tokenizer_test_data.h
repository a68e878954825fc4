// The tokenizers of tests/data/tokenizers, unpacked for a test, and their expected ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "serving/text/tokenizer.h"

namespace moesaic {

// The content of a .gz file; aborts the test program when it cannot be read.
std::string ReadGzip(const std::filesystem::path& path);
// tests/data/tokenizers/NAME/FILE.gz as JSON or text.
nlohmann::json TokenizerJsonData(const std::string& file);
std::string TokenizerTextData(const std::string& file);

// Loads tests/data/tokenizers/NAME as a model directory, unpacked into a temporary one; "sample" is
// the sample model's. Loaded once per program.
const Tokenizer& TestTokenizer(std::string_view name);

// A directory that is removed with all it holds.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  const std::filesystem::path& path() const { return path_; }
  void Write(const std::string& name, std::string_view content) const;

 private:
  std::filesystem::path path_;
};

}  // namespace moesaic
