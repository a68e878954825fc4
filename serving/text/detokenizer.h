// Detokenizer: token ids to text, one at a time, as a stream needs it.
//
// It never gives out part of a character: bytes that may still become one are held back. Fed the
// same ids it gives in sum what Tokenizer::Decode gives. Owned and used by one thread; the
// tokenizer must outlive it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "serving/text/tokenizer.h"

namespace moesaic {

// Cuts a stream of bytes into valid UTF-8. An ill-formed part becomes one U+FFFD, as with Python's
// bytes.decode(errors="replace") over the whole stream, however it is cut into pieces.
class Utf8Assembler {
 public:
  void Add(std::string_view bytes, std::string* out);
  void Finish(std::string* out);
  // Bytes of a character that is not complete.
  size_t pending_bytes() const { return pending_.size(); }

 private:
  std::string pending_;  // at most 3 bytes, the right beginning of a character
};

struct DetokenizerOptions {
  bool skip_special = true;
  std::span<const int32_t> shown_special = {};  // but not these; outlives the detokenizer
  // The ids go on from other text (a prompt): the rules for a text's beginning do not apply, so
  // that "▁world" is " world".
  bool continues_text = false;
};

class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, const DetokenizerOptions& options = {});

  // Appends to *out the text that `id` completes.
  void Add(int32_t id, std::string* out);
  // Appends what was held back; the Detokenizer then stands at its beginning again.
  void Finish(std::string* out);

 private:
  void Emit(std::string* out);

  const Tokenizer& tokenizer_;
  const DetokenizerOptions options_;
  Utf8Assembler assembler_;
  std::string text_;         // whole characters that are not given out yet
  int32_t left_strips_ = 0;  // how many characters may still be taken off the front
  bool at_first_ = true;
};

}  // namespace moesaic
