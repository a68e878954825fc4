#include "serving/http/multipart.h"

#include <algorithm>
#include <optional>

#include "serving/api/api_error.h"
#include "serving/api/json_text.h"

namespace moesaic {
namespace {

constexpr std::string_view kType = "multipart/form-data";
constexpr size_t kMaxParts = 64;
constexpr size_t kMaxHeaderBytes = 8 << 10;  // of a part
constexpr size_t kMaxBoundaryBytes = 70;     // RFC 2046

ApiError Bad(std::string_view what) {
  return ApiError(400, "invalid_request_error",
                  fmt::format("The body is no multipart/form-data: {}.", what), {},
                  "invalid_multipart");
}

char LowerOf(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool StartsWithIgnoringCase(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), text.begin(),
                    [](char a, char b) { return LowerOf(a) == LowerOf(b); });
}

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

// The value of a parameter behind a header's value ("a; name=value; other=\"a \\\" b\"").
std::optional<std::string> Parameter(std::string_view header, std::string_view name) {
  size_t at = header.find(';');
  while (at != std::string_view::npos) {
    ++at;
    const size_t equals = header.find_first_of("=;", at);
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string_view key = Trim(header.substr(at, equals - at));
    if (header[equals] == ';') {
      at = equals;
      continue;
    }
    std::string value;
    at = header.find_first_not_of(" \t", equals + 1);
    if (at == std::string_view::npos) return std::nullopt;
    if (header[at] == '"') {
      for (++at; at < header.size() && header[at] != '"'; ++at) {
        if (header[at] == '\\' && at + 1 < header.size()) ++at;
        value += header[at];
      }
      if (at == header.size()) return std::nullopt;
      at = header.find(';', at);
    } else {
      const size_t end = header.find(';', at);
      value = Trim(header.substr(at, end == std::string_view::npos ? end : end - at));
      at = end;
    }
    if (key.size() == name.size() && StartsWithIgnoringCase(key, name)) return value;
  }
  return std::nullopt;
}

// The header of a part that says its name.
FormPart PartOf(std::string_view headers) {
  constexpr std::string_view kDisposition = "content-disposition:";
  while (!headers.empty()) {
    const size_t end = headers.find("\r\n");
    const std::string_view line = headers.substr(0, end);
    headers.remove_prefix(end == std::string_view::npos ? headers.size() : end + 2);
    if (!StartsWithIgnoringCase(line, kDisposition)) continue;
    const std::string_view value = Trim(line.substr(kDisposition.size()));
    auto name = Parameter(value, "name");
    if (!StartsWithIgnoringCase(value, "form-data") || !name) break;
    return {std::move(*name), Parameter(value, "filename").value_or(""), {}};
  }
  throw Bad("a part has no header \"Content-Disposition: form-data; name=...\"");
}

}  // namespace

bool IsMultipart(std::string_view content_type) {
  return StartsWithIgnoringCase(content_type, kType) &&
         (content_type.size() == kType.size() || content_type[kType.size()] == ';' ||
          content_type[kType.size()] == ' ');
}

std::vector<FormPart> ParseMultipart(std::string_view body, std::string_view content_type) {
  if (!IsMultipart(content_type)) {
    throw ApiError(
        415, "invalid_request_error",
        fmt::format("Content-Type must be multipart/form-data, not \"{}\".", Excerpt(content_type)),
        {}, "unsupported_media_type");
  }
  const auto boundary = Parameter(content_type, "boundary");
  if (!boundary || boundary->empty() || boundary->size() > kMaxBoundaryBytes) {
    throw Bad("Content-Type names no boundary of at most 70 characters");
  }
  const std::string delimiter = "\r\n--" + *boundary;
  // The first one may be at the very beginning.
  size_t at = 0;
  if (body.starts_with(std::string_view(delimiter).substr(2))) {
    at = delimiter.size() - 2;
  } else {
    at = body.find(delimiter);
    if (at == std::string_view::npos) throw Bad("its boundary is not there");
    at += delimiter.size();
  }
  std::vector<FormPart> parts;
  for (;;) {
    // Behind a delimiter: "--" at the end of all, else blanks and a new line.
    if (body.substr(at).starts_with("--")) return parts;
    const size_t line_end = body.find("\r\n", at);
    if (line_end == std::string_view::npos || !Trim(body.substr(at, line_end - at)).empty()) {
      throw Bad("a boundary is not followed by a new line");
    }
    if (parts.size() == kMaxParts) throw Bad("it has too many parts");
    const std::string_view window = body.substr(line_end, kMaxHeaderBytes);
    const size_t headers_end = window.find("\r\n\r\n");
    if (headers_end == std::string_view::npos) throw Bad("the headers of a part do not end");
    FormPart part = PartOf(window.substr(0, headers_end).substr(std::min<size_t>(2, headers_end)));
    const size_t begin = line_end + headers_end + 4;
    const size_t end = body.find(delimiter, begin - 2);
    if (end == std::string_view::npos) throw Bad("its last boundary is missing");
    part.content = end < begin ? std::string_view() : body.substr(begin, end - begin);
    parts.push_back(std::move(part));
    at = end + delimiter.size();
  }
}

}  // namespace moesaic
