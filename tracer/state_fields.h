// StateFields: named whole numbers, texts and arrays of numbers, written as one
// msgpack map (https://github.com/msgpack/msgpack/blob/master/spec.md): the form of the sections of
// a state file. Arrays are extension types: the type code is that of the element, the bytes are
// little-endian.
//
// Plain object of one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace moesaic {

class StateFields {
 public:
  void SetInt(std::string key, int64_t value) { fields_[std::move(key)] = value; }
  void SetText(std::string key, std::string value) { fields_[std::move(key)] = std::move(value); }
  template <typename T>  // u8, u16, i32, u32, i64, u64, f32, f64
  void SetArray(std::string key, std::span<const T> values) {
    const std::span<const std::byte> bytes = std::as_bytes(values);
    fields_[std::move(key)] = Array{TypeCode<T>(), {bytes.begin(), bytes.end()}};
  }

  bool Has(std::string_view key) const { return fields_.find(key) != fields_.end(); }
  // All throw Error(kCorrupt) naming the section and the key when it is missing or otherwise typed,
  // or outside [low, high].
  int64_t Int(std::string_view key, int64_t low, int64_t high) const;
  const std::string& Text(std::string_view key) const;
  template <typename T>
  std::vector<T> ArrayOf(std::string_view key) const {
    const std::span<const std::byte> bytes = ArrayBytes(key, TypeCode<T>(), sizeof(T));
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  // Also when the array has another number of elements.
  template <typename T>
  std::vector<T> ArrayOf(std::string_view key, size_t count) const {
    std::vector<T> values = ArrayOf<T>(key);
    if (values.size() != count) FailCount(key, values.size(), count);
    return values;
  }

  std::vector<std::byte> Pack() const;
  // Untrusted bytes; `what` goes into messages. Throws Error(kCorrupt).
  static StateFields Unpack(std::span<const std::byte> bytes, std::string what);

 private:
  struct Array {
    int8_t type;
    std::vector<std::byte> bytes;
  };
  using Field = std::variant<int64_t, std::string, Array>;

  template <typename T>
  static constexpr int8_t TypeCode() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    // 0x1s: unsigned, 0x2s: signed, 0x3s: IEEE 754; s: log2 of the bytes.
    constexpr int8_t kKind = std::is_floating_point_v<T> ? 0x30 : std::is_signed_v<T> ? 0x20 : 0x10;
    return kKind + (sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3);
  }
  const Field& Require(std::string_view key) const;
  std::span<const std::byte> ArrayBytes(std::string_view key, int8_t type,
                                        size_t element_bytes) const;
  [[noreturn]] void FailCount(std::string_view key, size_t count, size_t expected) const;
  [[noreturn]] void FailType(std::string_view key, const char* expected) const;

  std::map<std::string, Field, std::less<>> fields_;
  std::string what_ = "section";
};

}  // namespace moesaic
