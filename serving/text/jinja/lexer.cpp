#include "serving/text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

std::string NormalizeNewlines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      out += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool IsDigitChar(char c) { return c >= '0' && c <= '9'; }
bool IsWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsDigitChar(c) || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
int DigitValue(char c) {
  if (IsDigitChar(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

// Longest first, so that the first match is the right one.
constexpr std::array<std::string_view, 25> kOperators = {
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> Run() {
    while (position_ < source_.size()) LexText();
    Add(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void Fail(std::string message) { throw SyntaxFailure{line_, std::move(message)}; }

  bool StartsWith(size_t at, std::string_view text) const {
    return source_.compare(at, text.size(), text) == 0;
  }

  void MoveTo(size_t position) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(position_),
                                         source_.begin() + static_cast<ptrdiff_t>(position), '\n'));
    position_ = position;
  }

  void Add(TokenType type, std::string text) { tokens_.push_back({type, line_, std::move(text)}); }

  size_t SkipSpace(size_t at) const {
    while (at < source_.size()) {
      const auto [c, length] = DecodeAt(source_, at);
      if (!IsSpace(c)) break;
      at += length;
    }
    return at;
  }

  // Template text up to the next tag, then the tag.
  void LexText() {
    size_t tag = position_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        AddData(position_, source_.size());
        MoveTo(source_.size());
        return;
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    size_t inner = tag + 2;
    char sign = '\0';
    if (inner < source_.size() && (source_[inner] == '-' || source_[inner] == '+')) {
      sign = source_[inner++];
    }
    const char kind = source_[tag + 1];
    AddData(position_, StripBefore(position_, tag, sign, kind != '{'));
    MoveTo(tag);
    if (kind == '#') {
      LexComment(inner);
    } else if (size_t raw_end = kind == '%' ? RawBegin(inner) : 0; raw_end != 0) {
      LexRaw(raw_end);
    } else {
      Add(kind == '{' ? TokenType::kVariableBegin : TokenType::kBlockBegin, "");
      MoveTo(inner);
      LexTag(kind == '{' ? '}' : '%');
    }
  }

  // Where the text [begin, end) before a tag ends once the whitespace control took its part.
  size_t StripBefore(size_t begin, size_t end, char sign, bool block) const {
    const std::string_view text(source_.data(), end);
    if (sign == '-') {
      while (end > begin) {
        const auto [c, length] = DecodeBefore(text, end);
        if (!IsSpace(c) || length > end - begin) break;
        end -= length;
      }
      return end;
    }
    if (sign == '+' || !block) return end;
    const size_t newline = text.substr(begin).rfind('\n');
    size_t line_begin = begin;
    if (newline != std::string_view::npos) {
      line_begin = begin + newline + 1;
    } else if (!line_starting_) {
      return end;
    }
    return SkipSpace(line_begin) >= end ? line_begin : end;
  }

  void AddData(size_t begin, size_t end) {
    if (end > begin) Add(TokenType::kData, source_.substr(begin, end - begin));
  }

  // After a closing delimiter at `at`: what it swallows. '-' takes all whitespace, a block's or a
  // comment's plain end one newline.
  void CloseTag(size_t at, bool minus, bool trim) {
    if (minus) {
      at = SkipSpace(at);
    } else if (trim && at < source_.size() && source_[at] == '\n') {
      ++at;
    }
    line_starting_ = source_[at - 1] == '\n';
    MoveTo(at);
  }

  void LexComment(size_t inner) {
    const size_t end = source_.find("#}", inner);
    if (end == std::string::npos) Fail("a comment is not closed with '#}'");
    const char sign = end > inner ? source_[end - 1] : '\0';
    CloseTag(end + 2, sign == '-', sign != '+');
  }

  // The end of `raw %}` when the block that starts here is one, else 0.
  size_t RawBegin(size_t inner) const {
    const size_t word = SkipSpace(inner);
    if (!StartsWith(word, "raw")) return 0;
    const size_t end = SkipSpace(word + 3);
    if (StartsWith(end, "%}")) return end + 2;
    if (StartsWith(end, "-%}")) return SkipSpace(end + 3);
    return 0;
  }

  void LexRaw(size_t begin) {
    line_starting_ = source_[begin - 1] == '\n';
    MoveTo(begin);
    for (size_t tag = begin; (tag = source_.find("{%", tag)) != std::string::npos; ++tag) {
      size_t inner = tag + 2;
      char sign = '\0';
      if (inner < source_.size() && (source_[inner] == '-' || source_[inner] == '+')) {
        sign = source_[inner++];
      }
      const size_t word = SkipSpace(inner);
      if (!StartsWith(word, "endraw")) continue;
      const size_t end = SkipSpace(word + 6);
      const bool signed_end = StartsWith(end, "-%}") || StartsWith(end, "+%}");
      if (!signed_end && !StartsWith(end, "%}")) continue;
      AddData(begin, StripBefore(begin, tag, sign, true));
      CloseTag(end + (signed_end ? 3 : 2), source_[end] == '-', source_[end] != '+');
      return;
    }
    Fail("a raw block is not closed with '{% endraw %}'");
  }

  // Tokens up to the closing delimiter: `closer` and then '}'.
  void LexTag(char closer) {
    const bool block = closer == '%';
    const char close[2] = {closer, '}'};
    const std::string_view closing(close, 2);
    std::string open_brackets;
    while (position_ < source_.size()) {
      const char c = source_[position_];
      if (open_brackets.empty()) {
        const bool is_signed =
            (c == '-' || (c == '+' && block)) && StartsWith(position_ + 1, closing);
        if (is_signed || StartsWith(position_, closing)) {
          Add(block ? TokenType::kBlockEnd : TokenType::kVariableEnd, "");
          CloseTag(position_ + (is_signed ? 3 : 2), is_signed && c == '-', block && !is_signed);
          return;
        }
      }
      const size_t after_space = SkipSpace(position_);
      if (after_space > position_) {
        MoveTo(after_space);
      } else if (IsDigitChar(c)) {
        LexNumber();
      } else if (IsWordChar(c)) {
        size_t end = position_ + 1;
        while (end < source_.size() && IsWordChar(source_[end])) ++end;
        Add(TokenType::kName, source_.substr(position_, end - position_));
        MoveTo(end);
      } else if (c == '"' || c == '\'') {
        LexString(c);
      } else {
        LexOperator(open_brackets);
      }
    }
    Fail(fmt::format("the tag is not closed with '{}'", closing));
  }

  void LexOperator(std::string& open_brackets) {
    for (const std::string_view op : kOperators) {
      if (!StartsWith(position_, op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{') {
        open_brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      } else if (c == ')' || c == ']' || c == '}') {
        if (open_brackets.empty()) Fail(fmt::format("unexpected '{}'", c));
        if (open_brackets.back() != c) {
          Fail(fmt::format("unexpected '{}', expected '{}'", c, open_brackets.back()));
        }
        open_brackets.pop_back();
      }
      Add(TokenType::kOperator, std::string(op));
      MoveTo(position_ + op.size());
      return;
    }
    Fail(fmt::format("unexpected character '{}'",
                     source_.substr(position_, DecodeAt(source_, position_).length_bytes)));
  }

  // The end of digits with single underscores between them; `begin` when there is none.
  size_t DigitsEnd(size_t begin, int base) const {
    size_t at = begin;
    while (at < source_.size()) {
      if (DigitValue(source_[at]) < base) {
        ++at;
      } else if (source_[at] == '_' && at > begin && at + 1 < source_.size() &&
                 DigitValue(source_[at + 1]) < base) {
        at += 2;
      } else {
        break;
      }
    }
    return at;
  }

  void LexNumber() {
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';
    const size_t whole_end = DigitsEnd(position_, 10);
    if (!after_dot && LexFloat(whole_end)) return;
    int base = 10;
    size_t digits = position_;
    size_t end = whole_end;
    if (source_[position_] == '0') {
      const char mark =
          position_ + 1 < source_.size() ? static_cast<char>(source_[position_ + 1] | 0x20) : '\0';
      const int marked_base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
      if (marked_base != 0) {
        size_t begin = position_ + 2;
        if (begin < source_.size() && source_[begin] == '_') ++begin;
        const size_t marked_end = DigitsEnd(begin, marked_base);
        if (marked_end > begin) {
          base = marked_base;
          digits = begin;
          end = marked_end;
        }
      }
      if (base == 10) end = DigitsEnd(position_, 1);  // 0 or 00; a decimal has no leading zero
    }
    Token token{TokenType::kInteger, line_, source_.substr(position_, end - position_)};
    for (size_t i = digits; i < end; ++i) {
      if (source_[i] == '_') continue;
      constexpr Integer kLargest = ~(Integer{1} << 127);
      if (token.integer > (kLargest - DigitValue(source_[i])) / base) {
        Fail("an integer is too large");
      }
      token.integer = token.integer * base + DigitValue(source_[i]);
    }
    tokens_.push_back(std::move(token));
    MoveTo(end);
  }

  bool LexFloat(size_t whole_end) {
    size_t end = whole_end;
    bool is_float = false;
    if (end < source_.size() && source_[end] == '.') {
      const size_t fraction_end = DigitsEnd(end + 1, 10);
      if (fraction_end > end + 1) {
        end = fraction_end;
        is_float = true;
      }
    }
    if (end < source_.size() && (source_[end] | 0x20) == 'e') {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      const size_t exponent_end = DigitsEnd(exponent, 10);
      if (exponent_end > exponent) {
        end = exponent_end;
        is_float = true;
      }
    }
    if (!is_float) return false;
    std::string digits = source_.substr(position_, end - position_);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    Token token{TokenType::kFloat, line_, digits};
    token.number = std::strtod(digits.c_str(), nullptr);  // out of range gives inf, as in Python
    tokens_.push_back(std::move(token));
    MoveTo(end);
    return true;
  }

  void LexString(char quote) {
    size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) Fail("a string is not closed");
    Add(TokenType::kString, "");
    tokens_.back().text = Unescape(source_.substr(position_ + 1, end - position_ - 1));
    MoveTo(end + 1);
  }

  std::string Unescape(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      const char c = text[++i];  // a string never ends with a lone backslash
      switch (c) {
        case '\n':
          break;
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case 'a':
          out += '\a';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'v':
          out += '\v';
          break;
        case '\\':
        case '\'':
        case '"':
          out += c;
          break;
        case 'x':
          i = AppendHexEscape(text, i, 2, out);
          break;
        case 'u':
          i = AppendHexEscape(text, i, 4, out);
          break;
        case 'U':
          i = AppendHexEscape(text, i, 8, out);
          break;
        case 'N':
          Fail("the escape \\N{name} is not supported; use \\uXXXX");
        default:
          if (c >= '0' && c <= '7') {
            char32_t value = 0;
            size_t last = i;
            for (; last < std::min(i + 3, text.size()) && text[last] >= '0' && text[last] <= '7';
                 ++last) {
              value = value * 8 + static_cast<char32_t>(text[last] - '0');
            }
            i = last - 1;
            AppendUtf8(value, out);
          } else {
            out += '\\';
            out += c;
          }
      }
    }
    return out;
  }

  // `at` is the letter after the backslash; returns the last byte of the escape.
  size_t AppendHexEscape(const std::string& text, size_t at, size_t digits, std::string& out) {
    uint32_t value = 0;
    const char* begin = text.data() + at + 1;
    const char* end = begin + std::min(digits, text.size() - at - 1);
    const auto [parsed_end, error] = std::from_chars(begin, end, value, 16);
    if (error != std::errc() || parsed_end != begin + digits) Fail("a truncated \\ escape");
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      Fail(fmt::format("\\{} escape of a value that is no character", text[at]));
    }
    AppendUtf8(value, out);
    return at + digits;
  }

  const std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // nothing but a newline was consumed before position_
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) {
  std::string text = NormalizeNewlines(source);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return Lexer(std::move(text)).Run();
}

}  // namespace moesaic::jinja
