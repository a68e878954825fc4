#include "serving/text/jinja/marked_text.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace moesaic::jinja {

MarkedText::MarkedText(std::string bytes, bool from_input) : bytes_(std::move(bytes)) {
  if (from_input) AddSpan(0, bytes_.size());
}

bool MarkedText::FromInput(size_t offset) const {
  const auto it = std::upper_bound(input_spans_.begin(), input_spans_.end(), offset,
                                   [](size_t value, const Span& span) { return value < span.end; });
  return it != input_spans_.end() && it->begin <= offset;
}

void MarkedText::AddSpan(size_t begin, size_t end) {
  if (begin == end) return;
  if (!input_spans_.empty() && input_spans_.back().end == begin) {
    input_spans_.back().end = end;
  } else {
    input_spans_.push_back({begin, end});
  }
}

void MarkedText::Append(std::string_view bytes, bool from_input) {
  const size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (from_input) AddSpan(begin, bytes_.size());
}

void MarkedText::AppendSlice(const MarkedText& other, size_t begin, size_t end) {
  CHECK(this != &other);
  CHECK_LE(begin, end);
  CHECK_LE(end, other.bytes_.size());
  const size_t base = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  auto it = std::upper_bound(other.input_spans_.begin(), other.input_spans_.end(), begin,
                             [](size_t value, const Span& span) { return value < span.end; });
  for (; it != other.input_spans_.end() && it->begin < end; ++it) {
    AddSpan(base + std::max(it->begin, begin) - begin, base + std::min(it->end, end) - begin);
  }
}

MarkedText MarkedText::Slice(size_t begin, size_t end) const {
  MarkedText result;
  result.AppendSlice(*this, begin, end);
  return result;
}

}  // namespace moesaic::jinja
