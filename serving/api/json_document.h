// JsonDocument: a JSON text that simdjson has parsed and checked whole, of which only what somebody
// asks for becomes a `Json`: a request's members that nobody knows cost their parsing and no more.
//
// What is promised of all of the text, built or not: it is JSON (RFC 8259) in UTF-8, a byte order
// mark before it is passed over, its integers fit 64 bits, and it keeps the limits. Time is linear
// in the text, but for the sorting of each object's keys, of which the limits bound the number.
//
// Owns what it needs of the text; used by one thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/json.h"
#include "serving/api/json_text.h"

namespace moesaic {

class JsonDocument {
 public:
  // Throws ApiError: 400 with line, column and byte for what is no JSON, 400 for what is beyond a
  // limit; ClientLeft soon after `gone` has been set. `gone`, where there is one, must outlive
  // this: building stops soon after it has been set, too.
  explicit JsonDocument(std::string_view text, const JsonLimits& limits = {},
                        const std::atomic<bool>* gone = nullptr);
  ~JsonDocument();
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  bool is_object() const;
  std::string_view type_name() const;  // "an object", "a number", ...: for messages
  // Of an object; the members in the order of the text.
  size_t num_members() const;
  std::string_view Key(size_t member) const;
  // Its index, or num_members().
  size_t FindMember(std::string_view key) const;
  Json BuildMember(size_t member) const;
  // The whole value.
  Json Build() const;

  // What checking took, in values and comparisons of keys: grows with the text and nothing else.
  uint64_t check_steps() const;

 private:
  struct Parsed;  // simdjson's document; its header stays out of this one

  std::unique_ptr<Parsed> parsed_;
  const std::atomic<bool>* gone_;
};

}  // namespace moesaic
