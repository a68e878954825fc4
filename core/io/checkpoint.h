// Checkpoint: the tensors of a model on disk (one or many safetensors files of a Hugging Face
// directory, or GGUF files), located and checked, read in place.
//
// Thread contract: immutable after Open; reading is safe from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tensor.h"
#include "core/io/expert_layout.h"

namespace moesaic {

struct TensorInfo {
  DType dtype = DType::kBF16;
  // False: a type that this program cannot compute with (dtype_name says which); dtype means
  // nothing.
  bool supported_dtype = true;
  std::string dtype_name;  // as in the file, "BF16"
  std::vector<int64_t> shape;
  Extent extent;  // file index and absolute byte range
};

// "[128, 64]".
std::string ShapeString(std::span<const int64_t> shape);

// The header of one safetensors file, parsed and checked: offsets inside the file, sizes equal to
// shape x dtype, no overlaps. `file_bytes` is the size of the whole file. Throws Error(kCorrupt)
// that names file and tensor. Parses untrusted input.
std::map<std::string, TensorInfo> ParseSafetensorsHeader(std::string_view json,
                                                         uint64_t data_offset, uint64_t file_bytes,
                                                         std::string_view name);

class Checkpoint {
 public:
  // `model` is a GGUF model (IsGgufModel, core/io/gguf.h) or a directory of safetensors:
  // model.safetensors, else the files of model.safetensors.index.json, else all *.safetensors.
  // Throws Error: kNotFound (no directory, no files, a file of several missing), kCorrupt,
  // kUnsupported (ReadGgufModel).
  static Checkpoint Open(const std::filesystem::path& model);
  // Whether `model` has weights at all: false for a directory with config.json alone, true where
  // some of its files are missing.
  static bool IsThere(const std::filesystem::path& model);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::filesystem::path& directory() const;  // as it was opened: of GGUF it may be a file
  const std::vector<std::filesystem::path>& files() const;
  uint64_t total_bytes() const;  // of tensor data
  const std::map<std::string, TensorInfo, std::less<>>& tensors() const;

  // Null when there is none of that name.
  const TensorInfo* Find(std::string_view name) const;
  // Throws Error(kNotFound) naming the tensor and the directory, or Error(kCorrupt) when the shape
  // is not `shape` or the dtype is not a float of 16 or 32 bits.
  const TensorInfo& Require(std::string_view name, std::span<const int64_t> shape) const;
  // Copies a tensor's bytes. destination.size() must be its size. Throws Error(kIo),
  // Error(kCorrupt) (file shorter than when it was opened).
  void Read(const TensorInfo& tensor, std::span<std::byte> destination) const;
  // Identifies the checkpoint's content cheaply: names, shapes, offsets, file sizes and
  // modification times.
  uint64_t Fingerprint() const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
