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

}  // namespace moesaic
