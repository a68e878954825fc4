#include "serving/grammar/grammar_compiler.h"

#include <pthread.h>

#include <atomic>
#include <deque>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/base/units.h"
#include "serving/grammar/grammar_backend.h"
#include "serving/grammar/grammar_memory.h"
#include "serving/grammar/held_grammar.h"

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;

struct Job {
  GrammarSpec spec;
  std::string key;
  std::optional<Clock::time_point> began;
  bool done = false;
  std::shared_ptr<const Grammar> grammar;  // null: `error` says why
  std::optional<Error> error;
};

}  // namespace

struct GrammarCompiler::State {
  State(MakeBackend make_backend, const GrammarCompilerOptions& its_options)
      : options(its_options),
        make(std::move(make_backend)),
        memory(std::make_shared<GrammarMemory>(its_options.memory_bytes)) {}

  const GrammarCompilerOptions options;
  const MakeBackend make;
  const std::shared_ptr<GrammarMemory> memory;  // shared with grammars and matches

  Mutex backend_mutex;
  std::shared_ptr<GrammarBackend> backend GUARDED_BY(backend_mutex);
  std::optional<GrammarMemory::Part> backend_part GUARDED_BY(backend_mutex);
  // Once it was made and did not fit: making it takes a second.
  std::optional<Error> no_room GUARDED_BY(backend_mutex);

  std::atomic<uint64_t> backend_bytes{0};

  mutable Mutex mutex;
  CondVar changed;
  bool stopping GUARDED_BY(mutex) = false;
  int threads GUARDED_BY(mutex) = 0;
  int idle GUARDED_BY(mutex) = 0;
  std::deque<std::shared_ptr<Job>> waiting GUARDED_BY(mutex);
  std::map<std::string, std::shared_ptr<Job>> jobs GUARDED_BY(mutex);  // waiting or running
  // The last used one first.
  std::list<std::pair<std::string, std::shared_ptr<const Grammar>>> cache GUARDED_BY(mutex);

  std::shared_ptr<const Grammar> Find(const std::string& key) REQUIRES(mutex) {
    for (auto item = cache.begin(); item != cache.end(); ++item) {
      if (item->first != key) continue;
      cache.splice(cache.begin(), cache, item);
      return cache.front().second;
    }
    return nullptr;
  }

  // One that no request has: the longest unused.
  bool Evict() REQUIRES(mutex) {
    for (auto item = cache.rbegin(); item != cache.rend(); ++item) {
      if (item->second.use_count() > 1) continue;
      cache.erase(std::next(item).base());
      return true;
    }
    return false;
  }

  // What was compiled, counted.
  std::shared_ptr<const Grammar> Hold(const std::string& key,
                                      std::shared_ptr<const Grammar> grammar) REQUIRES(mutex) {
    const uint64_t bytes = grammar->bytes() + 2 * key.size();  // of the key, its job's copy, too
    GrammarMemory::Part part(memory);
    while (!part.Take(bytes)) {
      if (Evict()) continue;
      if (bytes + backend_bytes > memory->limit_bytes()) {
        Fail(ErrorKind::kInvalidArgument,
             "compiled it takes {} of memory, and all of structured output may have {} "
             "(--grammar-memory), {} of them for the vocabulary; make it simpler",
             FormatBytes(bytes), FormatBytes(memory->limit_bytes()), FormatBytes(backend_bytes));
      }
      Fail(ErrorKind::kUnavailable,
           "other requests have the memory for structured output ({}; --grammar-memory); try again "
           "later",
           FormatBytes(memory->limit_bytes()));
    }
    auto held = HoldGrammar(std::move(grammar), memory, std::move(part));
    cache.emplace_front(key, held);
    return held;
  }

  std::shared_ptr<GrammarBackend> Backend() {
    MutexLock lock(backend_mutex);
    if (backend != nullptr) return backend;
    if (no_room) throw *no_room;
    std::shared_ptr<GrammarBackend> made = make();
    if (made == nullptr) {
      Fail(ErrorKind::kUnsupported,
           "this server was built without structured output (MOESAIC_GRAMMAR)");
    }
    GrammarMemory::Part part(memory);
    if (!part.Take(made->bytes())) {
      no_room = Error(
          ErrorKind::kUnsupported,
          fmt::format("structured output takes {} of memory for this model's vocabulary alone, and "
                      "this server has {} for it (--grammar-memory)",
                      FormatBytes(made->bytes()), FormatBytes(memory->limit_bytes())));
      throw *no_room;
    }
    backend_bytes = made->bytes();
    backend_part.emplace(std::move(part));
    backend = std::move(made);
    return backend;
  }

  void Run(Job& job) {
    try {
      job.grammar = Backend()->Compile(job.spec);
    } catch (const Error& error) {
      job.error = error;
    } catch (const std::exception& error) {
      job.error = Error(ErrorKind::kInternal, error.what());
    }
  }

  void Work() {
    pthread_setname_np(pthread_self(), "grammar");
    MutexLock lock(mutex);
    while (true) {
      ++idle;
      while (waiting.empty() && !stopping) changed.Wait(mutex);
      --idle;
      if (stopping) break;
      const std::shared_ptr<Job> job = std::move(waiting.front());
      waiting.pop_front();
      // Nobody has waited long enough to see it begin.
      if (job.use_count() == 2) {
        jobs.erase(job->key);
        continue;
      }
      job->began = Clock::now();
      changed.NotifyAll();
      mutex.Unlock();
      Run(*job);
      mutex.Lock();
      jobs.erase(job->key);
      job->done = true;
      if (job->grammar != nullptr) {
        try {
          job->grammar = Hold(job->key, std::move(job->grammar));
        } catch (const Error& error) {
          job->error = error;
        }
      }
      changed.NotifyAll();
    }
    --threads;
    changed.NotifyAll();
  }
};

GrammarCompiler::GrammarCompiler(MakeBackend make, const GrammarCompilerOptions& options)
    : state_(std::make_shared<State>(std::move(make), options)) {
  state_->memory->SetEvict([weak = std::weak_ptr<State>(state_)] {
    const std::shared_ptr<State> state = weak.lock();
    if (state == nullptr) return false;
    MutexLock lock(state->mutex);
    return state->Evict();
  });
}

GrammarCompiler::~GrammarCompiler() {
  MutexLock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.NotifyAll();
  // Those that are held up are left to themselves: they have a share in the state.
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  while (state_->threads > 0 && state_->changed.WaitUntil(state_->mutex, deadline)) {
  }
}

uint64_t GrammarCompiler::used_bytes() const { return state_->memory->used_bytes(); }

std::shared_ptr<const Grammar> GrammarCompiler::Compile(const GrammarSpec& spec,
                                                        const std::atomic<bool>& gone) {
  State& state = *state_;
  std::string key = spec.Key();
  MutexLock lock(state.mutex);
  if (auto cached = state.Find(key)) return cached;
  std::shared_ptr<Job>& job_of_key = state.jobs[key];
  if (job_of_key == nullptr) {
    job_of_key = std::make_shared<Job>();
    job_of_key->spec = spec;
    job_of_key->key = key;
    state.waiting.push_back(job_of_key);
    if (state.idle == 0 && state.threads < state.options.threads) {
      ++state.threads;
      std::thread([shared = state_] { shared->Work(); }).detach();
    }
    state.changed.NotifyAll();
  }
  const std::shared_ptr<Job> job = job_of_key;
  const auto asked = Clock::now();
  while (!job->done) {
    if (gone.load()) return nullptr;
    const auto now = Clock::now();
    if (job->began && now >= *job->began + state.options.time_limit) {
      Fail(ErrorKind::kInvalidArgument, "it takes longer than {} ms to compile; make it simpler",
           state.options.time_limit.count());
    }
    if (!job->began && now >= asked + state.options.time_limit) {
      Fail(ErrorKind::kUnavailable, "other grammars are being compiled; try again later");
    }
    state.changed.WaitUntil(state.mutex, now + std::chrono::milliseconds(50));
  }
  if (job->error) throw *job->error;
  return job->grammar;
}

}  // namespace moesaic
