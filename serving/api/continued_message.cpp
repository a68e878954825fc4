#include "serving/api/continued_message.h"

#include <string_view>

#include "serving/api/api_error.h"

namespace moesaic {
namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v";

std::string_view TrimLeft(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

std::string_view Trim(std::string_view text) {
  text = TrimLeft(text);
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// The last place where `text` stands as what the client wrote. The template's own text may happen
// to be the same; it counts only when there is no other.
size_t FindContent(const jinja::MarkedText& prompt, std::string_view text) {
  const std::string_view bytes = prompt.bytes();
  const size_t last = bytes.rfind(text);
  for (size_t at = last; at != std::string_view::npos; at = bytes.rfind(text, at - 1)) {
    if (prompt.FromInput(at)) return at;
    if (at == 0) break;
  }
  return last;
}

}  // namespace

jinja::MarkedText CutAfterFinalMessage(const jinja::MarkedText& prompt, const Json& messages) {
  const Json& last = messages.back();
  if (!last.contains("content") || !last["content"].is_string()) {
    throw BadParam("continue_final_message",
                   "The last message has no content that could be continued.");
  }
  const std::string& content = last["content"].get_ref<const std::string&>();
  const std::string_view bytes = prompt.bytes();
  const std::string_view trimmed = Trim(content);
  const size_t at = trimmed.empty() ? std::string_view::npos : FindContent(prompt, trimmed);
  if (at == std::string_view::npos) {
    throw BadParam("continue_final_message",
                   "The last message has no text in the prompt that could be continued.");
  }
  // The template kept the white space at the end, or took it away.
  const std::string_view kept = TrimLeft(content);
  const size_t length = bytes.substr(at, kept.size()) == kept ? kept.size() : trimmed.size();
  return prompt.Slice(0, at + length);
}

}  // namespace moesaic
