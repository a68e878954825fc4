#include "serving/text/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "serving/text/unicode.h"

namespace moesaic {

AddedToken ParseAddedToken(const JsonFields& node) {
  AddedToken token;
  if (node.value().is_string()) {
    token.content = node.String();
    return token;
  }
  token.content = node.At("content").String();
  token.special = node.OptionalBool("special").value_or(false);
  token.single_word = node.OptionalBool("single_word").value_or(false);
  token.lstrip = node.OptionalBool("lstrip").value_or(false);
  token.rstrip = node.OptionalBool("rstrip").value_or(false);
  token.normalized = node.OptionalBool("normalized").value_or(!token.special);
  return token;
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<Entry> entries)
    : entries_(std::move(entries)), nodes_(1) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const std::string& pattern = entries_[i].pattern;
    CHECK(!pattern.empty());
    int32_t node = 0;
    for (const char c : pattern) {
      const auto byte = static_cast<unsigned char>(c);
      int32_t child = Child(node, byte);
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_.push_back(
            {.next_sibling = nodes_[static_cast<size_t>(node)].first_child, .byte = byte});
        nodes_[static_cast<size_t>(node)].first_child = child;
      }
      node = child;
    }
    // Of two tokens that look the same the first one counts.
    int32_t& entry = nodes_[static_cast<size_t>(node)].entry;
    if (entry < 0) entry = static_cast<int32_t>(i);
    starts_[static_cast<unsigned char>(pattern[0])] = true;
  }
  if (std::count(starts_.begin(), starts_.end(), true) == 1) {
    single_start_ =
        static_cast<int>(std::find(starts_.begin(), starts_.end(), true) - starts_.begin());
  }
}

int32_t AddedTokenMatcher::Child(int32_t node, unsigned char byte) const {
  int32_t child = nodes_[static_cast<size_t>(node)].first_child;
  while (child >= 0 && nodes_[static_cast<size_t>(child)].byte != byte) {
    child = nodes_[static_cast<size_t>(child)].next_sibling;
  }
  return child;
}

size_t AddedTokenMatcher::NextCandidate(std::string_view text, size_t pos) const {
  if (pos >= text.size()) return text.size();
  if (single_start_ >= 0) {
    const void* found = std::memchr(text.data() + pos, single_start_, text.size() - pos);
    return found == nullptr ? text.size()
                            : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  }
  while (pos < text.size() && !starts_[static_cast<unsigned char>(text[pos])]) ++pos;
  return pos;
}

void AddedTokenMatcher::Split(std::string_view text, const std::vector<PlainRange>& plain,
                              std::vector<Part>& parts) const {
  size_t done = 0;         // text[0, done) is in `parts`
  size_t plain_index = 0;  // the first plain range that ends behind the current position
  size_t pos = empty() ? text.size() : NextCandidate(text, 0);
  while (pos < text.size()) {
    while (plain_index < plain.size() && plain[plain_index].end <= pos) ++plain_index;
    const size_t plain_begin =
        plain_index < plain.size() ? plain[plain_index].begin : std::string_view::npos;
    const AddedToken* token = nullptr;
    size_t end = pos;
    int32_t node = 0;
    for (size_t i = pos; i < text.size(); ++i) {
      node = Child(node, static_cast<unsigned char>(text[i]));
      if (node < 0) break;
      const int32_t entry = nodes_[static_cast<size_t>(node)].entry;
      if (entry < 0) continue;
      const AddedToken& candidate = entries_[static_cast<size_t>(entry)].token;
      if (candidate.special && plain_begin < i + 1) continue;
      token = &candidate;
      end = i + 1;
    }
    if (token != nullptr && token->single_word) {
      size_t after = end;
      const bool word_before = pos > 0 && [&] {
        size_t before = PreviousCodePointStart(text, pos);
        return IsWordCharacter(NextCodePoint(text, before));
      }();
      const bool word_behind = end < text.size() && IsWordCharacter(NextCodePoint(text, after));
      if (word_before || word_behind) {
        // What the match covered is passed over as a whole.
        pos = NextCandidate(text, end);
        continue;
      }
    }
    if (token == nullptr) {
      pos = NextCandidate(text, pos + 1);
      continue;
    }
    // What a token strips behind it may begin another token, which is found as well (as in the
    // reference implementation) but for one that would strip it again.
    const size_t match_end = end;
    size_t begin = pos;
    if (token->lstrip) {
      begin = std::max(begin, done);
      while (begin > done) {
        const size_t previous = PreviousCodePointStart(text, begin);
        size_t next = previous;
        if (!IsWhitespace(NextCodePoint(text, next))) break;
        begin = previous;
      }
    }
    if (token->rstrip) {
      while (end < text.size()) {
        size_t next = end;
        if (!IsWhitespace(NextCodePoint(text, next))) break;
        end = next;
      }
    }
    pos = NextCandidate(text, match_end);
    if (begin >= end) continue;
    if (begin > done) parts.push_back({done, begin, nullptr});
    parts.push_back({begin, end, token});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), nullptr});
}

}  // namespace moesaic
