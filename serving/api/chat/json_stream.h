// JSON that comes in pieces: where a value ends, the text of a string, and text as part of a
// string.
//
// State machines over bytes; each is owned and used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moesaic {

// Finds the end of one value. It follows brackets and strings and checks nothing else, but that
// what stands outside of strings can be JSON at all.
class JsonScanner {
 public:
  enum class Status { kMore, kDone, kBroken };

  // How many bytes of `text` belong to the value; the rest, if there is one, stands behind its end
  // or cannot be JSON. Space in front of the value belongs to it.
  size_t Feed(std::string_view text);
  Status status() const { return status_; }
  bool begun() const { return begun_; }
  // The text has ended: a number or word is whole then.
  void End();

 private:
  Status status_ = Status::kMore;
  bool begun_ = false;
  bool word_ = false;  // a number, true, false, null
  bool in_string_ = false;
  bool escaped_ = false;
  size_t depth_ = 0;
};

// The text of a JSON string, from behind its opening quote.
class JsonStringDecoder {
 public:
  // Appends the text to *out and returns how many bytes belong to the string, its closing quote
  // included. A wrong escape stands for itself; half a surrogate pair becomes U+FFFD.
  size_t Feed(std::string_view text, std::string* out);
  bool done() const { return done_; }

 private:
  void Byte(char c, std::string* out);
  void Unit(uint32_t unit, std::string* out);
  void FlushSurrogate(std::string* out);

  enum class At { kText, kEscape, kHex } at_ = At::kText;
  bool done_ = false;
  std::string hex_;
  uint32_t high_surrogate_ = 0;
};

// Appends `text` as it stands within a JSON string, without quotes.
void AppendJsonEscaped(std::string_view text, std::string* out);

}  // namespace moesaic
