#include "serving/api/chat/argument_writer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/json.h"
#include "serving/api/chat/call_body.h"
#include "serving/api/chat/json_stream.h"

namespace moesaic {
namespace {

struct Word {
  std::string_view text;
  std::string_view json;
};
// As JSON writes them, and as Python does: some templates print them so.
constexpr std::array<Word, 6> kWords = {{{"true", "true"},
                                         {"false", "false"},
                                         {"null", "null"},
                                         {"True", "true"},
                                         {"False", "false"},
                                         {"None", "null"}}};

// `text` and what may follow it can still be one of `words` with space around it.
bool MayBeWord(std::string_view text, std::string_view json) {
  const std::string_view trimmed = TrimSpace(text);
  const bool ended = !trimmed.empty() && kSpaces.find(text.back()) != std::string_view::npos;
  return std::any_of(kWords.begin(), kWords.end(), [&](const Word& word) {
    if (!json.empty() && word.json != json) return false;
    return ended ? word.text == trimmed : word.text.starts_with(trimmed);
  });
}

bool MayBeNumber(std::string_view text) {
  constexpr size_t kMaxNumberBytes = 64;
  text = TrimSpace(text);
  return text.size() <= kMaxNumberBytes &&
         text.find_first_not_of("0123456789.eE+-") == std::string_view::npos;
}

// As JSON has it, however large: a library may take only those that it has a type for.
bool IsNumber(std::string_view text) {
  size_t at = 0;
  const auto skip = [&](std::string_view any) {
    const size_t begin = at;
    at = std::min(text.find_first_not_of(any, at), text.size());
    return at - begin;
  };
  const auto one_of = [&](std::string_view any) {
    const bool found = at < text.size() && any.find(text[at]) != std::string_view::npos;
    at += found ? 1 : 0;
    return found;
  };
  constexpr std::string_view kDigits = "0123456789";
  one_of("-");
  if (!one_of("0") && skip(kDigits) == 0) return false;
  if (one_of(".") && skip(kDigits) == 0) return false;
  if (one_of("eE")) {
    one_of("+-");
    if (skip(kDigits) == 0) return false;
  }
  return at == text.size();
}

// Begins an object or array as JSON has it; false also where that cannot be told yet.
bool BeginsNested(std::string_view text) {
  text = TrimSpace(text);
  if (text.empty() || (text[0] != '{' && text[0] != '[')) return false;
  const std::string_view inner = TrimSpace(text.substr(1));
  if (inner.empty()) return false;
  constexpr std::string_view kInObject = "\"}";
  constexpr std::string_view kInArray = "\"{[]-0123456789tfn";
  return (text[0] == '{' ? kInObject : kInArray).find(inner[0]) != std::string_view::npos;
}

bool MayBeNested(std::string_view text) {
  text = TrimSpace(text);
  return !text.empty() && (text[0] == '{' || text[0] == '[') &&
         (BeginsNested(text) || TrimSpace(text.substr(1)).empty());
}

}  // namespace

void ArgumentWriter::Write(std::string_view text) {
  std::string escaped;
  AppendJsonEscaped(text, &escaped);
  events_.Arguments(escaped);
}

void ArgumentWriter::BeginParameter(std::string_view key, ParameterType type) {
  events_.Arguments(any_ ? ", \"" : "{\"");
  Write(key);
  events_.Arguments("\": ");
  any_ = in_parameter_ = true;
  type_ = type;
  form_ = type == ParameterType::kText ? Form::kText : Form::kOpen;
  if (form_ == Form::kText) events_.Arguments("\"");
  held_.clear();
}

void ArgumentWriter::Value(std::string_view text) {
  if (form_ == Form::kText) return Write(text);
  // Byte by byte, as a decision must not depend on how the text is cut.
  for (const char c : text) {
    held_ += c;
    if (form_ == Form::kOpen) {
      Decide();
    } else if (form_ == Form::kText) {
      Write(std::exchange(held_, {}));
    } else if (kSpaces.find(c) == std::string_view::npos) {
      events_.Arguments(std::exchange(held_, {}));
    }
  }
}

void ArgumentWriter::Decide() {
  if (TrimSpace(held_).empty()) return;
  const auto begin_text = [this] {
    form_ = Form::kText;
    events_.Arguments("\"");
    Write(std::exchange(held_, {}));
  };
  switch (type_) {
    case ParameterType::kNullableText:
      if (!MayBeWord(held_, "null")) begin_text();
      break;
    case ParameterType::kJson:
      if (BeginsNested(held_)) {
        form_ = Form::kNested;
        events_.Arguments(TrimSpace(std::exchange(held_, {})));
      }
      break;
    default:
      if (!MayBeNested(held_) && !MayBeWord(held_, {}) && !MayBeNumber(held_)) begin_text();
  }
}

void ArgumentWriter::EndParameter() {
  in_parameter_ = false;
  const std::string value = std::exchange(held_, {});
  if (form_ == Form::kText) return events_.Arguments("\"");
  if (form_ == Form::kNested) return;
  const std::string_view trimmed = TrimSpace(value);
  for (const Word& word : kWords) {
    const bool fits = type_ != ParameterType::kNullableText || word.json == "null";
    if (fits && trimmed == word.text) return events_.Arguments(word.json);
  }
  const bool may_be_json = type_ == ParameterType::kJson || !trimmed.starts_with('"');
  if (type_ != ParameterType::kNullableText && may_be_json &&
      (Json::accept(trimmed) || IsNumber(trimmed))) {
    return events_.Arguments(trimmed);
  }
  events_.Arguments("\"");
  Write(value);
  events_.Arguments("\"");
}

void ArgumentWriter::EndObject() {
  if (in_parameter_) EndParameter();
  events_.Arguments(any_ ? "}" : "{}");
}

}  // namespace moesaic
