// The joined text of a prompt's segments, shared by the tokenizers.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/text/added_tokens.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

// A view of the joined text: valid UTF-8 (invalid bytes have become U+FFFD), and the ranges of it
// in which special tokens are text. Points into the segments or into itself; not movable.
class JoinedText {
 public:
  // Throws Error(kInvalidArgument) for more than 1 GiB.
  explicit JoinedText(std::span<const TextSegment> segments);
  JoinedText(const JoinedText&) = delete;
  JoinedText& operator=(const JoinedText&) = delete;

  std::string_view text() const { return text_; }
  const std::vector<PlainRange>& plain() const { return plain_; }

 private:
  std::string owned_;
  std::string_view text_;
  std::vector<PlainRange> plain_;
};

// Hands out what of sorted, disjoint ranges lies in one part of the text after the other. The parts
// must come in order: so a conversation of many messages is gone through once, not once for each of
// them.
class PlainRangeCursor {
 public:
  explicit PlainRangeCursor(const std::vector<PlainRange>& ranges) : ranges_(ranges) {}

  // Appends to `inside`, counted from `begin`.
  void Take(size_t begin, size_t end, std::vector<PlainRange>& inside);
  size_t looks() const { return looks_; }  // at ranges, in all

 private:
  const std::vector<PlainRange>& ranges_;
  size_t first_ = 0;  // that ends behind the parts so far
  size_t looks_ = 0;
};

}  // namespace moesaic
