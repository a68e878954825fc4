#include "serving/cli/sse_parser.h"

#include <utility>

namespace moesaic {

void SseParser::Feed(std::string_view bytes, std::vector<std::string>& events) {
  for (const char c : bytes) {
    const bool second_of_crlf = after_cr_ && c == '\n';
    after_cr_ = c == '\r';
    if (second_of_crlf) continue;
    if (c == '\n' || c == '\r') {
      TakeLine(events);
    } else {
      line_.push_back(c);
    }
  }
}

void SseParser::TakeLine(std::vector<std::string>& events) {
  if (line_.empty()) {
    if (has_data_) events.push_back(std::move(data_));
    data_.clear();
    has_data_ = false;
    return;
  }
  const std::string_view line = line_;
  const std::string_view field = line.substr(0, line.find(':'));
  if (field == "data") {
    std::string_view value = line.substr(field.size());
    if (!value.empty()) value.remove_prefix(1);
    if (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    if (has_data_) data_.push_back('\n');
    data_ += value;
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace moesaic
