#include "serving/text/segments.h"

#include <algorithm>

#include "core/base/error.h"
#include "serving/text/unicode.h"

namespace moesaic {
namespace {

constexpr size_t kMaxTextBytes = 1ull << 30;  // symbol positions are 32-bit numbers

}  // namespace

JoinedText::JoinedText(std::span<const TextSegment> segments) {
  size_t total = 0;
  for (const TextSegment& segment : segments) {
    if (segment.text.size() > kMaxTextBytes - total) {
      Fail(ErrorKind::kInvalidArgument, "a text of more than {} bytes cannot be tokenized",
           kMaxTextBytes);
    }
    total += segment.text.size();
  }
  const bool single = segments.size() == 1 && IsValidUtf8(segments[0].text);
  if (single) text_ = segments[0].text;
  for (const TextSegment& segment : segments) {
    const size_t begin = owned_.size();
    if (!single) AppendReplacingInvalid(segment.text, owned_);
    const size_t end = single ? segment.text.size() : owned_.size();
    if (segment.parse_special || begin == end) continue;
    if (!plain_.empty() && plain_.back().end == begin) {
      plain_.back().end = end;
    } else {
      plain_.push_back({begin, end});
    }
  }
  if (!single) text_ = owned_;
}

void PlainRangeCursor::Take(size_t begin, size_t end, std::vector<PlainRange>& inside) {
  for (; first_ < ranges_.size() && ranges_[first_].end <= begin; ++first_) ++looks_;
  for (size_t i = first_; i < ranges_.size() && ranges_[i].begin < end; ++i) {
    ++looks_;
    inside.push_back(
        {std::max(ranges_[i].begin, begin) - begin, std::min(ranges_[i].end, end) - begin});
  }
}

}  // namespace moesaic
