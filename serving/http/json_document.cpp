#include "serving/http/json_document.h"

#include <utility>

#include "serving/http/api_error.h"
#include "serving/http/json_scalar.h"

namespace moesaic {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kValuesBetweenLooks = 4096;  // at `gone`

std::string_view WithoutByteOrderMark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

// Builds values from tokens that have been checked.
class JsonBuilder {
 public:
  JsonBuilder(const JsonIndex& index, size_t token, const std::atomic<bool>* gone)
      : index_(index), tokens_(index.tokens()), token_(token), gone_(gone) {}

  // No deeper than the limit of the check.
  Json Value();

 private:
  char Char() const { return index_.text()[tokens_[token_]]; }
  std::string String();
  Json Array();
  Json Object();

  const JsonIndex& index_;
  const std::span<const uint32_t> tokens_;
  size_t token_;
  const std::atomic<bool>* gone_;
  size_t values_ = 0;
};

Json JsonBuilder::Value() {
  if (++values_ % kValuesBetweenLooks == 0 && gone_ != nullptr && gone_->load()) {
    throw ClientLeft();
  }
  switch (Char()) {
    case '{':
      return Object();
    case '[':
      return Array();
    case '"':
      return String();
    case 't':
      ++token_;
      return true;
    case 'f':
      ++token_;
      return false;
    case 'n':
      ++token_;
      return nullptr;
    default: {
      const size_t begin = tokens_[token_++];
      const NumberScan scan = ScanNumber(index_.text(), begin);
      return NumberValue(index_.text().substr(begin, scan.end - begin), scan.integer);
    }
  }
}

std::string JsonBuilder::String() {
  std::string_view content;
  index_.StringAt(token_++, content);
  std::string value;
  AppendUnescaped(content, value);
  return value;
}

Json JsonBuilder::Array() {
  Json::array_t items;
  ++token_;
  while (Char() != ']') {
    items.push_back(Value());
    if (Char() == ',') ++token_;
  }
  ++token_;
  return Json(std::move(items));
}

Json JsonBuilder::Object() {
  Json::object_t members;
  ++token_;
  while (Char() != '}') {
    std::string key = String();
    ++token_;  // the colon
    // The vector below the map: no key is there twice, so none is searched for.
    static_cast<Json::object_t::Container&>(members).emplace_back(std::move(key), Value());
    if (Char() == ',') ++token_;
  }
  ++token_;
  return Json(std::move(members));
}

}  // namespace

JsonDocument::JsonDocument(std::string_view text, const JsonLimits& limits,
                           const std::atomic<bool>* gone)
    : index_(WithoutByteOrderMark(text)), checked_(CheckJson(index_, limits, gone)), gone_(gone) {}

std::string_view JsonDocument::type_name() const {
  switch (index_.text()[index_.tokens()[0]]) {
    case '{':
      return "an object";
    case '[':
      return "an array";
    case '"':
      return "a string";
    case 't':
    case 'f':
      return "a boolean";
    case 'n':
      return "null";
    default:
      return "a number";
  }
}

std::string JsonDocument::Key(size_t member) const {
  std::string key;
  AppendUnescaped(checked_.members[member].key, key);
  return key;
}

size_t JsonDocument::FindMember(std::string_view key) const {
  for (size_t i = 0; i < checked_.members.size(); ++i) {
    const JsonMember& member = checked_.members[i];
    if (member.key_escaped ? Key(i) == key : member.key == key) return i;
  }
  return checked_.members.size();
}

Json JsonDocument::BuildMember(size_t member) const {
  return JsonBuilder(index_, checked_.members[member].value_token, gone_).Value();
}

Json JsonDocument::Build() const { return JsonBuilder(index_, 0, gone_).Value(); }

}  // namespace moesaic
