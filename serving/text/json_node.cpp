#include "serving/text/json_node.h"

namespace moesaic {
namespace {

// Tokenizer files need about ten levels; readers recurse into sequences of components.
constexpr int kMaxDepth = 64;

// The deepest nesting of brackets outside strings, for text that may be no JSON at all.
int NestingDepth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > deepest) deepest = depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

std::string JsonNode::where() const {
  return path_.empty() ? *file_ : fmt::format("{}: {}", *file_, path_);
}

void JsonNode::Reject(ErrorKind kind, std::string_view problem) const {
  Fail(kind, "{}: {}", where(), problem);
}

void JsonNode::RequireObject() const {
  if (!value_->is_object()) {
    Reject(ErrorKind::kCorrupt, fmt::format("expected an object, found {}", value_->type_name()));
  }
}

std::optional<JsonNode> JsonNode::Find(const std::string& key) const {
  RequireObject();
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return JsonNode(*found, path_.empty() ? key : path_ + "." + key, *file_);
}

JsonNode JsonNode::At(const std::string& key) const {
  std::optional<JsonNode> found = Find(key);
  if (!found) Reject(ErrorKind::kCorrupt, fmt::format("\"{}\" is missing", key));
  return *found;
}

JsonNode JsonNode::Element(size_t index) const {
  return JsonNode((*value_)[index], fmt::format("{}[{}]", path_, index), *file_);
}

std::vector<JsonNode> JsonNode::Elements() const {
  if (!value_->is_array()) {
    Reject(ErrorKind::kCorrupt, fmt::format("expected an array, found {}", value_->type_name()));
  }
  std::vector<JsonNode> result;
  result.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) result.push_back(Element(i));
  return result;
}

const std::string& JsonNode::String() const {
  if (!value_->is_string()) {
    Reject(ErrorKind::kCorrupt, fmt::format("expected a string, found {}", value_->type_name()));
  }
  return value_->get_ref<const std::string&>();
}

bool JsonNode::Bool() const {
  if (!value_->is_boolean()) {
    Reject(ErrorKind::kCorrupt,
           fmt::format("expected true or false, found {}", value_->type_name()));
  }
  return value_->get<bool>();
}

int64_t JsonNode::Integer(int64_t min, int64_t max) const {
  // An unsigned value above INT64_MAX must not wrap to a negative one.
  const bool fits =
      value_->is_number_integer() && (!value_->is_number_unsigned() ||
                                      value_->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  if (!fits || value_->get<int64_t>() < min || value_->get<int64_t>() > max) {
    Reject(ErrorKind::kCorrupt, fmt::format("expected an integer from {} to {}, found {}", min, max,
                                            value_->dump().substr(0, 40)));
  }
  return value_->get<int64_t>();
}

bool JsonNode::BoolOr(const std::string& key, bool fallback) const {
  const std::optional<JsonNode> found = Find(key);
  return found ? found->Bool() : fallback;
}

std::string JsonNode::StringOr(const std::string& key, std::string_view fallback) const {
  const std::optional<JsonNode> found = Find(key);
  return found ? found->String() : std::string(fallback);
}

nlohmann::json ParseJsonDocument(std::string_view text, const std::string& file) {
  if (NestingDepth(text) > kMaxDepth) {
    Fail(ErrorKind::kCorrupt, "{}: nested more than {} deep", file, kMaxDepth);
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    Fail(ErrorKind::kCorrupt, "{}: not valid JSON: {}", file, error.what());
  }
}

}  // namespace moesaic
