#include "tracer/state_fields.h"

#include <limits>
#include <utility>

#include "core/base/error.h"
#include "tracer/internal/msgpack_bytes.h"

namespace moesaic {

const StateFields::Field& StateFields::Require(std::string_view key) const {
  const auto it = fields_.find(key);
  if (it == fields_.end()) Fail(ErrorKind::kCorrupt, "{}: \"{}\" is missing", what_, key);
  return it->second;
}

void StateFields::FailType(std::string_view key, const char* expected) const {
  Fail(ErrorKind::kCorrupt, "{}: \"{}\" must be {}", what_, key, expected);
}

void StateFields::FailCount(std::string_view key, size_t count, size_t expected) const {
  Fail(ErrorKind::kCorrupt, "{}: \"{}\" has {} elements, expected {}", what_, key, count, expected);
}

int64_t StateFields::Int(std::string_view key, int64_t low, int64_t high) const {
  const int64_t* value = std::get_if<int64_t>(&Require(key));
  if (value == nullptr) FailType(key, "a whole number");
  if (*value < low || *value > high) {
    Fail(ErrorKind::kCorrupt, "{}: \"{}\" is {}, expected {} to {}", what_, key, *value, low, high);
  }
  return *value;
}

const std::string& StateFields::Text(std::string_view key) const {
  const std::string* value = std::get_if<std::string>(&Require(key));
  if (value == nullptr) FailType(key, "a text");
  return *value;
}

std::span<const std::byte> StateFields::ArrayBytes(std::string_view key, int8_t type,
                                                   size_t element_bytes) const {
  const Array* array = std::get_if<Array>(&Require(key));
  if (array == nullptr || array->type != type || array->bytes.size() % element_bytes != 0) {
    FailType(key, "an array of the expected numbers");
  }
  return array->bytes;
}

std::vector<std::byte> StateFields::Pack() const {
  MsgpackBytes out;
  MsgpackPacker packer(out);
  packer.pack_map(static_cast<uint32_t>(fields_.size()));
  for (const auto& [key, field] : fields_) {
    packer.pack(key);
    if (const int64_t* value = std::get_if<int64_t>(&field)) {
      packer.pack(*value);
    } else if (const std::string* text = std::get_if<std::string>(&field)) {
      packer.pack(*text);
    } else {
      const Array& array = std::get<Array>(field);
      const size_t bytes = CheckedMsgpackLength(array.bytes.size(), key);
      packer.pack_ext(bytes, array.type);
      packer.pack_ext_body(reinterpret_cast<const char*>(array.bytes.data()),
                           static_cast<uint32_t>(bytes));
    }
  }
  return out.Take();
}

StateFields StateFields::Unpack(std::span<const std::byte> bytes, std::string what) {
  const MsgpackDocument document(bytes, what);
  StateFields result;
  result.what_ = std::move(what);
  const msgpack::object& root = document.root();
  if (root.type != msgpack::type::MAP) {
    Fail(ErrorKind::kCorrupt, "{}: expected a map", result.what_);
  }
  for (const msgpack::object_kv& entry : std::span(root.via.map.ptr, root.via.map.size)) {
    if (entry.key.type != msgpack::type::STR) {
      Fail(ErrorKind::kCorrupt, "{}: a key is not a text", result.what_);
    }
    std::string key(MsgpackText(entry.key));
    const msgpack::object& value = entry.val;
    switch (value.type) {
      case msgpack::type::POSITIVE_INTEGER:
        if (value.via.u64 > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
          result.FailType(key, "a whole number of 63 bits");
        }
        result.SetInt(std::move(key), static_cast<int64_t>(value.via.u64));
        break;
      case msgpack::type::NEGATIVE_INTEGER:
        result.SetInt(std::move(key), value.via.i64);
        break;
      case msgpack::type::STR:
        result.SetText(std::move(key), std::string(MsgpackText(value)));
        break;
      case msgpack::type::EXT: {
        const std::span<const std::byte> array = MsgpackExtension(value);
        result.fields_[std::move(key)] = Array{value.via.ext.type(), {array.begin(), array.end()}};
        break;
      }
      default:
        result.FailType(key, "a whole number, a text or an array");
    }
  }
  return result;
}

}  // namespace moesaic
