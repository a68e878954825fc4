// PTX as text: words, lists, and statements without their comments. Used by the parser (parser.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic::ptx {

std::string_view Trim(std::string_view text);
// The next word, taken off the text.
std::string_view TakeWord(std::string_view& text);
// At commas, but not those within brackets.
std::vector<std::string_view> SplitList(std::string_view text);
// Bytes of a register or of an element of memory of a type such as "b32"; 0: no such type. A
// predicate has none.
uint32_t TypeBytes(std::string_view type);

// A piece of text, and the line where it begins.
struct Statement {
  std::string text;
  int line = 0;
  char end = 0;  // what ended it: one of the characters asked for; 0: the end of the module
};

// Goes through a module, statement by statement.
class PtxReader {
 public:
  explicit PtxReader(std::string_view text) : text_(text) {}

  int line() const { return line_; }
  // The next character that is neither blank nor in a comment; 0 at the end.
  char Peek();
  void Drop() { ++at_; }
  void DropLine();
  // Up to one of `ends`, which is taken too.
  Statement Until(std::string_view ends);

 private:
  void Skip();
  bool SkipComment();

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace moesaic::ptx
