#include "bindings/python/engine_handle.h"

#include <unistd.h>

#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/config/settings_environment.h"
#include "core/config/settings_yaml.h"
#include "core/perf/workload.h"
#include "serving/cli/command_line.h"
#include "serving/cli/serving_setup.h"
#include "serving/cli/settings.h"
#include "serving/startup/machine.h"

namespace moesaic::python {
namespace {

constexpr auto kAskEvery = std::chrono::milliseconds(100);
constexpr std::string_view kConfigVariable = "MOESAIC_CONFIG=";

// The same order of precedence as on the command line: keyword, environment, file, default.
void Read(const EngineArguments& arguments, OptionTable& table) {
  SetKeywords(arguments.settings, "run", table);
  for (const std::string& warning : ApplyEnvironment(arguments.environment, table)) {
    LogWarn("{}", warning);
  }
  std::string config = arguments.config;
  for (const std::string& variable : arguments.environment) {
    if (config.empty() && variable.starts_with(kConfigVariable)) {
      config = variable.substr(kConfigVariable.size());
    }
  }
  if (!config.empty()) ApplyConfigFile(config, PresetDirectories(arguments.executable), table);
}

// The logger is the process's: that of the first engine, and not exchanged while others log.
void StartLogging(const OptionTable& table, LogOptions options) {
  static std::once_flag once;
  if (table.origin("log-level") == "default") options.level = LogLevel::kWarning;
  std::call_once(once, [&] { InitLogging(options); });
}

template <typename Plan>
void KeepLedgers(const Plan& plan, LoadedEngine& loaded) {
  loaded.ledgers.push_back(plan.ledger);
  for (const DevicePlan& device : plan.devices) loaded.ledgers.push_back(device.ledger);
}

std::unique_ptr<LoadedEngine> LoadEngine(const EngineArguments& arguments) {
  Settings settings;
  OptionTable table;
  AddSettings(settings, {true, false}, table);
  Read(arguments, table);
  StartLogging(table, settings.log);
  if (settings.engine.model.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "no model given: name a directory or an id in the local Hugging Face cache as the first "
         "argument (for example models/sample)");
  }
  auto loaded = std::make_unique<LoadedEngine>();
  const Machine machine = ReadMachine(arguments.environment);
  settings.engine.grammar_bytes = GrammarBytes({}, settings.engine.machine, machine);
  std::vector<ServedModel> models;
  if (arguments.workload.empty()) {
    LoadedModel model = LoadModel(settings.engine, settings.chat, machine, loaded->metrics);
    KeepLedgers(model.plan, *loaded);
    models.push_back(std::move(model.model));
  } else {
    // What was not given is planned for the job.
    if (table.origin("max-num-seqs") == "default") settings.engine.max_num_seqs = 0;
    if (table.origin("max-num-batched-tokens") == "default") {
      settings.engine.max_num_batched_tokens = 0;
    }
    PlannedJob job = {ParseUniformWorkload(arguments.workload, "workload"), {}};
    LoadedBatchModel model =
        LoadBatchModel(settings.engine, settings.chat, machine, std::move(job));
    KeepLedgers(model.engine->plan(), *loaded);
    models.push_back(std::move(model.model));
  }
  loaded->models = std::make_unique<const ModelTable>(std::move(models));
  return loaded;
}

}  // namespace

EngineHandle::EngineHandle(EngineArguments arguments, const std::function<void()>& keep_waiting)
    : process_(getpid()) {
  std::packaged_task<std::unique_ptr<LoadedEngine>()> load(
      [arguments = std::move(arguments)] { return LoadEngine(arguments); });
  std::future<std::unique_ptr<LoadedEngine>> loading = load.get_future();
  std::thread thread(std::move(load));
  try {
    while (loading.wait_for(kAskEvery) != std::future_status::ready) keep_waiting();
  } catch (...) {
    thread.detach();  // a model that nobody waits for is freed when it is there
    throw;
  }
  thread.join();
  std::unique_ptr<LoadedEngine> loaded = loading.get();
  MutexLock lock(mutex_);
  loaded_ = std::move(loaded);
}

EngineHandle::~EngineHandle() {
  if (forked()) {
    Forget();
  } else {
    Close();
  }
}

bool EngineHandle::forked() const { return process_ != getpid(); }

// The threads that closing would wait for are the parent's, and so may be who holds the mutex.
void EngineHandle::Forget() NO_THREAD_SAFETY_ANALYSIS { static_cast<void>(loaded_.release()); }

void EngineHandle::CheckProcess() const {
  if (!forked()) return;
  Fail(ErrorKind::kUnsupported,
       "this engine was made by process {}, and process {} is a fork of it, which has none of its "
       "threads: make the engine in the process that uses it "
       "(multiprocessing.set_start_method(\"spawn\"))",
       process_, getpid());
}

const LoadedEngine& EngineHandle::Enter() {
  CheckProcess();
  MutexLock lock(mutex_);
  if (loaded_ == nullptr) Fail(ErrorKind::kUnavailable, "the engine is closed");
  ++users_;
  return *loaded_;
}

void EngineHandle::Leave() {
  MutexLock lock(mutex_);
  if (--users_ == 0) left_.NotifyAll();
}

void EngineHandle::Close() {
  CheckProcess();
  std::unique_ptr<LoadedEngine> closing;
  MutexLock lock(mutex_);
  closing = std::move(loaded_);
  while (users_ > 0) left_.Wait(mutex_);
  closing.reset();
}

bool EngineHandle::closed() const {
  MutexLock lock(mutex_);
  return loaded_ == nullptr;
}

}  // namespace moesaic::python
