#include "serving/api/json_text.h"

#include <algorithm>

#include "serving/api/json_document.h"

namespace moesaic {

Json ParseJson(std::string_view text, const JsonLimits& limits) {
  return JsonDocument(text, limits).Build();
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
