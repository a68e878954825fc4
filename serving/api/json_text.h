// JSON text in and out: a parser with limits for bodies from outside (json_document.h builds only
// what is asked for), and a writer that never fails.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/json.h"

namespace moesaic {

struct JsonLimits {
  size_t max_depth = 64;
  size_t max_members = 1024;  // of one object; nlohmann finds members by a linear search
};

// Throws ApiError (400) with line, column and byte offset when the text is not JSON, is nested too
// deeply, has an object with a key twice or too many keys, or a number beyond double's range.
Json ParseJson(std::string_view text, const JsonLimits& limits = {});

// One line. Bytes that are not UTF-8 come out as U+FFFD, so that output of a model can be written
// as it is.
std::string DumpJson(const Json& value);

// At most `max_bytes` of `text`, cut between characters, with "..." when cut, without control
// characters: for messages that quote what a client sent.
std::string Excerpt(std::string_view text, size_t max_bytes = 80);

}  // namespace moesaic
