#include "serving/http/json_checker.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "serving/http/api_error.h"
#include "serving/http/json_key_set.h"
#include "serving/http/json_scalar.h"
#include "serving/text/unicode.h"

namespace moesaic {
namespace {

constexpr size_t kTokensBetweenLooks = 4096;  // at `gone`

ApiError RefuseAt(std::string_view text, size_t byte, std::string_view what, std::string_view why) {
  byte = std::min(byte, text.size());
  const std::string_view before = text.substr(0, byte);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_end = before.rfind('\n');
  const size_t line_start = line_end == std::string_view::npos ? 0 : line_end + 1;
  return ApiError(400, "invalid_request_error",
                  fmt::format("The request body is {} at line {}, column {} (byte {}): {}.", what,
                              line, byte - line_start + 1, byte, why),
                  {}, "invalid_json");
}

class JsonChecker {
 public:
  JsonChecker(const JsonIndex& index, const JsonLimits& limits, const std::atomic<bool>* gone)
      : index_(index),
        text_(index.text()),
        tokens_(index.tokens()),
        limits_(limits),
        gone_(gone),
        keys_(checked_.steps) {}

  CheckedJson Check();

 private:
  enum class Expect { kValue, kKey, kKeyOrEnd, kColon, kCommaOrEnd, kEnd };

  [[noreturn]] void RefuseText();
  [[noreturn]] void NotJson(size_t byte, std::string_view why) {
    throw RefuseAt(text_, byte, "not valid JSON", why);
  }
  [[noreturn]] void BeyondLimit(size_t byte, std::string_view why) {
    throw RefuseAt(text_, byte, "refused", why);
  }
  [[noreturn]] void Unexpected(size_t token, Expect expect);
  [[noreturn]] void UnexpectedAt(size_t byte, Expect expect);

  // The first character of a token; a NUL, which begins none that is right, behind the last.
  char At(size_t token) const { return token < tokens_.size() ? text_[tokens_[token]] : '\0'; }
  void Open(size_t token, bool object);
  void Close();
  void Scalar(size_t token);
  size_t Key(size_t token, Expect expect);
  std::string_view String(size_t token, bool& escaped);
  void Number(size_t token);
  void Literal(size_t token, std::string_view literal);
  void EndOfScalar(size_t token, size_t end);

  const JsonIndex& index_;
  const std::string_view text_;
  const std::span<const uint32_t> tokens_;
  const JsonLimits& limits_;
  const std::atomic<bool>* gone_;
  CheckedJson checked_;
  JsonKeySet keys_;
  std::string open_;            // the closing brackets of what is open
  char closing_ = '\0';         // the last of them; NUL: nothing is open
  bool after_bracket_ = false;  // a value or the end of an array is expected
  std::string unescaped_key_;
};

CheckedJson JsonChecker::Check() {
  if (index_.status() != JsonIndex::Status::kOk) RefuseText();
  if (tokens_.empty()) {
    throw ApiError(400, "invalid_request_error",
                   "The request body is empty; a JSON object is expected.", {}, "invalid_json");
  }
  checked_.is_object = At(0) == '{';
  size_t token = 0;
  size_t look_at = kTokensBetweenLooks;
  for (;;) {  // a value begins here
    if (token >= look_at) {
      look_at = token + kTokensBetweenLooks;
      if (gone_ != nullptr && gone_->load(std::memory_order_relaxed)) throw ClientLeft();
    }
    const char c = At(token);
    if (c == '{' || c == '[') {
      Open(token, c == '{');
      ++token;
      if (At(token) != closing_) {
        if (c == '{') token = Key(token, Expect::kKeyOrEnd);
        after_bracket_ = c == '[';
        continue;
      }
    } else {
      Scalar(token++);
    }
    after_bracket_ = false;
    // Behind a value, or before the end of an empty array or object.
    char next = At(token);
    while (closing_ != 0 && next == closing_) {
      Close();
      next = At(++token);
    }
    if (closing_ == 0) {
      if (token != tokens_.size()) Unexpected(token, Expect::kEnd);
      break;
    }
    if (next != ',') Unexpected(token, Expect::kCommaOrEnd);
    ++token;
    if (closing_ == '}') token = Key(token, Expect::kKey);
  }
  checked_.steps += tokens_.size();
  return std::move(checked_);
}

// simdjson does not say where.
void JsonChecker::RefuseText() {
  if (index_.status() == JsonIndex::Status::kTooLong) {
    BeyondLimit(0, fmt::format("{} bytes are too many", text_.size()));
  }
  if (index_.status() == JsonIndex::Status::kNotUtf8) {
    size_t pos = 0;
    while (pos < text_.size()) {
      const Utf8Unit unit = ScanUtf8(text_, pos);
      if (unit.kind != Utf8Unit::Kind::kCharacter) break;
      pos += unit.length_bytes;
    }
    NotJson(pos, "these bytes are not UTF-8");
  }
  bool in_string = false;
  for (size_t i = 0; i < text_.size(); ++i) {
    if (text_[i] == '"') {
      in_string = !in_string;
    } else if (in_string && text_[i] == '\\') {
      ++i;
    } else if (in_string && static_cast<unsigned char>(text_[i]) < 0x20) {
      NotJson(i, fmt::format("a string holds the control character U+{:04X}, which must be escaped",
                             static_cast<unsigned char>(text_[i])));
    }
  }
  NotJson(text_.size(), "it ends within a string");
}

void JsonChecker::Unexpected(size_t token, Expect expect) {
  UnexpectedAt(token < tokens_.size() ? tokens_[token] : text_.size(), expect);
}

void JsonChecker::UnexpectedAt(size_t byte, Expect expect) {
  std::string wanted;
  switch (expect) {
    case Expect::kValue:
      wanted = after_bracket_ ? "a value or ']'" : "a value";
      break;
    case Expect::kKey:
      wanted = "a key (a string)";
      break;
    case Expect::kKeyOrEnd:
      wanted = "a key (a string) or '}'";
      break;
    case Expect::kColon:
      wanted = "':'";
      break;
    case Expect::kCommaOrEnd:
      wanted = closing_ == 0 ? "the end of the text" : fmt::format("',' or '{}'", closing_);
      break;
    case Expect::kEnd:
      wanted = "the end of the text";
      break;
  }
  if (byte >= text_.size()) NotJson(byte, fmt::format("expected {}, but it ends", wanted));
  const size_t length = ScanUtf8(text_, byte).length_bytes;
  NotJson(byte, fmt::format("expected {}, found '{}'", wanted,
                            Excerpt(text_.substr(byte, length), length)));
}

void JsonChecker::Open(size_t token, bool object) {
  if (open_.size() >= limits_.max_depth) {
    BeyondLimit(tokens_[token],
                fmt::format("it is nested more than {} levels deep", limits_.max_depth));
  }
  closing_ = object ? '}' : ']';
  open_.push_back(closing_);
  if (object) keys_.OpenObject();
}

void JsonChecker::Close() {
  if (closing_ == '}') keys_.CloseObject();
  open_.pop_back();
  closing_ = open_.empty() ? '\0' : open_.back();
}

void JsonChecker::Scalar(size_t token) {
  const size_t byte = token < tokens_.size() ? tokens_[token] : text_.size();
  switch (const char c = At(token)) {
    case '"': {
      bool escaped = false;
      String(token, escaped);
      return;
    }
    case 't':
      return Literal(token, "true");
    case 'f':
      return Literal(token, "false");
    case 'n':
      return Literal(token, "null");
    default:
      if (c != '-' && (c < '0' || c > '9')) UnexpectedAt(byte, Expect::kValue);
      return Number(token);
  }
}

// Returns where the value begins.
size_t JsonChecker::Key(size_t token, Expect expect) {
  if (At(token) != '"') Unexpected(token, expect);
  bool escaped = false;
  const std::string_view written = String(token, escaped);
  std::string_view key = written;
  if (escaped) {
    unescaped_key_.clear();
    AppendUnescaped(written, unescaped_key_);
    key = unescaped_key_;
  }
  if (keys_.size() >= limits_.max_members) {
    BeyondLimit(tokens_[token],
                fmt::format("an object has more than {} members", limits_.max_members));
  }
  if (!keys_.Add(key, escaped)) {
    BeyondLimit(tokens_[token],
                fmt::format("the key \"{}\" appears twice in one object", Excerpt(key)));
  }
  if (open_.size() == 1) checked_.members.push_back({written, escaped, token + 2});
  if (At(token + 1) != ':') Unexpected(token + 1, Expect::kColon);
  return token + 2;
}

std::string_view JsonChecker::String(size_t token, bool& escaped) {
  std::string_view content;
  if (!index_.StringAt(token, content)) NotJson(tokens_[token], "this string does not end");
  const size_t bad = FindBadEscape(content, escaped);
  if (bad != std::string_view::npos) {
    NotJson(tokens_[token] + 1 + bad,
            fmt::format("'{}' is no escape of JSON, or half a surrogate pair",
                        Excerpt(content.substr(bad), 6)));
  }
  return content;
}

void JsonChecker::Number(size_t token) {
  const size_t byte = tokens_[token];
  const NumberScan scan = ScanNumber(text_, byte);
  if (!scan.valid) NotJson(scan.end, "this is not how JSON writes a number");
  EndOfScalar(token, scan.end);
  if (!scan.maybe_huge) return;
  const std::string_view number = text_.substr(byte, scan.end - byte);
  if (!std::isfinite(NumberValue(number, scan.integer).get<double>())) {
    BeyondLimit(byte, fmt::format("the number {} is out of range", Excerpt(number, 40)));
  }
}

void JsonChecker::Literal(size_t token, std::string_view literal) {
  const size_t byte = tokens_[token];
  for (size_t i = 0; i < literal.size(); ++i) {
    if (byte + i >= text_.size() || text_[byte + i] != literal[i]) {
      NotJson(byte + i, fmt::format("expected {}", literal));
    }
  }
  EndOfScalar(token, byte + literal.size());
}

// A quote that touches a number or a literal is no token of its own.
void JsonChecker::EndOfScalar(size_t token, size_t end) {
  if (end == text_.size() || (token + 1 < tokens_.size() && tokens_[token + 1] == end)) return;
  const char c = text_[end];
  if (c != ' ' && c != '\n' && c != '\r' && c != '\t') UnexpectedAt(end, Expect::kCommaOrEnd);
}

}  // namespace

CheckedJson CheckJson(const JsonIndex& index, const JsonLimits& limits,
                      const std::atomic<bool>* gone) {
  return JsonChecker(index, limits, gone).Check();
}

}  // namespace moesaic
