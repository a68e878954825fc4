// GrammarCompiler: compiles the grammars of a model's requests on threads of its own, one after the
// other, and keeps what was compiled while there is room. All memory of them is counted, in use or
// not (grammar_memory.h): what nobody uses leaves, the longest unused first; what does not fit
// beside what is in use is refused.
//
// Owned by the served model; any thread may call. A library cannot be stopped in the middle of a
// grammar: who waited too long goes away with an error, and the thread goes on, so that others wait
// for it. Once every thread is held up like that, requests are refused until one is free again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "serving/grammar/grammar.h"
#include "serving/grammar/grammar_spec.h"

namespace moesaic {

class GrammarBackend;

// Where nobody says otherwise.
inline constexpr uint64_t kGrammarMemoryBytes = uint64_t{128} << 20;

struct GrammarCompilerOptions {
  int threads = 2;
  uint64_t memory_bytes = kGrammarMemoryBytes;
  std::chrono::milliseconds time_limit{10'000};  // of one grammar
};

class GrammarCompiler {
 public:
  using MakeBackend = std::function<std::unique_ptr<GrammarBackend>()>;

  // `make` is called on the first thread, when the first grammar is wanted: a vocabulary takes some
  // 50 MB. What it throws is what Compile throws.
  explicit GrammarCompiler(MakeBackend make, const GrammarCompilerOptions& options = {});
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Null once `gone` is set. Throws Error: kInvalidArgument for a grammar that is wrong, takes too
  // long or is too large, kUnavailable while all threads are held up or others' grammars have the
  // memory, what the backend throws.
  std::shared_ptr<const Grammar> Compile(const GrammarSpec& spec, const std::atomic<bool>& gone);

  // Of the memory, in use or kept.
  uint64_t used_bytes() const;

 private:
  struct State;

  const std::shared_ptr<State> state_;  // shared with threads that may outlive this
};

}  // namespace moesaic
