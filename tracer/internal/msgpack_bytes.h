// What the sources that read and write msgpack share. Included by sources only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <msgpack.hpp>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace moesaic {

// Where a packer writes to.
class MsgpackBytes {
 public:
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }
  void write(const char* data, size_t bytes);  // the name that msgpack calls
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

using MsgpackPacker = msgpack::packer<MsgpackBytes>;

// One value and nothing after it. Texts, binaries and extensions refer to the bytes, which must
// outlive this.
class MsgpackDocument {
 public:
  // Throws Error(kCorrupt).
  MsgpackDocument(std::span<const std::byte> bytes, std::string_view what);
  const msgpack::object& root() const { return handle_.get(); }

 private:
  msgpack::object_handle handle_;
};

inline std::string_view MsgpackText(const msgpack::object& text) {
  return {text.via.str.ptr, text.via.str.size};
}
inline std::span<const std::byte> MsgpackBinary(const msgpack::object& binary) {
  return {reinterpret_cast<const std::byte*>(binary.via.bin.ptr), binary.via.bin.size};
}
inline std::span<const std::byte> MsgpackExtension(const msgpack::object& extension) {
  return {reinterpret_cast<const std::byte*>(extension.via.ext.data()), extension.via.ext.size};
}

// A length that msgpack can state. Throws Error(kResourceExhausted).
uint32_t CheckedMsgpackLength(size_t bytes, std::string_view what);

}  // namespace moesaic
