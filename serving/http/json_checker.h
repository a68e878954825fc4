// CheckJson: one walk over the tokens of a JSON text that finds everything that is wrong with it.
// Nothing is built and no call is recursive; the time is linear in the text, whatever its shape.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "serving/http/json_index.h"
#include "serving/http/json_text.h"

namespace moesaic {

// A member of the outermost object.
struct JsonMember {
  std::string_view key;  // as it is written, without the quotes
  bool key_escaped = false;
  size_t value_token = 0;  // where its value begins, among the tokens
};

struct CheckedJson {
  bool is_object = false;
  std::vector<JsonMember> members;  // of an object, in the order of the text
  uint64_t steps = 0;               // tokens, comparisons of keys and looks into tables of keys
};

// Throws ApiError: 400 with line, column and byte offset for what is no JSON or beyond a limit;
// ClientLeft soon after `gone` (may be null) has been set.
CheckedJson CheckJson(const JsonIndex& index, const JsonLimits& limits,
                      const std::atomic<bool>* gone);

}  // namespace moesaic
