#include "serving/api/chat/call_body.h"

#include <algorithm>

namespace moesaic {

std::string_view TrimSpace(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::none_of(name.begin(), name.end(), [](char c) {
           return static_cast<unsigned char>(c) <= ' ' || c == '<' || c == '>' || c == '"' ||
                  c == '{' || c == '}' || c == '`' || c == '\\';
         });
}

}  // namespace moesaic
