#include "serving/api/chat/text_cursor.h"

#include <algorithm>
#include <utility>

namespace moesaic {
void TextCursor::Append(std::string_view text, std::span<const size_t> control_offsets) {
  offset_ += at_;
  buffer_.erase(0, at_);
  at_ = 0;
  buffer_ += text;
  std::erase_if(control_offsets_, [this](size_t offset) { return offset < offset_; });
  control_offsets_.insert(control_offsets_.end(), control_offsets.begin(), control_offsets.end());
}

void TextCursor::Skip(size_t bytes) {
  if (recording_) record_ += rest().substr(0, bytes);
  at_ += bytes;
}

bool TextCursor::SkipSpace() {
  const size_t end = rest().find_first_not_of(kSpaces);
  Skip(end == std::string_view::npos ? rest().size() : end);
  return end != std::string_view::npos;
}

bool TextCursor::IsControl(std::string_view marker) const {
  return std::find(control_markers_.begin(), control_markers_.end(), marker) !=
         control_markers_.end();
}

bool TextCursor::CountsAt(size_t position, std::string_view marker) const {
  if (!IsControl(marker)) return true;
  return std::find(control_offsets_.begin(), control_offsets_.end(), offset_ + at_ + position) !=
         control_offsets_.end();
}

TextCursor::Match TextCursor::At(std::string_view marker) const {
  const std::string_view text = rest().substr(0, marker.size());
  if (!marker.starts_with(text) || (!text.empty() && !CountsAt(0, marker))) return Match::kNo;
  if (text.size() == marker.size()) return Match::kYes;
  return ended_ ? Match::kNo : Match::kMaybe;
}

// The longest end of the text that may become a marker.
size_t TextCursor::HeldBytes(std::span<const std::string_view> markers) const {
  if (ended_) return 0;
  const std::string_view text = rest();
  size_t held = 0;
  for (const std::string_view marker : markers) {
    for (size_t bytes = std::min(marker.size() - 1, text.size()); bytes > held; --bytes) {
      const size_t position = text.size() - bytes;
      if (marker.starts_with(text.substr(position)) && CountsAt(position, marker)) held = bytes;
    }
  }
  return held;
}

TextCursor::Found TextCursor::Find(std::span<const std::string_view> markers) const {
  const std::string_view text = rest();
  Found result;
  size_t first = std::string_view::npos;
  for (size_t i = 0; i < markers.size(); ++i) {
    size_t at = text.find(markers[i]);
    while (at < first && !CountsAt(at, markers[i])) at = text.find(markers[i], at + 1);
    if (at >= first) continue;
    first = at;
    result.found = true;
    result.marker = i;
  }
  const size_t held = HeldBytes(markers);
  // A marker that has begun in front of one that is whole may be the longer one.
  if (result.found && text.size() - held >= first) {
    result.before = text.substr(0, first);
  } else {
    result.found = false;
    result.before = text.substr(0, text.size() - held);
  }
  return result;
}

void TextCursor::BeginRecord() {
  recording_ = true;
  record_.clear();
}

std::string TextCursor::TakeRecord() {
  recording_ = false;
  return std::exchange(record_, {});
}

}  // namespace moesaic
