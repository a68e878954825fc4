#include "serving/http/json_text.h"

#include <algorithm>
#include <set>
#include <vector>

#include "serving/http/api_error.h"

namespace moesaic {
namespace {

ApiError NotJson(std::string_view text, size_t byte, std::string_view why) {
  byte = std::min(byte, text.size());
  const std::string_view before = text.substr(0, byte);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start =
      before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return ApiError(
      400, "invalid_request_error",
      fmt::format("The request body is not valid JSON at line {}, column {} (byte {}): {}", line,
                  byte - line_start + 1, byte, why),
      {}, "invalid_json");
}

// nlohmann says "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error
// ..."; the position is told by us, so only the last part is kept.
std::string Reason(std::string_view what) {
  const size_t column = what.find("column ");
  size_t start =
      column == std::string_view::npos ? std::string_view::npos : what.find(": ", column);
  if (start == std::string_view::npos) {
    start = what.find("] ");
  }
  return Excerpt(start == std::string_view::npos ? what : what.substr(start + 2), 160);
}

// Checks the limits while nlohmann's parser walks the text; nothing deeper than the limit is built.
class LimitChecker {
 public:
  explicit LimitChecker(const JsonLimits& limits) : limits_(limits) {}

  bool operator()(int depth, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
        CheckDepth(depth);
        keys_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        keys_.pop_back();
        break;
      case Json::parse_event_t::array_start:
        CheckDepth(depth);
        break;
      case Json::parse_event_t::key: {
        const auto& key = value.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second) {
          Refuse(fmt::format("the key \"{}\" appears twice in one object", Excerpt(key)));
        }
        if (keys_.back().size() > limits_.max_members) {
          Refuse(fmt::format("an object has more than {} members", limits_.max_members));
        }
        break;
      }
      default:
        break;
    }
    return true;
  }

 private:
  void CheckDepth(int depth) {
    if (static_cast<size_t>(depth) >= limits_.max_depth) {
      Refuse(fmt::format("it is nested more than {} levels deep", limits_.max_depth));
    }
  }
  [[noreturn]] void Refuse(const std::string& why) {
    throw ApiError(400, "invalid_request_error", "The request body is refused: " + why + ".", {},
                   "invalid_json");
  }

  const JsonLimits& limits_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

Json ParseJson(std::string_view text, const JsonLimits& limits) {
  if (std::all_of(text.begin(), text.end(),
                  [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; })) {
    throw ApiError(400, "invalid_request_error",
                   "The request body is empty; a JSON object is expected.", {}, "invalid_json");
  }
  try {
    return Json::parse(text.begin(), text.end(), LimitChecker(limits));
  } catch (const Json::parse_error& error) {
    // `byte` counts from one and points behind the last character read.
    throw NotJson(text, error.byte > 0 ? error.byte - 1 : 0, Reason(error.what()));
  } catch (const Json::exception& error) {
    throw NotJson(text, text.size(), Reason(error.what()));
  }
}

std::string DumpJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Excerpt(std::string_view text, size_t max_bytes) {
  const bool cut = text.size() > max_bytes;
  size_t end = std::min(text.size(), max_bytes);
  while (cut && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  std::string out(text.substr(0, end));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  if (cut) out += "...";
  return out;
}

}  // namespace moesaic
