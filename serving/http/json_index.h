// JsonIndex: where the tokens of a JSON text begin: brackets, commas, colons, opening quotes and
// the first character of every number and literal. simdjson finds them, 32 or 64 bytes at a time,
// and on the way refuses bytes that are not UTF-8 and strings that hold a control character or do
// not end.
//
// This is simdjson's first stage alone. Its own second stages do not fit: the one that builds a
// document does not say where an error is and counts no members; the on-demand one passes over what
// nobody asks for without checking it, wants the text copied to have bytes behind it, and is
// compiled for the least CPU of the distribution, while the first stage is chosen when it runs.
//
// Refers to the text, which must outlive it; used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace moesaic {

class JsonIndex {
 public:
  enum class Status {
    kOk,
    kNotUtf8,
    kBadString,  // a control character within, or no end
    kTooLong,    // positions have 32 bits
  };

  explicit JsonIndex(std::string_view text);
  ~JsonIndex();
  JsonIndex(JsonIndex&&) noexcept;
  JsonIndex& operator=(JsonIndex&&) noexcept;

  Status status() const { return status_; }
  std::string_view text() const { return text_; }
  // Ascending positions; empty unless the status is kOk.
  std::span<const uint32_t> tokens() const { return tokens_; }

  // Of the string that token `i` opens: what stands between the quotes. False when the quote that
  // should close it is not there.
  bool StringAt(size_t i, std::string_view& content) const;

 private:
  struct Stage;

  std::string_view text_;
  Status status_ = Status::kOk;
  std::unique_ptr<Stage> stage_;  // owns the positions
  std::span<const uint32_t> tokens_;
};

}  // namespace moesaic
