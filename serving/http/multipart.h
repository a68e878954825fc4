// The parts of a body of type multipart/form-data (RFC 7578; RFC 2046, section 5.1). Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct FormPart {
  std::string name;
  std::string filename;      // empty: it is no file
  std::string_view content;  // within the body
};

// `content_type` is the request's header. Throws ApiError (400, or 415 for another type).
std::vector<FormPart> ParseMultipart(std::string_view body, std::string_view content_type);

// "multipart/form-data; ...", in any case.
bool IsMultipart(std::string_view content_type);

}  // namespace moesaic
