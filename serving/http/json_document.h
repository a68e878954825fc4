// JsonDocument: a JSON text that has been checked whole, of which only what somebody asks for is
// built: a request's members that nobody knows cost their check and no more.
//
// What is promised of all of the text, built or not: it is JSON (RFC 8259) in UTF-8, a byte order
// mark before it is passed over as before, and it keeps the limits. A text that is refused builds
// nothing.
//
// Refers to the text, which must outlive it; used by one thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/json.h"
#include "serving/http/json_checker.h"
#include "serving/http/json_index.h"
#include "serving/http/json_text.h"

namespace moesaic {

class JsonDocument {
 public:
  // Throws ApiError as CheckJson does. `gone`, where there is one, must outlive this: building
  // stops soon after it has been set, too.
  explicit JsonDocument(std::string_view text, const JsonLimits& limits = {},
                        const std::atomic<bool>* gone = nullptr);

  bool is_object() const { return checked_.is_object; }
  std::string_view type_name() const;  // "an object", "a number", ...: for messages
  // Of an object; the members in the order of the text.
  size_t num_members() const { return checked_.members.size(); }
  std::string Key(size_t member) const;
  // Its index, or num_members().
  size_t FindMember(std::string_view key) const;
  Json BuildMember(size_t member) const;
  // The whole value.
  Json Build() const;

  // What checking took, in tokens and looks at keys: grows with the text and nothing else.
  uint64_t check_steps() const { return checked_.steps; }

 private:
  JsonIndex index_;
  CheckedJson checked_;
  const std::atomic<bool>* gone_;
};

}  // namespace moesaic
