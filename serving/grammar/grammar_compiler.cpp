#include "serving/grammar/grammar_compiler.h"

#include <pthread.h>

#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "serving/grammar/grammar_backend.h"

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
      : options(its_options), make(std::move(make_backend)) {}

  const GrammarCompilerOptions options;
  const MakeBackend make;

  Mutex backend_mutex;
  std::shared_ptr<GrammarBackend> backend GUARDED_BY(backend_mutex);

  mutable Mutex mutex;
  CondVar changed;
  bool stopping GUARDED_BY(mutex) = false;
  int threads GUARDED_BY(mutex) = 0;
  int idle GUARDED_BY(mutex) = 0;
  std::deque<std::shared_ptr<Job>> waiting GUARDED_BY(mutex);
  std::map<std::string, std::shared_ptr<Job>> jobs GUARDED_BY(mutex);  // waiting or running
  // The last used one first.
  std::list<std::pair<std::string, std::shared_ptr<const Grammar>>> cache GUARDED_BY(mutex);
  size_t cached_bytes GUARDED_BY(mutex) = 0;

  std::shared_ptr<const Grammar> Find(const std::string& key) REQUIRES(mutex) {
    for (auto item = cache.begin(); item != cache.end(); ++item) {
      if (item->first != key) continue;
      cache.splice(cache.begin(), cache, item);
      return cache.front().second;
    }
    return nullptr;
  }

  void Keep(const std::string& key, std::shared_ptr<const Grammar> grammar) REQUIRES(mutex) {
    cached_bytes += grammar->bytes() + key.size();
    cache.emplace_front(key, std::move(grammar));
    while (cached_bytes > options.cache_bytes) {
      cached_bytes -= cache.back().second->bytes() + cache.back().first.size();
      cache.pop_back();
    }
  }

  std::shared_ptr<GrammarBackend> Backend() {
    MutexLock lock(backend_mutex);
    if (backend == nullptr) backend = make();
    if (backend == nullptr) {
      Fail(ErrorKind::kUnsupported,
           "this server was built without structured output (MOESAIC_GRAMMAR)");
    }
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
      if (job->grammar != nullptr) Keep(job->key, job->grammar);
      changed.NotifyAll();
    }
    --threads;
    changed.NotifyAll();
  }
};

GrammarCompiler::GrammarCompiler(MakeBackend make, const GrammarCompilerOptions& options)
    : state_(std::make_shared<State>(std::move(make), options)) {}

GrammarCompiler::~GrammarCompiler() {
  MutexLock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.NotifyAll();
  // Those that are held up are left to themselves: they have a share in the state.
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  while (state_->threads > 0 && state_->changed.WaitUntil(state_->mutex, deadline)) {
  }
}

size_t GrammarCompiler::cached_bytes() const {
  MutexLock lock(state_->mutex);
  return state_->cached_bytes;
}

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
