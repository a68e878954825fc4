// JSON texts of every shape that a parser may be slow on, each of about the size that is asked for.
// All keep the limits of a request's body but `kOneWideObject`, which keeps those of a batch's
// output line.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace moesaic {

struct JsonShape {
  std::string name;
  std::string text;
};

// `item(i)` after `item(i)` with commas between `open` and `close`, until there are `bytes`.
inline std::string RepeatJson(size_t bytes, const std::string& open, const std::string& close,
                              const std::function<std::string(size_t)>& item) {
  std::string text = open;
  text.reserve(bytes + 64);
  for (size_t i = 0; i == 0 || text.size() < bytes; ++i) {
    if (i > 0) text += ',';
    text += item(i);
  }
  return text + close;
}

inline std::string RepeatJson(size_t bytes, const std::string& item) {
  return RepeatJson(bytes, "[", "]", [&](size_t) { return item; });
}

inline std::string JsonObjectOfKeys(size_t keys, const std::string& prefix) {
  std::string text = "{";
  for (size_t i = 0; i < keys; ++i) text += fmt::format("{}\"{}{}\":0", i ? "," : "", prefix, i);
  return text + "}";
}

inline constexpr const char* kOneWideObject = "one_wide_object";

inline std::vector<JsonShape> JsonShapes(size_t bytes) {
  const std::string deep = std::string(60, '[') + std::string(60, ']');
  std::string deep_objects = "0";
  for (int i = 0; i < 60; ++i) deep_objects.insert(0, "{\"k\":").append("}");
  std::string escapes;
  while (escapes.size() < bytes) escapes += "\\n\\\"\\u00e9";
  return {
      {"text", "\"" + std::string(bytes, 'a') + "\""},
      {"escapes", "\"" + escapes + "\""},
      {"integers", RepeatJson(bytes, "0")},
      {"token_ids", RepeatJson(bytes, "151643")},
      {"doubles", RepeatJson(bytes, "-0.12345678901234567")},
      {"long_numbers", RepeatJson(bytes, std::string(4000, '9') + "e-4000")},
      {"literals", RepeatJson(bytes, "null")},
      {"empty_strings", RepeatJson(bytes, "\"\"")},
      {"empty_arrays", RepeatJson(bytes, "[]")},
      {"empty_objects", RepeatJson(bytes, "{}")},
      {"deep_arrays", RepeatJson(bytes, deep)},
      {"deep_objects", RepeatJson(bytes, deep_objects)},
      {"small_objects", RepeatJson(bytes, R"({"id":7,"s":"x"})")},
      {"objects_of_16", RepeatJson(bytes, JsonObjectOfKeys(16, ""))},
      {"objects_of_17", RepeatJson(bytes, JsonObjectOfKeys(17, ""))},
      // A table for a wide object must not be cleared for each of the small ones that follow.
      {"wide_then_small", RepeatJson(bytes, "[" + JsonObjectOfKeys(1000, "") + ",", "]",
                                     [](size_t) { return JsonObjectOfKeys(17, ""); })},
      {"wide_objects", RepeatJson(bytes, JsonObjectOfKeys(1000, ""))},
      {"long_keys", RepeatJson(bytes, JsonObjectOfKeys(16, std::string(1000, 'k')))},
      {"escaped_keys", RepeatJson(bytes, JsonObjectOfKeys(100, "\\u006b"))},
      {"messages", RepeatJson(bytes, R"({"role":"user","content":"Tell me a story."})")},
      {"white_space", "[" + std::string(bytes, ' ') + "0]"},
      {kOneWideObject,
       RepeatJson(bytes, "{", "}", [](size_t i) { return fmt::format("\"{}\":0", i); })},
  };
}

}  // namespace moesaic
