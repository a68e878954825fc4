// The header of a safetensors file: a JSON object {tensor: {dtype, shape, data_offsets}, ...} with
// an optional "__metadata__" of strings (https://github.com/huggingface/safetensors, "Format").
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/io/checkpoint.h"
#include "core/io/checkpoint_index.h"
#include "core/io/tensor_ranges.h"

namespace moesaic {
namespace {

using nlohmann::json;

struct KnownType {
  std::string_view name;
  int bits;
  DType dtype;
  bool supported;  // DType has it; otherwise only the size is known
};

constexpr KnownType kTypes[] = {
    {"BF16", 16, DType::kBF16, true},  {"F16", 16, DType::kF16, true},
    {"F32", 32, DType::kF32, true},    {"F8_E4M3", 8, DType::kF8E4M3, true},
    {"I8", 8, DType::kI8, true},       {"U8", 8, DType::kU8, true},
    {"I32", 32, DType::kI32, true},    {"I64", 64, DType::kI64, true},
    {"BOOL", 8, DType::kBool, true},   {"F64", 64, DType::kU8, false},
    {"I16", 16, DType::kU8, false},    {"U16", 16, DType::kU8, false},
    {"U32", 32, DType::kU8, false},    {"U64", 64, DType::kU8, false},
    {"F8_E5M2", 8, DType::kU8, false}, {"F8_E8M0", 8, DType::kU8, false},
    {"F6_E2M3", 6, DType::kU8, false}, {"F6_E3M2", 6, DType::kU8, false},
    {"F4", 4, DType::kU8, false},      {"C64", 64, DType::kU8, false},
};

// Builds the tensors while nlohmann's parser walks the text. Only the shape of document that the
// format allows is accepted, so nesting is bounded by the states.
class HeaderHandler : public json::json_sax_t {
 public:
  HeaderHandler(std::string_view file, uint64_t data_offset, uint64_t file_bytes)
      : file_(file), data_offset_(data_offset), file_bytes_(file_bytes) {}

  std::map<std::string, TensorInfo> Take() { return std::move(tensors_); }

  bool null() override { Unexpected("null"); }
  bool boolean(bool) override { Unexpected("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override { Unexpected(text); }
  bool binary(binary_t&) override { Unexpected("binary data"); }
  bool number_integer(number_integer_t value) override { Unexpected(fmt::format("{}", value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShape) {
      if (shape_.size() >= kMostRank)
        FailTensor(fmt::format("has more than {} dimensions", kMostRank));
      if (value > static_cast<uint64_t>(INT64_MAX))
        FailTensor(fmt::format("has a dimension of {}", value));
      shape_.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::kOffsets) {
      if (num_offsets_ == 2) FailTensor("data_offsets: expected two numbers, found more");
      offsets_[num_offsets_++] = value;
      return true;
    }
    Unexpected(fmt::format("{}", value));
  }
  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ == State::kTensor && field_ == Field::kDType) {
      dtype_ = std::move(value);
      return true;
    }
    Unexpected(QuotedName(value));
  }
  bool key(string_t& value) override {
    if (state_ == State::kRoot) {
      name_ = std::move(value);
    } else if (state_ == State::kTensor) {
      StartField(value);
    }
    return true;
  }
  bool start_object(std::size_t) override {
    if (state_ == State::kStart) {
      state_ = State::kRoot;
    } else if (state_ == State::kRoot) {
      state_ = name_ == "__metadata__" ? State::kMetadata : State::kTensor;
      seen_fields_ = 0;
      shape_.clear();
      num_offsets_ = 0;
    } else {
      Unexpected("an object");
    }
    return true;
  }
  bool end_object() override {
    if (state_ == State::kTensor) AddTensor();
    state_ = state_ == State::kRoot ? State::kDone : State::kRoot;
    return true;
  }
  bool start_array(std::size_t) override {
    if (state_ == State::kTensor && field_ == Field::kShape) {
      state_ = State::kShape;
    } else if (state_ == State::kTensor && field_ == Field::kOffsets) {
      state_ = State::kOffsets;
    } else {
      Unexpected("a list");
    }
    return true;
  }
  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    Fail(ErrorKind::kCorrupt, "{}: the header is not valid JSON: {:.300}", file_, error.what());
  }

 private:
  enum class State { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kDone };
  enum class Field { kDType = 1, kShape = 2, kOffsets = 4 };
  static constexpr size_t kMostRank = 8;

  [[noreturn]] void FailTensor(std::string_view problem) const {
    Fail(ErrorKind::kCorrupt, "{}: tensor {}: {}", file_, QuotedName(name_), problem);
  }
  [[noreturn]] void Unexpected(std::string_view found) const {
    switch (state_) {
      case State::kTensor:
        FailTensor(
            fmt::format("expected dtype (a string), shape and data_offsets (lists of non-negative "
                        "integers), found {}",
                        found));
      case State::kShape:
        FailTensor(fmt::format("shape: expected non-negative integers, found {}", found));
      case State::kOffsets:
        FailTensor(
            fmt::format("data_offsets: expected two non-negative integers, found {}", found));
      case State::kRoot:
        FailTensor(
            fmt::format("expected an object with dtype, shape and data_offsets, found {}", found));
      case State::kMetadata:
        Fail(ErrorKind::kCorrupt, "{}: __metadata__: expected strings only, found {}", file_,
             found);
      case State::kStart:
      case State::kDone:
        break;
    }
    Fail(ErrorKind::kCorrupt, "{}: the header is {}, expected a JSON object", file_, found);
  }

  void StartField(const std::string& key) {
    if (key == "dtype") {
      field_ = Field::kDType;
    } else if (key == "shape") {
      field_ = Field::kShape;
    } else if (key == "data_offsets") {
      field_ = Field::kOffsets;
    } else {
      FailTensor(fmt::format("has an unknown key {}; expected dtype, shape and data_offsets",
                             QuotedName(key)));
    }
    if ((seen_fields_ & static_cast<int>(field_)) != 0) {
      FailTensor(fmt::format("has {} twice", QuotedName(key)));
    }
    seen_fields_ |= static_cast<int>(field_);
  }

  void AddTensor() {
    for (const auto& [field, key] :
         {std::pair(Field::kDType, "dtype"), std::pair(Field::kShape, "shape"),
          std::pair(Field::kOffsets, "data_offsets")}) {
      if ((seen_fields_ & static_cast<int>(field)) == 0) FailTensor(fmt::format("has no {}", key));
    }
    if (num_offsets_ != 2) {
      FailTensor(fmt::format("data_offsets: expected two numbers, found {}", num_offsets_));
    }
    const uint64_t data_bytes = file_bytes_ - data_offset_;
    if (offsets_[0] > offsets_[1] || offsets_[1] > data_bytes) {
      FailTensor(fmt::format(
          "data_offsets are [{}, {}], expected a range inside the file's {} data bytes; "
          "is the file truncated?",
          offsets_[0], offsets_[1], data_bytes));
    }
    TensorInfo info;
    info.dtype_name = dtype_.substr(0, kMostDTypeName);
    info.shape = shape_;
    info.extent.offset = data_offset_ + offsets_[0];
    info.extent.bytes = offsets_[1] - offsets_[0];
    SetType(info);
    if (!tensors_.emplace(name_, std::move(info)).second) FailTensor("is there twice");
  }

  void SetType(TensorInfo& info) const {
    const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const KnownType& known) { return known.name == dtype_; });
    info.dtype = DType::kU8;
    info.supported_dtype = type != std::end(kTypes) && type->supported;
    if (type == std::end(kTypes)) return;  // its size cannot be checked; Require refuses it
    if (type->supported) info.dtype = type->dtype;
    const std::string where = fmt::format("{}: tensor {}: its shape", file_, QuotedName(name_));
    // A zero makes the product zero whatever else there is; leave it out of the overflow check.
    uint64_t elements = 1;
    if (std::find(shape_.begin(), shape_.end(), 0) != shape_.end()) {
      elements = 0;
    } else {
      for (const int64_t dim : shape_)
        elements = CheckedMul(elements, static_cast<uint64_t>(dim), where);
    }
    const uint64_t bits = CheckedMul(elements, static_cast<uint64_t>(type->bits), where);
    if (bits % 8 != 0 || bits / 8 != info.extent.bytes) {
      FailTensor(fmt::format("shape {} of {} takes {} bytes, but data_offsets cover {}",
                             ShapeString(shape_), type->name, bits / 8, info.extent.bytes));
    }
  }

  static constexpr size_t kMostDTypeName = 40;

  const std::string_view file_;
  const uint64_t data_offset_;
  const uint64_t file_bytes_;
  State state_ = State::kStart;
  Field field_ = Field::kDType;
  int seen_fields_ = 0;
  std::string name_;
  std::string dtype_;
  std::vector<int64_t> shape_;
  uint64_t offsets_[2] = {0, 0};
  int num_offsets_ = 0;
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace

std::string ShapeString(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::map<std::string, TensorInfo> ParseSafetensorsHeader(std::string_view text,
                                                         uint64_t data_offset, uint64_t file_bytes,
                                                         std::string_view name) {
  if (data_offset > file_bytes) {
    Fail(ErrorKind::kCorrupt, "{}: the header ends at byte {}, but the file has only {} bytes",
         name, data_offset, file_bytes);
  }
  HeaderHandler handler(name, data_offset, file_bytes);
  json::sax_parse(text, &handler);
  std::map<std::string, TensorInfo> tensors = handler.Take();
  CheckNoOverlap(tensors, name);
  return tensors;
}

}  // namespace moesaic
