#include "serving/api/json_document.h"

#include <simdjson.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "serving/api/api_error.h"

namespace moesaic {
namespace {

namespace dom = simdjson::dom;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kValuesBetweenLooks = 4096;  // at `gone`

// A client that has left ends the work soon, and cheaply where it has not.
class Patience {
 public:
  explicit Patience(const std::atomic<bool>* gone) : gone_(gone) {}
  void Look() {
    if (++values_ % kValuesBetweenLooks == 0 && gone_ != nullptr && gone_->load()) {
      throw ClientLeft();
    }
  }

 private:
  const std::atomic<bool>* gone_;
  uint64_t values_ = 0;
};

[[noreturn]] void Refuse(const std::string& why) {
  throw ApiError(400, "invalid_request_error", "The request body is refused: " + why + ".", {},
                 "invalid_json");
}

// simdjson does not say where a text is wrong; nlohmann, run as a second parser that builds
// nothing, does.
class ErrorFinder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  // `position` counts from one and points behind the last character read.
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    byte = position > 0 ? position - 1 : 0;
    why = error.what();
    return false;
  }

  size_t byte = 0;
  std::string why;
};

// nlohmann says "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error
// ..."; the position is told by us, so only the last part is kept.
std::string Reason(std::string_view what) {
  const size_t column = what.find("column ");
  size_t start =
      column == std::string_view::npos ? std::string_view::npos : what.find(": ", column);
  if (start == std::string_view::npos) start = what.find("] ");
  return Excerpt(start == std::string_view::npos ? what : what.substr(start + 2), 160);
}

[[noreturn]] void RefuseText(std::string_view text) {
  ErrorFinder finder;
  if (Json::sax_parse(text.begin(), text.end(), &finder)) {
    // nlohmann takes a NUL for the end of the text, and an integer of any size for a double.
    finder.byte = text.find('\0');
    if (finder.byte == std::string_view::npos) {
      Refuse("it holds an integer of more than 64 bits; write such a number with an exponent");
    }
    finder.why = "a NUL outside of a string";
  } else {
    finder.why = Reason(finder.why);
  }
  const std::string_view before = text.substr(0, std::min(finder.byte, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_end = before.rfind('\n');
  const size_t line_start = line_end == std::string_view::npos ? 0 : line_end + 1;
  throw ApiError(
      400, "invalid_request_error",
      fmt::format("The request body is not valid JSON at line {}, column {} (byte {}): {}", line,
                  before.size() - line_start + 1, before.size(), finder.why),
      {}, "invalid_json");
}

std::string_view WithoutByteOrderMark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

// Counts, and holds all objects and arrays to the limits.
class LimitChecker {
 public:
  LimitChecker(const JsonLimits& limits, Patience patience)
      : limits_(limits), patience_(patience) {}

  void Check(const dom::element& value, size_t depth) {
    ++steps_;
    patience_.Look();
    if (value.is_array()) {
      CheckDepth(depth);
      for (const dom::element item : dom::array(value)) Check(item, depth + 1);
    } else if (value.is_object()) {
      CheckDepth(depth);
      const dom::object object(value);
      CheckKeys(object);
      for (const dom::key_value_pair member : object) Check(member.value, depth + 1);
    }
  }
  uint64_t steps() const { return steps_; }

 private:
  struct HashedKey {
    size_t hash;
    std::string_view key;
  };

  void CheckDepth(size_t depth) {
    if (depth >= limits_.max_depth) {
      Refuse(fmt::format("it is nested more than {} levels deep", limits_.max_depth));
    }
  }

  // Sorted, equal keys are neighbours. The hash makes comparisons cheap; keys that were chosen to
  // have the same one cost comparisons of text, and no more of them.
  void CheckKeys(const dom::object& object) {
    keys_.clear();
    for (const dom::key_value_pair member : object) {
      if (keys_.size() >= limits_.max_members) {
        Refuse(fmt::format("an object has more than {} members", limits_.max_members));
      }
      keys_.push_back({std::hash<std::string_view>()(member.key), member.key});
    }
    std::sort(keys_.begin(), keys_.end(), [this](const HashedKey& a, const HashedKey& b) {
      ++steps_;
      return a.hash != b.hash ? a.hash < b.hash : a.key < b.key;
    });
    const auto twice = std::adjacent_find(
        keys_.begin(), keys_.end(),
        [](const HashedKey& a, const HashedKey& b) { return a.hash == b.hash && a.key == b.key; });
    if (twice != keys_.end()) {
      Refuse(fmt::format("the key \"{}\" appears twice in one object", Excerpt(twice->key)));
    }
  }

  const JsonLimits& limits_;
  Patience patience_;
  uint64_t steps_ = 0;
  std::vector<HashedKey> keys_;  // of the object at hand
};

// Values of nlohmann's types: an integer without a sign is unsigned.
Json BuildValue(const dom::element& value, Patience& patience) {
  patience.Look();
  switch (value.type()) {
    case dom::element_type::ARRAY: {
      Json::array_t items;
      for (const dom::element item : dom::array(value)) {
        items.push_back(BuildValue(item, patience));
      }
      return Json(std::move(items));
    }
    case dom::element_type::OBJECT: {
      Json::object_t members;
      for (const dom::key_value_pair member : dom::object(value)) {
        // The vector below the map: no key is there twice, so none is searched for.
        static_cast<Json::object_t::Container&>(members).emplace_back(
            std::string(member.key), BuildValue(member.value, patience));
      }
      return Json(std::move(members));
    }
    case dom::element_type::STRING:
      return std::string(std::string_view(value));
    case dom::element_type::INT64: {
      const auto number = int64_t(value);
      return number >= 0 ? Json(static_cast<uint64_t>(number)) : Json(number);
    }
    case dom::element_type::UINT64:
      return uint64_t(value);
    case dom::element_type::DOUBLE:
      return double(value);
    case dom::element_type::BOOL:
      return bool(value);
    case dom::element_type::NULL_VALUE:
      break;
  }
  return nullptr;
}

}  // namespace

struct JsonDocument::Parsed {
  dom::parser parser;
  dom::element root;
  std::vector<dom::key_value_pair> members;  // of an object
  uint64_t steps = 0;
};

JsonDocument::JsonDocument(std::string_view text, const JsonLimits& limits,
                           const std::atomic<bool>* gone)
    : parsed_(std::make_unique<Parsed>()), gone_(gone) {
  text = WithoutByteOrderMark(text);
  // One level more than the limit, which is told exactly below.
  simdjson::error_code error =
      parsed_->parser.allocate(std::max<size_t>(1, text.size()), limits.max_depth + 1);
  if (!error) error = parsed_->parser.parse(text.data(), text.size()).get(parsed_->root);
  switch (error) {
    case simdjson::SUCCESS:
      break;
    case simdjson::EMPTY:
      throw ApiError(400, "invalid_request_error",
                     "The request body is empty; a JSON object is expected.", {}, "invalid_json");
    case simdjson::DEPTH_ERROR:
      Refuse(fmt::format("it is nested more than {} levels deep", limits.max_depth));
    case simdjson::CAPACITY:
      Refuse(fmt::format("{} bytes are too many", text.size()));
    case simdjson::MEMALLOC:
      Fail(ErrorKind::kResourceExhausted, "no memory to parse {} bytes of JSON; try again later",
           text.size());
    default:
      RefuseText(text);
  }
  LimitChecker checker(limits, Patience(gone));
  checker.Check(parsed_->root, 0);
  parsed_->steps = checker.steps();
  if (!is_object()) return;
  for (const dom::key_value_pair member : dom::object(parsed_->root)) {
    parsed_->members.push_back(member);
  }
}

JsonDocument::~JsonDocument() = default;

bool JsonDocument::is_object() const { return parsed_->root.is_object(); }
size_t JsonDocument::num_members() const { return parsed_->members.size(); }
std::string_view JsonDocument::Key(size_t member) const { return parsed_->members[member].key; }
uint64_t JsonDocument::check_steps() const { return parsed_->steps; }

std::string_view JsonDocument::type_name() const {
  switch (parsed_->root.type()) {
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "a boolean";
    case dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

size_t JsonDocument::FindMember(std::string_view key) const {
  const auto found =
      std::find_if(parsed_->members.begin(), parsed_->members.end(),
                   [&](const dom::key_value_pair& member) { return member.key == key; });
  return static_cast<size_t>(found - parsed_->members.begin());
}

Json JsonDocument::BuildMember(size_t member) const {
  Patience patience(gone_);
  return BuildValue(parsed_->members[member].value, patience);
}

Json JsonDocument::Build() const {
  Patience patience(gone_);
  return BuildValue(parsed_->root, patience);
}

}  // namespace moesaic
