#include "tests/gpu/interpreter/ptx_text.h"

#include <algorithm>

namespace moesaic::ptx {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view TakeWord(std::string_view& text) {
  text = Trim(text);
  size_t length = 0;
  while (length < text.size() && !IsBlank(text[length])) ++length;
  const std::string_view word = text.substr(0, length);
  text = Trim(text.substr(length));
  return word;
}

std::vector<std::string_view> SplitList(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '{' || c == '[' || c == '(') ++depth;
    if (c == '}' || c == ']' || c == ')') --depth;
    if (c != ',' || depth != 0) continue;
    parts.push_back(Trim(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  if (!Trim(text.substr(begin)).empty()) parts.push_back(Trim(text.substr(begin)));
  return parts;
}

uint32_t TypeBytes(std::string_view type) {
  if (type.size() < 2 || std::string_view("bsuf").find(type[0]) == std::string_view::npos) return 0;
  const std::string_view bits = type.substr(1);
  return bits == "8" ? 1 : bits == "16" ? 2 : bits == "32" ? 4 : bits == "64" ? 8 : 0;
}

char PtxReader::Peek() {
  Skip();
  return at_ < text_.size() ? text_[at_] : '\0';
}

void PtxReader::DropLine() {
  while (at_ < text_.size() && text_[at_] != '\n') ++at_;
}

Statement PtxReader::Until(std::string_view ends) {
  Skip();
  Statement statement;
  statement.line = line_;
  while (at_ < text_.size()) {
    if (SkipComment()) continue;
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    if (ends.find(c) != std::string_view::npos) {
      statement.end = c;
      break;
    }
    statement.text += IsBlank(c) ? ' ' : c;
  }
  statement.text = Trim(statement.text);
  return statement;
}

void PtxReader::Skip() {
  while (at_ < text_.size()) {
    if (SkipComment()) continue;
    if (!IsBlank(text_[at_])) return;
    if (text_[at_++] == '\n') ++line_;
  }
}

bool PtxReader::SkipComment() {
  const std::string_view rest = text_.substr(at_);
  if (rest.starts_with("//")) {
    at_ = std::min(text_.find('\n', at_), text_.size());
    return true;
  }
  if (!rest.starts_with("/*")) return false;
  const size_t end = std::min(text_.find("*/", at_ + 2), text_.size() - 2);
  line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                       text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
  at_ = end + 2;
  return true;
}

}  // namespace moesaic::ptx
