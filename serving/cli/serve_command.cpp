#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/metrics.h"
#include "serving/cli/build_info.h"
#include "serving/cli/commands.h"
#include "serving/cli/serving_setup.h"
#include "serving/cli/several_models.h"
#include "serving/http/connection_memory.h"
#include "serving/http/request_memory.h"
#include "serving/http/server.h"
#include "serving/jobs/batch_runner.h"
#include "serving/online/module_batch_plan.h"
#include "serving/startup/machine_options.h"

namespace moesaic {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(50);

// No more than a sixteenth of the machine is for bodies, or for connections: what those may have,
// the experts lack.
constexpr uint64_t kPart = 16;

// For the largest body. On a small machine large bodies are refused.
uint64_t RequestMemoryBytes(const Settings& settings, const Machine& machine) {
  return std::min(RequestMemory::kBytesPerBodyByte * settings.server.max_body_bytes,
                  MemoryLimitBytes(settings.engine.machine, machine.topology) / kPart);
}

// The batches of clients: where they are, and who runs them.
struct Batches {
  Batches(const ServerOptions& options, int64_t max_outstanding)
      : store({.directory = options.batch_dir,
               .max_bytes = options.batch_dir_bytes,
               .max_age_s = static_cast<int64_t>(options.batch_max_age_days * 86400)}),
        runner(store, max_outstanding) {}
  BatchStore store;
  BatchRunner runner;
};

// Connections are file descriptors; the soft limit is often 1024.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) LogDebug("the limit on open files stays as it is");
}

// SIGINT and SIGTERM, blocked in all threads that are started afterwards and taken by Take; SIGHUP
// too where there is something to reload. (Where there is not, it ends the process as ever.)
class Signals {
 public:
  explicit Signals(bool can_reload) {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    if (can_reload) {
      sigaddset(&set_, SIGHUP);
      signal(SIGHUP, SIG_DFL);  // under nohup it is ignored, and would never arrive
    }
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // The signal to end that came within `wait`, or 0. On SIGHUP the server reloads.
  int Take(Server& server, std::chrono::milliseconds wait) const {
    timespec time{};
    time.tv_sec = wait.count() / 1000;
    time.tv_nsec = wait.count() % 1000 * 1'000'000;
    const int signal = sigtimedwait(&set_, nullptr, &time);
    if (signal == SIGHUP) server.Reload();
    return signal == SIGINT || signal == SIGTERM ? signal : 0;
  }

 private:
  sigset_t set_{};
};

[[noreturn]] void ExitAtOnce(int signal) {
  LogWarn("{}: exiting at once", signal == SIGINT ? "SIGINT" : "SIGTERM");
  std::_Exit(128 + signal);
}

// Waits for `work`; a signal ends the process at once.
template <typename T>
void WaitOrExit(std::future<T>& work, const Signals& signals, Server& server) {
  while (work.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (const int signal = signals.Take(server, kPoll)) ExitAtOnce(signal);
  }
}

}  // namespace

int ServeCommand(const Invocation& invocation) {
  CommandLine line(
      {"serve",
       "MODEL...",
       "Serve a model, or several, over an OpenAI-compatible HTTP API (/v1/chat/completions, "
       "/v1/completions, /v1/models, /tokenize, /metrics, ...). The server listens before "
       "the model is loaded and answers 503 until it is. Several models share the memory and the "
       "threads; a request says which it wants. SIGTERM or Ctrl-C refuses new "
       "requests and lets running ones end; a second one exits at once.",
       {"moesaic serve models/sample",
        "moesaic serve Qwen/Qwen3-30B-A3B --expert-memory 50% --port 9000",
        "moesaic serve --models models.yaml",
        "MOESAIC_API_KEY=secret moesaic serve models/sample --config server"}});
  Settings settings;
  line.UseSettings(settings, {true, true});
  if (!line.Parse(invocation)) return 0;
  SetUpLogging(line, settings.log, LogLevel::kInfo);
  ServerOptions& options = settings.server;
  const Machine machine = ReadMachine(invocation.environment);
  settings.engine.replay_bytes = options.replay_bytes;
  settings.engine.grammar_bytes =
      GrammarBytes(options.grammar_memory, settings.engine.machine, machine);
  settings.engine.serves_batches = !options.batch_dir.empty();
  std::vector<ModelEntry> several = TakeSeveralModels(line, settings);
  if (several.empty()) {
    std::vector<std::string> positionals = line.positionals();
    line.RequireAtMost(line.GivenAsFlag("model") ? 0 : 1);
    // A misspelt name is told before the port is taken.
    ResolveModelPath(TakeModel(line, settings.engine, positionals));
  }
  RaiseFileLimit();

  const Signals signals(!options.api_key_file.empty() || !options.ssl_certfile.empty());
  MetricsRegistry metrics;
  options.version = GetBuildInfo().version;
  options.request_memory_bytes = RequestMemoryBytes(settings, machine);
  settings.engine.request_bytes = options.request_memory_bytes;
  settings.engine.connection_bytes =
      FitConnections(options, MemoryLimitBytes(settings.engine.machine, machine.topology) / kPart);
  const uint64_t reserved_bytes = options.request_memory_bytes + settings.engine.connection_bytes;
  SeveralModels models(std::move(several), machine, metrics);
  std::unique_ptr<Batches> batches;
  if (!options.batch_dir.empty()) {
    // One more than run: a place that becomes free is taken at once.
    batches = std::make_unique<Batches>(options, MostLines(settings.engine) + 1);
  }
  Server server(options, metrics);
  if (batches != nullptr) {
    server.SetBatches({&batches->store, [&batches] { batches->runner.Wake(); }});
  }
  server.Start();
  LogInfo("moesaic {} ({}) listens on {}", GetBuildInfo().version, GetBuildInfo().git_commit,
          server.address());

  const SeveralModels::Guard stop_first(models);
  if (models.empty()) {
    std::future<LoadedModel> loading = std::async(std::launch::async, [&] {
      AmongOthers alone;
      alone.on_progress = [&server](double fraction) { server.ShowLoading(fraction); };
      return LoadModel(settings.engine, settings.chat, machine, metrics, alone);
    });
    WaitOrExit(loading, signals, server);  // nothing is being answered yet: one signal is enough
    LoadedModel loaded = loading.get();
    if (!options.served_model_names.empty()) loaded.model.names = options.served_model_names;
    const std::string name = loaded.model.names.front();
    server.SetModels({std::move(loaded.model)});
    LogInfo("serving {} on {}/v1", name, server.address());
  } else {
    std::future<void> loading =
        std::async(std::launch::async, [&] { models.Start(server, reserved_bytes); });
    WaitOrExit(loading, signals, server);
    loading.get();
    LogInfo("serving {} models on {}/v1", models.size(), server.address());
  }
  if (batches != nullptr) {
    batches->runner.Start([&server](const std::string& model) { return server.Model(model); });
  }

  int signal = 0;
  while (signal == 0) signal = signals.Take(server, std::chrono::hours(1));
  LogInfo("{}: draining for up to {:g} s; a second signal exits at once",
          signal == SIGINT ? "SIGINT" : "SIGTERM",
          std::chrono::duration<double>(options.shutdown_timeout).count());
  std::future<bool> stopping = std::async(std::launch::async, [&] {
    if (batches != nullptr) batches->runner.Stop();  // before the engine refuses its lines
    return server.Stop(options.shutdown_timeout);
  });
  WaitOrExit(stopping, signals, server);
  if (stopping.get()) {
    LogInfo("all requests ended; bye");
  } else {
    LogWarn("some requests did not end in time and were cut off");
  }
  if (server.HasBusyWorkers()) {
    LogWarn("a request is still being read or tokenised; exiting without it");
    std::_Exit(0);
  }
  return 0;
}

}  // namespace moesaic
