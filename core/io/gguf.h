// The header of a GGUF file: metadata and where the tensors are (ggml, docs/gguf.md). What is said
// here of sizes and ranges has been checked against the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file.h"
#include "core/base/function_ref.h"
#include "core/io/checkpoint.h"

namespace moesaic {

struct GgufHeader {
  uint32_t version = 0;
  // An object: each key ("qwen3moe.block_count") with its value; arrays are lists. Integers,
  // floats, booleans and strings keep their kind. Strings are as in the file, UTF-8 or not.
  nlohmann::json metadata;
  // Shapes are slowest first, as everywhere else: [outputs, inputs], [experts, outputs, inputs].
  // What is no plain float or integer has a dtype_name of core/io/gguf_types.h alone.
  std::map<std::string, TensorInfo> tensors;
};

// Reads bytes of a file at an offset, as File::ReadAt.
using ReadBytesAt = FunctionRef<size_t(uint64_t offset, std::span<std::byte> destination)>;

// `name` is the file that messages name. Throws Error: kCorrupt (contradicts itself, the format or
// its own size), kUnsupported (big-endian, version 1, a type of tensor without a size known here).
// Parses untrusted input.
GgufHeader ParseGgufHeader(ReadBytesAt read, uint64_t file_bytes, std::string_view name);
GgufHeader ReadGgufHeader(const File& file);

// Whether the model at `path` is to be read as GGUF: a .gguf file, or a directory that has such
// files and no config.json.
bool IsGgufModel(const std::filesystem::path& path);

// The files of a model of which `path` is one ("model-00002-of-00005.gguf"): all, in order, the one
// with the metadata first. A model of one file is that file; `path` may also be a directory that
// holds the files of one model. Throws Error: kNotFound naming a file that is missing,
// kInvalidArgument naming the models of a directory that holds several.
std::vector<std::filesystem::path> GgufSplitFiles(const std::filesystem::path& path);

// The headers of all files of a model as one: the metadata of the first, the tensors of all, their
// extents' `file` by the order of `files`. Throws as ParseGgufHeader, and Error(kCorrupt) when the
// files are not those of one model.
GgufHeader ReadGgufModel(std::span<const File> files);
GgufHeader ReadGgufModel(const std::filesystem::path& path);

}  // namespace moesaic
