// GrammarCompiler: compiles the grammars of a model's requests on threads of its own, one after the
// other, and keeps what was compiled while there is room.
//
// Owned by the served model; any thread may call. A library cannot be stopped in the middle of a
// grammar: who waited too long goes away with an error, and the thread goes on, so that others wait
// for it. Once every thread is held up like that, requests are refused until one is free again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "serving/grammar/grammar.h"
#include "serving/grammar/grammar_spec.h"

namespace moesaic {

class GrammarBackend;

struct GrammarCompilerOptions {
  int threads = 2;
  size_t cache_bytes = 64 << 20;
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

  // Null once `gone` is set. Throws Error: kInvalidArgument for a grammar that is wrong or takes
  // too long, kUnavailable while all threads are held up, what the backend throws.
  std::shared_ptr<const Grammar> Compile(const GrammarSpec& spec, const std::atomic<bool>& gone);

  size_t cached_bytes() const;

 private:
  struct State;

  const std::shared_ptr<State> state_;  // shared with threads that may outlive this
};

}  // namespace moesaic
