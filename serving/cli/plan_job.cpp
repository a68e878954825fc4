#include "serving/cli/plan_job.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/units.h"
#include "serving/cli/plan_report.h"
#include "serving/cli/workload_file.h"
#include "serving/plan/batch_planner.h"
#include "serving/plan/throughput_planner.h"
#include "serving/startup/machine_options.h"
#include "serving/startup/measured_costs.h"
#include "serving/text/tokenizer.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMaxWorkloadBytes = uint64_t{1} << 30;
// Where there is no tokenizer to count with; bytes of English text per token.
constexpr int64_t kBytesPerToken = 4;

Workload ReadPlanWorkload(const std::string& text, int64_t default_generated,
                          const fs::path& model_dir) {
  std::error_code error;
  if (!fs::exists(text, error)) return ParseUniformWorkload(text, "--workload");
  std::unique_ptr<Tokenizer> tokenizer;
  if (!model_dir.empty()) tokenizer = LoadTokenizer(model_dir);
  const auto count = [&](std::string_view prompt) -> int64_t {
    if (tokenizer) return static_cast<int64_t>(tokenizer->Encode(prompt).size());
    return (static_cast<int64_t>(prompt.size()) + kBytesPerToken - 1) / kBytesPerToken;
  };
  Workload workload =
      ParseWorkloadLines(ReadTextFile(text, kMaxWorkloadBytes), text, default_generated, count);
  if (!tokenizer) {
    workload.source +=
        fmt::format(" (no tokenizer: {} bytes are taken for a token)", kBytesPerToken);
  }
  return workload;
}

void LimitMemory(const std::string& text, const char* flag, Constant& memory) {
  if (text.empty()) return;
  memory = {static_cast<double>(ParseBytes(text, flag)), Provenance::kAssumed, flag};
}

// The plan that `moesaic batch` would make, from measured module costs; nullopt when there are none
// of this model, or something else is asked.
std::optional<ExecutionPlan> PlanOfBatchEngine(const EngineOptions& given,
                                               const PlanOptions& options, const Workload& workload,
                                               const Machine& machine) {
  EngineOptions engine = OptionsOnMachine(given, machine);
  engine.max_num_seqs = options.batch_sequences;
  engine.max_num_batched_tokens = 0;
  const ModelFiles files = OpenModelFiles(engine);
  std::string why;
  const auto costs = CachedModuleCosts(engine, files, machine, &why);
  if (!costs) return std::nullopt;
  std::optional<ExecutionPlan> plan = PlanBatchJob(engine, files, workload, &*costs).execution;
  if (plan && options.what_if) {
    plan->what_if =
        AskWhatIf(engine, files, workload, *costs, plan->prediction.generated_tokens_per_s);
  }
  return plan;
}

}  // namespace

Json PlannedThroughputJson(const PlannedThroughput& planned) {
  const Workload& workload = planned.workload;
  Json root = PlanToJson(planned.plan);
  root["workload"] = {{"source", workload.source},
                      {"requests", workload.requests.size()},
                      {"prompt_tokens", workload.prompt_tokens()},
                      {"generated_tokens", workload.generated_tokens()}};
  root["model_source"] = planned.model.shape.source;
  return root;
}

void PlanJob::AddOptions(OptionTable& table) {
  table.Add({"model", &model_name_, "NAME",
             "A model directory or id, or a shape of configs/models.", "What is planned"});
  table.Add({"machine", &machine_name_, "NAME",
             "A machine of configs/machines, a file like those, a profile that `moesaic profile` "
             "wrote, or this.",
             "What is planned"});
  table.Add({"workload", &workload_text_, "LENGTHS",
             "prompt=N,gen=N,requests=N, or a file of JSON lines with prompts and max_tokens.",
             "What is planned"});
  table.Add({"default-max-tokens",
             &default_generated_,
             "N",
             "Tokens of a line of the file that sets no max_tokens.",
             "What is planned",
             0,
             {},
             1,
             1 << 24});
  table.Add({"host-memory", &host_memory_, "SIZE", "Host memory that may be used.", "Limits"});
  table.Add({"gpu-memory", &device_memory_, "SIZE", "Device memory that may be used.", "Limits"});
  table.Add({"max-sequences",
             &options_.most_sequences,
             "N",
             "Most sequences at once (0: what fits).",
             "Limits",
             0,
             {},
             0,
             1 << 30});
  table.Add({"schedule",
             &schedule_,
             "",
             "Plan only this schedule.",
             "Choices",
             0,
             {"auto", "paged-weights", "overlapped", "module-batching"}});
  table.Add({"constants",
             &constants_,
             "",
             "A preset's constants: measured where there are such, or the data sheet's.",
             "Choices",
             0,
             {"measured", "spec-sheet"}});
  table.Add({.name = "dtype",
             .target = AutoOrOneOf(&dtype_, kWeightDtypes),
             .help = "Weights of a model directory in memory.",
             .section = "Choices"});
  table.Add({"kv-block",
             &options_.kv_block_tokens,
             "N",
             "Tokens of a block of keys and values.",
             "Choices",
             0,
             {},
             1,
             4096});
  table.Add({"what-if", &options_.what_if, "",
             "Plan again with one thing a tenth better each (--no-what-if: do not).", "Choices"});
}

PlannedThroughput PlanJob::Run(const Invocation& invocation) {
  if (model_name_.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "no model given: name a directory, an id, or a shape such as mixtral-8x7b");
  }
  if (workload_text_.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "--workload is missing: prompt=98,gen=64,requests=5000, or a file of JSON lines");
  }
  if (schedule_ != "auto") options_.schedule = ParseScheduleKind(schedule_, "--schedule");

  const Machine here = ReadMachine(invocation.environment);
  const PlanModel model = FindPlanModel(model_name_, dtype_, invocation, here);
  const Workload workload = ReadPlanWorkload(workload_text_, default_generated_, model.directory);
  if (machine_name_ == "this" && !model.directory.empty() && !options_.schedule &&
      device_memory_.empty() && constants_ == "measured" && options_.most_sequences == 0 &&
      options_.kv_block_tokens == kKvBlockTokens) {
    EngineOptions given;
    given.model = model_name_;
    given.dtype = dtype_;
    if (!host_memory_.empty()) {
      given.machine.memory = MemorySize::Parse(host_memory_, "--host-memory");
    }
    if (const auto plan = PlanOfBatchEngine(given, options_, workload, here)) {
      return {*plan, model, workload, false};
    }
  }
  MachineSpec machine = FindPlanMachine(
      machine_name_,
      constants_ == "measured" ? ConstantChoice::kPreferMeasured : ConstantChoice::kSpecSheet,
      model.directory, invocation, here);
  LimitMemory(host_memory_, "--host-memory", machine.host_memory_bytes);
  if (!device_memory_.empty() && !machine.has_gpu()) {
    Fail(ErrorKind::kInvalidArgument, "--gpu-memory: {} has no GPU", machine.name);
  }
  LimitMemory(device_memory_, "--gpu-memory", machine.device_memory_bytes);
  return {PlanThroughput(model.shape, machine, workload, options_), model, workload,
          machine.has_gpu()};
}

}  // namespace moesaic
