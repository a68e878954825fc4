#include "core/io/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/io/checkpoint_index.h"
#include "core/io/gguf_types.h"
#include "core/io/tensor_ranges.h"

namespace moesaic {
namespace {

using nlohmann::json;

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMostAlignment = 1 << 20;
constexpr uint64_t kMostKeyBytes = 65535;  // the format's limit
// ggml's limit is 64, of some builds 128.
constexpr uint64_t kMostTensorName = 128;
constexpr uint64_t kMostTensors = 1 << 20;
constexpr uint32_t kMostRank = 4;
constexpr int kMostNesting = 4;
// A tokenizer of 256 k tokens has less than a million. They bound the memory of an array of bytes,
// whose elements take sixteen times as much as values of JSON.
constexpr uint64_t kMostValues = uint64_t{1} << 24;

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// The bytes of the header in order, a part of the file at a time.
class HeaderReader {
 public:
  HeaderReader(ReadBytesAt read, uint64_t file_bytes, std::string_view file)
      : read_(read), file_bytes_(file_bytes), file_(file), buffer_(kBufferBytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return file_bytes_ - position_; }
  // What messages say of the place: "key \"general.name\"".
  void SetPlace(std::string place) { place_ = std::move(place); }

  [[noreturn]] void Refuse(std::string_view problem, ErrorKind kind = ErrorKind::kCorrupt) const {
    Fail(kind, "{}: {}{}{}", file_, place_, place_.empty() ? "" : ": ", problem);
  }

  template <typename T>
  T Number() {
    T value;
    Take(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  std::string String(uint64_t most) {
    const auto bytes = Number<uint64_t>();
    if (bytes > most || bytes > remaining()) {
      Refuse(fmt::format("a text of {} bytes at offset {}, expected at most {}", bytes, position_,
                         std::min(most, remaining())));
    }
    std::string text(bytes, '\0');
    Take(std::as_writable_bytes(std::span(text)));
    return text;
  }

  // `count` things of at least `least_bytes` each follow.
  void RequireRoom(uint64_t count, uint64_t least_bytes, std::string_view what) const {
    if (count > remaining() / least_bytes) {
      Refuse(
          fmt::format("says that {} {} follow, but the file has only {} more bytes; is it "
                      "truncated?",
                      count, what, remaining()));
    }
  }

 private:
  static constexpr size_t kBufferBytes = 1 << 16;

  void Take(std::span<std::byte> destination) {
    if (destination.size() > remaining()) {
      Refuse(fmt::format("the file ends at byte {}; is it truncated?", file_bytes_));
    }
    while (!destination.empty()) {
      if (begin_ == end_) {
        begin_ = 0;
        end_ = read_(position_,
                     std::span(buffer_).first(std::min<uint64_t>(buffer_.size(), remaining())));
        if (end_ == 0) Refuse("became shorter while its header was read");
      }
      const size_t part = std::min(destination.size(), end_ - begin_);
      std::memcpy(destination.data(), buffer_.data() + begin_, part);
      destination = destination.subspan(part);
      begin_ += part;
      position_ += part;
    }
  }

  ReadBytesAt read_;
  const uint64_t file_bytes_;
  const std::string_view file_;
  std::string place_;
  uint64_t position_ = 0;
  std::vector<std::byte> buffer_;  // [begin_, end_) of it comes next
  size_t begin_ = 0;
  size_t end_ = 0;
};

class HeaderParser {
 public:
  HeaderParser(ReadBytesAt read, uint64_t file_bytes, std::string_view file)
      : in_(read, file_bytes, file), file_bytes_(file_bytes), file_(file) {}

  GgufHeader Parse() {
    ReadVersion();
    const auto tensors = in_.Number<uint64_t>();
    const auto keys = in_.Number<uint64_t>();
    in_.RequireRoom(tensors, 24, "tensors");
    if (tensors > kMostTensors) {
      in_.Refuse(
          fmt::format("says that it has {} tensors, expected at most {}", tensors, kMostTensors));
    }
    in_.RequireRoom(keys, 13, "keys");
    header_.metadata = json::object();
    for (uint64_t i = 0; i < keys; ++i) ReadKey();
    for (uint64_t i = 0; i < tensors; ++i) ReadTensor();
    Place();
    return std::move(header_);
  }

 private:
  void ReadVersion() {
    std::array<char, 4> magic = {};
    for (char& c : magic) c = in_.Number<char>();
    if (std::string_view(magic.data(), magic.size()) != kMagic) {
      in_.Refuse("does not begin with GGUF; this is no GGUF file");
    }
    header_.version = in_.Number<uint32_t>();
    if (header_.version == 2 || header_.version == 3) return;
    const bool swapped = (header_.version & 0xffff) == 0;
    in_.Refuse(swapped ? "is a big-endian GGUF file; expected a little-endian one"
                       : fmt::format("is of GGUF version {}; versions 2 and 3 are read, convert "
                                     "the model again",
                                     header_.version),
               ErrorKind::kUnsupported);
  }

  void ReadKey() {
    in_.SetPlace("metadata");
    std::string key = in_.String(kMostKeyBytes);
    if (key.empty()) in_.Refuse("a key is empty");
    in_.SetPlace("key " + QuotedName(key));
    if (header_.metadata.contains(key)) in_.Refuse("is there twice");
    json value = ReadValue(in_.Number<uint32_t>(), 0);
    header_.metadata.emplace(std::move(key), std::move(value));
  }

  json ReadValue(uint32_t type, int depth) {
    if (++values_ > kMostValues) {
      in_.Refuse(fmt::format("the metadata has more than {} values", kMostValues));
    }
    switch (type) {
      case kU8:
        return in_.Number<uint8_t>();
      case kI8:
        return in_.Number<int8_t>();
      case kU16:
        return in_.Number<uint16_t>();
      case kI16:
        return in_.Number<int16_t>();
      case kU32:
        return in_.Number<uint32_t>();
      case kI32:
        return in_.Number<int32_t>();
      case kF32:
        return in_.Number<float>();
      case kBool: {
        const auto value = in_.Number<uint8_t>();
        if (value > 1) in_.Refuse(fmt::format("is {}, expected a boolean: 0 or 1", value));
        return value == 1;
      }
      case kString:
        return in_.String(UINT64_MAX);
      case kArray:
        return ReadArray(depth + 1);
      case kU64:
        return in_.Number<uint64_t>();
      case kI64:
        return in_.Number<int64_t>();
      case kF64:
        return in_.Number<double>();
      default:
        in_.Refuse(fmt::format("has a value of type {}, expected 0 to 12", type));
    }
  }

  json ReadArray(int depth) {
    if (depth > kMostNesting) {
      in_.Refuse(fmt::format("has arrays nested more than {} deep", kMostNesting));
    }
    const auto type = in_.Number<uint32_t>();
    const auto count = in_.Number<uint64_t>();
    in_.RequireRoom(count, LeastBytes(type), "elements");
    json::array_t elements;
    elements.reserve(std::min(count, kMostValues));
    for (uint64_t i = 0; i < count; ++i) elements.push_back(ReadValue(type, depth));
    return elements;
  }

  // Of a value of the type in the file.
  static uint64_t LeastBytes(uint32_t type) {
    switch (type) {
      case kU16:
      case kI16:
        return 2;
      case kU32:
      case kI32:
      case kF32:
        return 4;
      case kString:
      case kU64:
      case kI64:
      case kF64:
        return 8;
      case kArray:
        return 12;
      default:
        return 1;
    }
  }

  void ReadTensor() {
    in_.SetPlace("tensors");
    std::string name = in_.String(kMostTensorName);
    in_.SetPlace("tensor " + QuotedName(name));
    TensorInfo tensor;
    const auto rank = in_.Number<uint32_t>();
    if (rank < 1 || rank > kMostRank) {
      in_.Refuse(fmt::format("has {} dimensions, expected 1 to {}", rank, kMostRank));
    }
    uint64_t elements = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      const auto dim = in_.Number<uint64_t>();
      if (dim < 1 || dim > INT64_MAX) in_.Refuse(fmt::format("has a dimension of {}", dim));
      elements =
          CheckedMul(elements, dim, fmt::format("{}: tensor {}: shape", file_, QuotedName(name)));
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
    }
    SetType(in_.Number<uint32_t>(), elements, tensor);
    tensor.extent.offset = in_.Number<uint64_t>();  // in the data; Place adds where that begins
    if (!header_.tensors.emplace(std::move(name), std::move(tensor)).second) {
      in_.Refuse("is there twice");
    }
  }

  void SetType(uint32_t id, uint64_t elements, TensorInfo& tensor) const {
    const GgufType* const type = FindGgufType(id);
    if (type == nullptr) {
      in_.Refuse(fmt::format("is of type {}, which is not read; use a file of another quantisation",
                             GgufTypeText(id)),
                 ErrorKind::kUnsupported);
    }
    if (tensor.shape.back() % type->block_values != 0) {
      in_.Refuse(fmt::format("has rows of {} values, which are no whole blocks of {} ({})",
                             tensor.shape.back(), type->block_values, type->name));
    }
    tensor.dtype_name = type->name;
    static constexpr std::pair<std::string_view, DType> kPlain[] = {
        {"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16},
        {"I8", DType::kI8},   {"I32", DType::kI32}, {"I64", DType::kI64}};
    const auto* const plain =
        std::find_if(std::begin(kPlain), std::end(kPlain),
                     [&](const auto& known) { return known.first == type->name; });
    tensor.supported_dtype = plain != std::end(kPlain);
    tensor.dtype = tensor.supported_dtype ? plain->second : DType::kU8;
    tensor.extent.bytes = CheckedMul(elements / static_cast<uint64_t>(type->block_values),
                                     static_cast<uint64_t>(type->block_bytes), tensor.dtype_name);
  }

  // The data begins behind the header, at a multiple of the alignment.
  void Place() {
    in_.SetPlace("");
    const uint64_t alignment = Alignment();
    const uint64_t data_offset = RoundUp(in_.position(), alignment);
    const uint64_t data_bytes = file_bytes_ - std::min(file_bytes_, data_offset);
    for (auto& [name, tensor] : header_.tensors) {
      in_.SetPlace("tensor " + QuotedName(name));
      Extent& extent = tensor.extent;
      if (extent.offset % alignment != 0) {
        in_.Refuse(fmt::format("lies at offset {} of the data, expected a multiple of {}",
                               extent.offset, alignment));
      }
      if (extent.offset > data_bytes || extent.bytes > data_bytes - extent.offset) {
        in_.Refuse(
            fmt::format("takes {} bytes at offset {} of the data, but the file has {} bytes "
                        "of data; is it truncated?",
                        extent.bytes, extent.offset, data_bytes));
      }
      extent.offset += data_offset;
    }
    CheckNoOverlap(header_.tensors, file_);
  }

  uint64_t Alignment() const {
    const auto it = header_.metadata.find("general.alignment");
    if (it == header_.metadata.end()) return kDefaultAlignment;
    const uint64_t value = it->is_number_unsigned() ? it->get<uint64_t>() : 0;
    if (value == 0 || value % 8 != 0 || value > kMostAlignment) {
      in_.Refuse(fmt::format("general.alignment is {}, expected a multiple of 8 up to {}",
                             it->dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 40),
                             kMostAlignment));
    }
    return value;
  }

  HeaderReader in_;
  const uint64_t file_bytes_;
  const std::string_view file_;
  uint64_t values_ = 0;
  GgufHeader header_;
};

}  // namespace

GgufHeader ParseGgufHeader(ReadBytesAt read, uint64_t file_bytes, std::string_view name) {
  return HeaderParser(read, file_bytes, name).Parse();
}

GgufHeader ReadGgufHeader(const File& file) {
  return ParseGgufHeader(
      [&](uint64_t offset, std::span<std::byte> to) { return file.ReadAt(offset, to); },
      file.size_bytes(), file.path().string());
}

}  // namespace moesaic
