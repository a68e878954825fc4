#include "serving/api/chat/json_stream.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace moesaic {
namespace {

bool IsJsonSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Outside of strings: numbers, true, false, null.
bool IsWordByte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '.' ||
         c == 'E';
}

void AppendUtf8(uint32_t c, std::string* out) {
  if (c < 0x80) {
    *out += static_cast<char>(c);
  } else if (c < 0x800) {
    *out += static_cast<char>(0xC0 | c >> 6);
    *out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    *out += static_cast<char>(0xE0 | c >> 12);
    *out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    *out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    *out += static_cast<char>(0xF0 | c >> 18);
    *out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    *out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    *out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

}  // namespace

size_t JsonScanner::Feed(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (status_ != Status::kMore) return i;
    const char c = text[i];
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
        if (depth_ == 0) status_ = Status::kDone;
      }
      continue;
    }
    if (word_ && depth_ == 0 && !IsWordByte(c)) {
      status_ = Status::kDone;
      return i;
    }
    if (c == '"') {
      in_string_ = begun_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
      begun_ = true;
    } else if ((c == '}' || c == ']') && depth_ > 0) {
      if (--depth_ == 0) status_ = Status::kDone;
    } else if (IsWordByte(c)) {
      begun_ = true;
      if (depth_ == 0) word_ = true;
    } else if (!IsJsonSpace(c) && !(depth_ > 0 && (c == ',' || c == ':'))) {
      status_ = Status::kBroken;
      return i;
    }
  }
  return text.size();
}

void JsonScanner::End() {
  if (status_ == Status::kMore && word_) status_ = Status::kDone;
}

size_t JsonStringDecoder::Feed(std::string_view text, std::string* out) {
  size_t i = 0;
  while (i < text.size() && !done_) Byte(text[i++], out);
  return i;
}

void JsonStringDecoder::Byte(char c, std::string* out) {
  if (at_ == At::kHex) {
    hex_ += c;
    uint32_t unit = 0;
    const auto [end, error] = std::from_chars(hex_.data(), hex_.data() + hex_.size(), unit, 16);
    if (error != std::errc() || end != hex_.data() + hex_.size()) {
      at_ = At::kText;
      FlushSurrogate(out);
      *out += "\\u";
      const std::string wrong = std::exchange(hex_, {});
      for (const char w : wrong) Byte(w, out);
    } else if (hex_.size() == 4) {
      at_ = At::kText;
      hex_.clear();
      Unit(unit, out);
    }
    return;
  }
  if (at_ == At::kEscape) {
    at_ = At::kText;
    if (c == 'u') {
      at_ = At::kHex;
      return;
    }
    FlushSurrogate(out);
    constexpr std::string_view kFrom = "\"\\/bfnrt";
    constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
    const size_t which = kFrom.find(c);
    if (which == std::string_view::npos) {
      *out += '\\';
      *out += c;
    } else {
      *out += kTo[which];
    }
    return;
  }
  if (c == '\\') {
    at_ = At::kEscape;
    return;
  }
  FlushSurrogate(out);
  if (c == '"') {
    done_ = true;
  } else {
    *out += c;
  }
}

void JsonStringDecoder::Unit(uint32_t unit, std::string* out) {
  if (unit >= 0xDC00 && unit < 0xE000 && high_surrogate_ != 0) {
    AppendUtf8(0x10000 + ((high_surrogate_ - 0xD800) << 10) + (unit - 0xDC00), out);
    high_surrogate_ = 0;
    return;
  }
  FlushSurrogate(out);
  if (unit >= 0xD800 && unit < 0xDC00) {
    high_surrogate_ = unit;
  } else {
    AppendUtf8(unit >= 0xDC00 && unit < 0xE000 ? 0xFFFD : unit, out);
  }
}

void JsonStringDecoder::FlushSurrogate(std::string* out) {
  if (high_surrogate_ != 0) AppendUtf8(0xFFFD, out);
  high_surrogate_ = 0;
}

void AppendJsonEscaped(std::string_view text, std::string* out) {
  for (const char c : text) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          *out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          *out += c;
        }
    }
  }
}

}  // namespace moesaic
