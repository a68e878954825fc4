#include "serving/cli/serving_setup.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/logging.h"
#include "core/perf/workload.h"
#include "serving/cli/machine.h"
#include "serving/cli/measured_costs.h"
#include "serving/cli/output.h"
#include "serving/online/step_sampler.h"
#include "serving/plan/batch_planner.h"
#include "serving/text/chat_template.h"

namespace moesaic {

void SetUpLogging(const CommandLine& line, LogOptions options, LogLevel default_level) {
  if (line.table().origin("log-level") == "default") options.level = default_level;
  InitLogging(options);
  for (const std::string& warning : line.warnings()) LogWarn("{}", warning);
}

LoadedModel LoadModel(const EngineOptions& given, const Invocation& invocation,
                      MetricsRegistry& metrics) {
  const Topology topology = ReadTopology();
  ApplyNumaPolicy(ChooseNumaPolicy(given.machine.numa, topology));
  EngineOptions options = OptionsOnMachine(given, topology);
  ChooseKernels(invocation, topology, options);
  ChooseDeviceRates(invocation, topology, options);
  LoadedModel loaded;
  loaded.plan = PlanEngine(options);
  ChooseReading(loaded.plan, invocation, topology, ReadUse::kUrgent, options);
  loaded.plan = PlanEngine(options);  // what is read at a time takes memory, too
  loaded.model.names = {options.model};
  loaded.model.created_unix_s = std::time(nullptr);
  loaded.model.chat_template = LoadChatTemplate(options.model_dir);
  loaded.model.engine = CreateEngine(options, metrics);
  return loaded;
}

namespace {

// A shorter job ends sooner than its modules are measured.
constexpr int64_t kLeastPlannedTokens = 4096;
constexpr size_t kSamplePrompts = 128;
constexpr size_t kSampleTokens = 4096;

// A user's message as the chat template has it; `text` itself where the template wants something
// else (the requests will say).
std::vector<int32_t> EncodeMessage(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                   std::string_view text) {
  const Json message = {{"role", "user"}, {"content", text}};
  try {
    const auto marked = chat_template.Render(Json::array({message}), nullptr, true, nullptr);
    return tokenizer.Encode(marked.bytes(), {false, true});
  } catch (const Error&) {
    return tokenizer.Encode(text, {false, true});
  }
}

// What the chat template adds to a message.
int64_t TemplateTokens(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  return std::ssize(EncodeMessage(chat_template, tokenizer, "x")) -
         std::ssize(tokenizer.Encode("x", {false, true}));
}

std::optional<ModuleCosts> CostsFor(const EngineOptions& given, const EngineOptions& options,
                                    const ModelFiles& files, const Workload& workload,
                                    std::vector<std::vector<int32_t>> sample_prompts,
                                    const Invocation& invocation, const Topology& topology) {
  if (!IsPredicted(options)) return std::nullopt;
  std::string why;
  auto costs = CachedModuleCosts(given, files, invocation, topology, &why);
  if (costs || workload.prompt_tokens() + workload.generated_tokens() < kLeastPlannedTokens) {
    return costs;
  }
  LogInfo("measuring the model's modules ({})", why);
  try {
    return MeasureModuleCosts(given, options, files, std::move(sample_prompts), true, invocation,
                              topology);
  } catch (const Error& error) {
    LogWarn("the batch is sized by rule: {}", error.what());
    return std::nullopt;
  }
}

}  // namespace

LoadedBatchModel LoadBatchModel(const EngineOptions& asked, const CommandLine& line,
                                const Invocation& invocation, bool raw, BatchJobOptions& job) {
  const Topology topology = ReadTopology();
  ApplyNumaPolicy(ChooseNumaPolicy(asked.machine.numa, topology));
  EngineOptions options = OptionsOnMachine(asked, topology);
  ChooseKernels(invocation, topology, options);
  const auto chosen_here = [&](const char* name) { return line.table().origin(name) == "default"; };
  if (chosen_here("max-num-seqs")) options.max_num_seqs = 0;
  if (chosen_here("max-num-batched-tokens")) options.max_num_batched_tokens = 0;
  const ModelFiles files = OpenModelFiles(options);
  LoadedBatchModel loaded;
  loaded.model.names = {options.model};
  loaded.model.created_unix_s = std::time(nullptr);
  loaded.model.chat_template = LoadChatTemplate(options.model_dir);
  job.prompts.chat = !raw && loaded.model.chat_template != nullptr;
  const auto tokenizer = LoadTokenizerOf(options, files.config);
  std::vector<std::vector<int32_t>> sample_prompts;
  const Workload workload = ReadBatchWorkload(
      job,
      [&](std::string_view text, bool chat) {
        const std::vector<int32_t> tokens = tokenizer->Encode(text);
        if (sample_prompts.size() < kSamplePrompts) {
          std::vector<int32_t>& sample = sample_prompts.emplace_back(tokens);
          if (chat && loaded.model.chat_template != nullptr) {
            sample = EncodeMessage(*loaded.model.chat_template, *tokenizer, text);
          }
          sample.resize(std::min(sample.size(), kSampleTokens));
        }
        return std::ssize(tokens);
      },
      job.prompts.chat ? TemplateTokens(*loaded.model.chat_template, *tokenizer) : 0);
  const BatchPlan by_rule = PlanBatch(options, files, MeansOf(workload));
  EnginePlan reading;
  reading.slot_bytes = by_rule.slot_bytes;
  reading.all_experts_bytes = by_rule.all_experts_bytes;
  reading.expert_budget_bytes =
      static_cast<uint64_t>(by_rule.sizes.expert_slots) * by_rule.slot_bytes;
  const EngineOptions given = options;
  ChooseReading(reading, invocation, topology, ReadUse::kStream, options);
  const auto costs =
      CostsFor(given, options, files, workload, std::move(sample_prompts), invocation, topology);
  // What is read at a time takes memory, too.
  loaded.engine = std::make_shared<BatchEngine>(
      options, PlanBatchJob(options, files, workload, costs ? &*costs : nullptr));
  loaded.model.engine = loaded.engine;
  return loaded;
}

}  // namespace moesaic
