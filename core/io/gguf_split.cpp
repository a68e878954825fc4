// Models that are split into several GGUF files (llama.cpp, tools/gguf-split):
// PREFIX-00001-of-00005.gguf, counted from 1, each with the keys split.no (from 0), split.count and
// split.tensors.count (of all files). The first has the metadata.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_fields.h"
#include "core/io/checkpoint_index.h"
#include "core/io/gguf.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostSplits = 65535;  // split.count has 16 bits

struct SplitName {
  std::string prefix;
  int number = 0;  // from 1
  int count = 0;
};

bool IsNumber(std::string_view text) {
  return text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<SplitName> ParseSplitName(const std::string& name) {
  constexpr std::string_view kPattern = "-00001-of-00005.gguf";
  if (name.size() <= kPattern.size()) return std::nullopt;
  const std::string_view end = std::string_view(name).substr(name.size() - kPattern.size());
  const std::string_view number = end.substr(1, 5);
  const std::string_view count = end.substr(10, 5);
  if (end[0] != '-' || end.substr(6, 4) != "-of-" || end.substr(15) != ".gguf" ||
      !IsNumber(number) || !IsNumber(count)) {
    return std::nullopt;
  }
  return SplitName{name.substr(0, name.size() - kPattern.size()), std::stoi(std::string(number)),
                   std::stoi(std::string(count))};
}

bool IsGgufFile(const fs::path& path) { return path.extension() == ".gguf"; }

// Sorted; without the vision towers (mmproj-*.gguf) that lie beside models.
std::vector<fs::path> GgufFilesIn(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const fs::path& path = entry.path();
    if (IsGgufFile(path) && !path.filename().string().starts_with("mmproj")) files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The file that names the directory's model: the only one, or the first of the only split one.
fs::path OnlyModelIn(const fs::path& directory) {
  std::vector<std::string> models;
  for (const fs::path& file : GgufFilesIn(directory)) {
    const std::string name = file.filename().string();
    const std::optional<SplitName> split = ParseSplitName(name);
    if (!split || split->number == 1) models.push_back(name);
  }
  if (models.size() == 1) return directory / models.front();
  if (models.empty()) {
    Fail(ErrorKind::kNotFound, "{}: holds no GGUF file, or not the first of a split model",
         directory.string());
  }
  Fail(ErrorKind::kInvalidArgument, "{}: holds several models: {}; give the path of one",
       directory.string(), fmt::join(models, ", "));
}

}  // namespace

bool IsGgufModel(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return IsGgufFile(path);
  return !fs::exists(path / "config.json", ignored) && !GgufFilesIn(path).empty();
}

std::vector<fs::path> GgufSplitFiles(const fs::path& path) {
  std::error_code is_no_directory;
  if (fs::is_directory(path, is_no_directory)) return GgufSplitFiles(OnlyModelIn(path));
  const std::optional<SplitName> split = ParseSplitName(path.filename().string());
  if (!split || split->number < 1 || split->number > split->count) return {path};
  std::vector<fs::path> files;
  for (int i = 1; i <= split->count; ++i) {
    files.push_back(path.parent_path() /
                    fmt::format("{}-{:05}-of-{:05}.gguf", split->prefix, i, split->count));
    std::error_code ignored;
    if (!fs::exists(files.back(), ignored)) {
      Fail(ErrorKind::kNotFound,
           "{}: is missing; the model has {} files of which {} is one; is "
           "the download complete?",
           files.back().string(), split->count, path.filename().string());
    }
  }
  return files;
}

GgufHeader ReadGgufModel(std::span<const File> files) {
  GgufHeader model;
  const auto count = static_cast<int64_t>(files.size());
  int64_t announced = -1;  // tensors in all files
  for (int64_t i = 0; i < count; ++i) {
    const File& file = files[static_cast<size_t>(i)];
    const std::string name = file.path().string();
    GgufHeader header = ReadGgufHeader(file);
    const JsonFields metadata(header.metadata, name);
    const int64_t splits = metadata.Int("split.count", 1, 0, kMostSplits);
    if (splits > 1 || count > 1) {
      if (splits != count) {
        metadata.FailAt("split.count",
                        fmt::format("is {}, but the names of the model's files say {}; files of a "
                                    "split model are called NAME-00001-of-{:05}.gguf",
                                    splits, count, splits));
      }
      const int64_t number = metadata.Int("split.no", -1, 0, kMostSplits);
      if (number != i) {
        metadata.FailAt("split.no",
                        fmt::format("is {}, expected {} by the file's name", number, i));
      }
      announced = metadata.Int("split.tensors.count", announced, 0, INT32_MAX);
    }
    for (auto& [tensor, info] : header.tensors) {
      info.extent.file = static_cast<int32_t>(i);
      if (!model.tensors.emplace(tensor, std::move(info)).second) {
        Fail(ErrorKind::kCorrupt, "{}: tensor {} is also in another file of the model", name,
             QuotedName(tensor));
      }
    }
    if (i == 0) {
      model.version = header.version;
      model.metadata = std::move(header.metadata);
    }
  }
  if (announced >= 0 && announced != static_cast<int64_t>(model.tensors.size())) {
    Fail(ErrorKind::kCorrupt, "{}: split.tensors.count is {}, but the {} files have {} tensors",
         files.front().path().string(), announced, count, model.tensors.size());
  }
  return model;
}

GgufHeader ReadGgufModel(const fs::path& path) {
  std::vector<File> files;
  for (const fs::path& file : GgufSplitFiles(path)) files.emplace_back(file);
  return ReadGgufModel(files);
}

}  // namespace moesaic
