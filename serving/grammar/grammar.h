// Grammar: what an output may be, compiled for one vocabulary. GrammarMatch: how far one output has
// come in it, and which tokens may come next.
//
// A grammar is immutable and shared by requests, on any thread. A match is its sequence's, used by
// one thread at a time. What implements them is the backend's (grammar_backend.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace moesaic {

class GrammarMatch {
 public:
  virtual ~GrammarMatch() = default;

  // Bit i of the words: token i may come next. The end tokens are among them only where the output
  // may end. Throws Error(kInternal).
  virtual void Fill(std::span<int32_t> words) = 0;
  // False: it does not fit, and nothing has changed. Throws Error: kInternal, and
  // kResourceExhausted where its memory is counted and full (held_grammar.h).
  virtual bool Accept(int32_t token) = 0;
  virtual bool AcceptText(std::string_view text) = 0;
  // What was accepted is one of the grammar's texts.
  virtual bool complete() const = 0;
  // An end token was accepted: nothing comes after it.
  virtual bool ended() const = 0;
  // Of memory, about; it grows with the output.
  virtual size_t bytes() const = 0;
};

class Grammar {
 public:
  virtual ~Grammar() = default;

  virtual std::unique_ptr<GrammarMatch> Start() const = 0;  // throws as Accept does
  virtual size_t bytes() const = 0;                         // of memory
  virtual int64_t vocab_size() const = 0;                   // rows of the logits
  virtual std::span<const int32_t> end_tokens() const = 0;
};

}  // namespace moesaic
