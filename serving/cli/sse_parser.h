// SseParser: the data of server-sent events, from bytes in pieces of any size (the part of the HTML
// standard, "Server-sent events", that OpenAI-compatible servers use: data lines and comments).
//
// Plain object of one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

class SseParser {
 public:
  // Appends the data of each event that `bytes` completes to `events`.
  void Feed(std::string_view bytes, std::vector<std::string>& events);

 private:
  void TakeLine(std::vector<std::string>& events);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;  // the last byte was a CR: an LF now belongs to the same line end
};

}  // namespace moesaic
