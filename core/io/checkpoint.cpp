#include "core/io/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/units.h"
#include "core/io/checkpoint_index.h"
#include "core/io/gguf.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the cap of the reference implementation
constexpr uint64_t kMostIndexBytes = 256 << 20;

std::map<std::string, TensorInfo> ReadHeader(const File& file) {
  const std::string name = file.path().string();
  const uint64_t file_bytes = file.size_bytes();
  uint64_t header_bytes = 0;
  if (file.ReadAt(0, std::as_writable_bytes(std::span(&header_bytes, 1))) != sizeof(header_bytes)) {
    Fail(ErrorKind::kCorrupt, "{}: has {} bytes, expected at least the 8 of a safetensors file",
         name, file_bytes);
  }
  if (header_bytes > kMostHeaderBytes) {
    Fail(ErrorKind::kCorrupt,
         "{}: the header length is {}, expected at most {}; is this a safetensors file?", name,
         header_bytes, kMostHeaderBytes);
  }
  if (header_bytes > file_bytes - sizeof(header_bytes)) {
    Fail(ErrorKind::kCorrupt,
         "{}: the header length is {}, but the file has only {} bytes; is the file truncated?",
         name, header_bytes, file_bytes);
  }
  std::string header(header_bytes, '\0');
  if (file.ReadAt(sizeof(header_bytes), std::as_writable_bytes(std::span(header))) !=
      header_bytes) {
    Fail(ErrorKind::kCorrupt, "{}: became shorter while its header was read", name);
  }
  return ParseSafetensorsHeader(header, sizeof(header_bytes) + header_bytes, file_bytes, name);
}

constexpr const char* kIndexName = "model.safetensors.index.json";

// The safetensors files of a directory without an index, in order of their names.
std::vector<fs::path> ListSafetensors(const fs::path& directory) {
  std::vector<fs::path> files;
  bool has_pickle = false;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".safetensors") files.push_back(path);
    has_pickle |=
        path.extension() == ".bin" || path.extension() == ".pt" || path.extension() == ".pth";
  }
  if (error) Fail(ErrorKind::kIo, "{}: cannot list: {}", directory.string(), error.message());
  if (files.empty()) {
    Fail(ErrorKind::kNotFound, "{}: has no .safetensors file{}", directory.string(),
         has_pickle ? "; PyTorch .bin files are not supported, save the model with "
                      "safe_serialization=True"
                    : "");
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

struct Checkpoint::Impl {
  fs::path directory;
  std::vector<fs::path> paths;
  std::vector<File> files;  // as paths
  std::map<std::string, TensorInfo, std::less<>> tensors;
  uint64_t total_bytes = 0;
  uint64_t fingerprint = 0;

  void AddFile(const fs::path& path, const std::map<std::string, std::string>* weight_map);
  void OpenIndexed(const fs::path& index_path);
  void OpenGguf(const fs::path& path);
  void Finish();
  std::string Describe(const TensorInfo& tensor, std::string_view name) const {
    return fmt::format("{}: tensor {}", paths[tensor.extent.file].string(), QuotedName(name));
  }
};

void Checkpoint::Impl::AddFile(const fs::path& path,
                               const std::map<std::string, std::string>* weight_map) {
  const auto index = static_cast<int32_t>(files.size());
  files.emplace_back(path);
  paths.push_back(path);
  for (auto& [name, info] : ReadHeader(files.back())) {
    if (weight_map != nullptr) {
      // The index decides which of several copies is meant.
      const auto it = weight_map->find(name);
      if (it != weight_map->end() && it->second != path.filename().string()) continue;
    }
    TensorInfo placed = info;
    placed.extent.file = index;
    const auto [it, added] = tensors.emplace(name, std::move(placed));
    if (!added) {
      Fail(ErrorKind::kCorrupt, "{}: tensor {} is also in {}; expected it in one file",
           path.string(), QuotedName(name), paths[it->second.extent.file].string());
    }
  }
}

void Checkpoint::Impl::OpenIndexed(const fs::path& index_path) {
  const std::map<std::string, std::string> weight_map =
      ParseCheckpointIndex(ReadTextFile(index_path, kMostIndexBytes), index_path.string());
  std::map<std::string, std::string> shards;  // file -> a tensor it should have
  for (const auto& [tensor, file] : weight_map) shards.emplace(file, tensor);
  if (shards.empty()) {
    Fail(ErrorKind::kCorrupt, "{}: weight_map is empty, expected the model's tensors",
         index_path.string());
  }
  for (const auto& [shard, tensor] : shards) {
    const fs::path path = directory / shard;
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      Fail(ErrorKind::kNotFound,
           "{}: is missing, but {} says that it holds tensor {} among others; is the download "
           "complete?",
           path.string(), index_path.filename().string(), QuotedName(tensor));
    }
    AddFile(path, &weight_map);
  }
  for (const auto& [tensor, shard] : weight_map) {
    if (!tensors.contains(tensor)) {
      Fail(ErrorKind::kCorrupt, "{}: has no tensor {}, but {} says that it has",
           (directory / shard).string(), QuotedName(tensor), index_path.filename().string());
    }
  }
}

void Checkpoint::Impl::OpenGguf(const fs::path& path) {
  for (const fs::path& file : GgufSplitFiles(path)) {
    files.emplace_back(file);
    paths.push_back(file);
  }
  for (auto& [name, info] : ReadGgufModel(files).tensors) tensors.emplace(name, std::move(info));
}

void Checkpoint::Impl::Finish() {
  std::string text;  // what the fingerprint covers
  const auto append = [&text](uint64_t value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const auto append_string = [&](std::string_view value) {
    append(value.size());
    text += value;
  };
  for (const File& file : files) {
    append_string(file.path().filename().string());
    append(file.size_bytes());
    append(static_cast<uint64_t>(file.modified_ns()));
  }
  for (const auto& [name, info] : tensors) {
    total_bytes = CheckedAdd(total_bytes, info.extent.bytes, directory.string());
    append_string(name);
    append_string(info.dtype_name);
    append(info.shape.size());
    for (const int64_t dim : info.shape) append(static_cast<uint64_t>(dim));
    append(static_cast<uint64_t>(info.extent.file));
    append(info.extent.offset);
    append(info.extent.bytes);
  }
  fingerprint = Hash64(text);
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

bool Checkpoint::IsThere(const fs::path& model) {
  std::error_code ignored;
  if (IsGgufModel(model) || fs::exists(model / kIndexName, ignored)) return true;
  for (const fs::directory_entry& entry : fs::directory_iterator(model, ignored)) {
    if (entry.path().extension() == ".safetensors") return true;
  }
  return false;
}

Checkpoint Checkpoint::Open(const fs::path& model) {
  std::error_code ignored;
  const bool is_gguf = IsGgufModel(model);
  if (!is_gguf && !fs::is_directory(model, ignored)) {
    Fail(ErrorKind::kNotFound, "{}: no such directory", model.string());
  }
  auto impl = std::make_unique<Impl>();
  impl->directory = model;
  // The order of transformers: the single file, then the index, then whatever there is.
  const fs::path single = model / "model.safetensors";
  const fs::path index = model / kIndexName;
  if (is_gguf) {
    impl->OpenGguf(model);
  } else if (fs::exists(single, ignored)) {
    impl->AddFile(single, nullptr);
  } else if (fs::exists(index, ignored)) {
    impl->OpenIndexed(index);
  } else {
    for (const fs::path& path : ListSafetensors(model)) impl->AddFile(path, nullptr);
  }
  impl->Finish();
  return Checkpoint(std::move(impl));
}

const fs::path& Checkpoint::directory() const { return impl_->directory; }
const std::vector<fs::path>& Checkpoint::files() const { return impl_->paths; }
uint64_t Checkpoint::total_bytes() const { return impl_->total_bytes; }
uint64_t Checkpoint::Fingerprint() const { return impl_->fingerprint; }
const std::map<std::string, TensorInfo, std::less<>>& Checkpoint::tensors() const {
  return impl_->tensors;
}

const TensorInfo* Checkpoint::Find(std::string_view name) const {
  const auto it = impl_->tensors.find(name);
  return it == impl_->tensors.end() ? nullptr : &it->second;
}

const TensorInfo& Checkpoint::Require(std::string_view name, std::span<const int64_t> shape) const {
  const TensorInfo* tensor = Find(name);
  if (tensor == nullptr) {
    Fail(ErrorKind::kNotFound, "{}: has no tensor {}, expected one of shape {}",
         impl_->directory.string(), QuotedName(name), ShapeString(shape));
  }
  if (!std::equal(tensor->shape.begin(), tensor->shape.end(), shape.begin(), shape.end())) {
    Fail(ErrorKind::kCorrupt, "{} has shape {}, expected {} (from config.json)",
         impl_->Describe(*tensor, name), ShapeString(tensor->shape), ShapeString(shape));
  }
  const bool is_float =
      tensor->dtype == DType::kF32 || tensor->dtype == DType::kF16 || tensor->dtype == DType::kBF16;
  if (!tensor->supported_dtype || !is_float) {
    Fail(ErrorKind::kCorrupt, "{} has type {}, expected BF16, F16 or F32",
         impl_->Describe(*tensor, name), QuotedName(tensor->dtype_name));
  }
  return *tensor;
}

void Checkpoint::Read(const TensorInfo& tensor, std::span<std::byte> destination) const {
  CHECK_EQ(destination.size(), tensor.extent.bytes);
  CHECK_LT(static_cast<size_t>(tensor.extent.file), impl_->files.size());
  const File& file = impl_->files[tensor.extent.file];
  const size_t read = file.ReadAt(tensor.extent.offset, destination);
  if (read != destination.size()) {
    Fail(ErrorKind::kCorrupt,
         "{}: ends {} bytes before the end of a tensor at offset {} of {} bytes; the file is "
         "shorter than "
         "when it was opened",
         file.path().string(), destination.size() - read, tensor.extent.offset,
         tensor.extent.bytes);
  }
}

}  // namespace moesaic
