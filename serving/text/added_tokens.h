// Added tokens: whole strings that are one token wherever they stand in a text (special tokens and
// others that the vocabulary's owner added), and the search for them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_fields.h"

namespace moesaic {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // hidden by Decode(skip_special); not parsed in user content
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // swallows the white space behind it
  bool normalized = true;    // looked for in the normalised text
};

// An element of "added_tokens" or "added_tokens_decoder", without its id. A bare string is a token
// with the default flags.
AddedToken ParseAddedToken(const JsonFields& node);

// A part of a text in which special tokens are plain text.
struct PlainRange {
  size_t begin;
  size_t end;
};

// Finds added tokens: the leftmost, of several at one place the longest. Immutable after
// construction; safe from any thread.
class AddedTokenMatcher {
 public:
  struct Entry {
    std::string pattern;  // what stands in the text; not empty
    AddedToken token;
  };
  explicit AddedTokenMatcher(std::vector<Entry> entries);

  bool empty() const { return entries_.empty(); }

  // A stretch of the text: a token, or text (token null) to be encoded. In order; none is empty.
  struct Part {
    size_t begin;
    size_t end;
    const AddedToken* token;
  };
  // Appends the parts of `text` (valid UTF-8). A special token that touches one of `plain` (sorted,
  // disjoint) is not taken. O(length x longest token).
  void Split(std::string_view text, const std::vector<PlainRange>& plain,
             std::vector<Part>& parts) const;

 private:
  struct Node {
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    int32_t entry = -1;
    unsigned char byte = 0;
  };
  int32_t Child(int32_t node, unsigned char byte) const;
  size_t NextCandidate(std::string_view text, size_t pos) const;

  std::vector<Entry> entries_;
  std::vector<Node> nodes_;  // a trie; 0 is the root
  std::array<bool, 256> starts_{};
  int single_start_ = -1;  // the only first byte, where there is but one
};

}  // namespace moesaic
