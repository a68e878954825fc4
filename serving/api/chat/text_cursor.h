// TextCursor: text that comes in pieces, read from the front, with a search for markers that may be
// cut anywhere.
//
// What it answers depends on the text so far and never takes back an answer: text is given out only
// when no marker can begin in it any more. Owned and used by one thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moesaic {

inline constexpr std::string_view kSpaces = " \t\r\n";

class TextCursor {
 public:
  enum class Match { kNo, kYes, kMaybe };  // kMaybe: the text ends within it
  struct Found {
    std::string_view before;  // lies in front of every marker
    bool found = false;       // one of them follows `before`:
    size_t marker = 0;        // this one
  };

  // `control_markers` are single tokens of control: they count only where Append says that one was
  // generated, so that a model can write about them. Empty: all text counts.
  explicit TextCursor(std::vector<std::string_view> control_markers = {})
      : control_markers_(std::move(control_markers)) {}

  // `control_offsets`: where tokens of control begin, in bytes from the beginning of all text.
  void Append(std::string_view text, std::span<const size_t> control_offsets = {});
  // No more comes: nothing may be a marker's beginning any more.
  void End() { ended_ = true; }

  bool ended() const { return ended_; }
  // Of rest(), in bytes from the beginning of all text.
  size_t position() const { return offset_ + at_; }
  std::string_view rest() const { return std::string_view(buffer_).substr(at_); }
  // Views of rest() stay valid until Append.
  void Skip(size_t bytes);
  // Spaces and line breaks. False: there is nothing else, yet or for good.
  bool SkipSpace();

  Match At(std::string_view marker) const;
  // The marker that begins first; of those at one place the first of the list.
  Found Find(std::span<const std::string_view> markers) const;
  bool IsControl(std::string_view marker) const;

  // What is skipped from now on is kept, until it is taken.
  void BeginRecord();
  std::string TakeRecord();
  bool recording() const { return recording_; }

 private:
  bool CountsAt(size_t position, std::string_view marker) const;
  size_t HeldBytes(std::span<const std::string_view> markers) const;

  const std::vector<std::string_view> control_markers_;
  std::vector<size_t> control_offsets_;
  std::string buffer_;
  size_t at_ = 0;      // in the buffer
  size_t offset_ = 0;  // of the buffer, in all text
  bool ended_ = false;
  bool recording_ = false;
  std::string record_;
};

}  // namespace moesaic
