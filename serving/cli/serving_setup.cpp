#include "serving/cli/serving_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/api/chat_format.h"
#include "serving/api/replay_section.h"
#include "serving/api/replay_store.h"
#include "serving/cli/output.h"
#include "serving/grammar/grammar_backend.h"
#include "serving/grammar/grammar_compiler.h"
#include "serving/online/create_engine.h"
#include "serving/online/engine_parts.h"
#include "serving/startup/machine_options.h"
#include "serving/startup/resolve_batch.h"
#include "serving/startup/resolve_engine.h"
#include "serving/text/chat_template.h"

namespace moesaic {

void SetUpLogging(const CommandLine& line, LogOptions options, LogLevel default_level) {
  if (line.table().origin("log-level") == "default") options.level = default_level;
  InitLogging(options);
  for (const std::string& warning : line.warnings()) LogWarn("{}", warning);
}

namespace {

constexpr uint64_t kGrammarPart = 64;  // of the memory, at most
constexpr size_t kSamplePrompts = 128;
constexpr size_t kSampleTokens = 4096;

// Without its engine yet.
ServedModel ModelOf(const EngineOptions& options, const ChatFormatOptions& chat) {
  // A wrong name is told now.
  FindChatSyntax({}, chat.tool_call_parser, chat.reasoning_parser);
  ServedModel model;
  model.names = {options.model};
  model.created_unix_s = std::time(nullptr);
  model.chat_template = LoadChatTemplate(options.text_files(), chat.chat_template);
  return model;
}

void SetEngine(std::shared_ptr<Engine> engine, const ChatFormatOptions& chat,
               uint64_t grammar_bytes, ServedModel& model) {
  model.engine = std::move(engine);
  model.chat_format = MakeChatFormat(model.chat_template.get(), model.engine->tokenizer(),
                                     chat.tool_call_parser, chat.reasoning_parser);
  model.grammars =
      MakeGrammars(model.engine, grammar_bytes > 0 ? grammar_bytes : kGrammarMemoryBytes);
}

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

// `chat_template` may be null.
PlannedJob ReadJob(const BatchJobOptions& job, const Tokenizer& tokenizer,
                   const ChatTemplate* chat_template) {
  PlannedJob planned;
  const auto count = [&](std::string_view text, bool chat) {
    const std::vector<int32_t> tokens = tokenizer.Encode(text);
    if (planned.sample_prompts.size() < kSamplePrompts) {
      std::vector<int32_t>& sample = planned.sample_prompts.emplace_back(tokens);
      if (chat && chat_template != nullptr) {
        sample = EncodeMessage(*chat_template, tokenizer, text);
      }
      sample.resize(std::min(sample.size(), kSampleTokens));
    }
    return std::ssize(tokens);
  };
  planned.workload = ReadBatchWorkload(
      job, count, job.prompts.chat ? TemplateTokens(*chat_template, tokenizer) : 0);
  return planned;
}

}  // namespace

uint64_t GrammarBytes(const MemorySize& asked, const MachineShare& share, const Machine& machine) {
  if (std::string_view(GrammarBackendName()).empty()) return 0;
  const uint64_t limit_bytes = MemoryLimitBytes(share, machine.topology);
  return asked.is_auto() ? std::min(kGrammarMemoryBytes, limit_bytes / kGrammarPart)
                         : asked.BytesOf(limit_bytes);
}

LoadedModel LoadModel(const EngineOptions& asked, const ChatFormatOptions& chat,
                      const Machine& machine, MetricsRegistry& metrics, const AmongOthers& others) {
  EngineSetup setup = ResolveEngine(asked, machine);
  LoadedModel loaded = {ModelOf(setup.options, chat), setup.plan};
  std::vector<std::shared_ptr<StateSection>> kept;
  std::shared_ptr<ReplayStore>& replay = loaded.model.replay;
  if (asked.replay_bytes > 0) {
    replay = std::make_shared<ReplayStore>(asked.replay_bytes);
    kept.push_back(std::make_shared<ReplaySection>(replay));
  }
  std::unique_ptr<Engine> engine =
      CreateEngine(std::move(setup), metrics, std::move(kept), others.turn, others.on_progress);
  SetEngine(others.hold ? others.hold(std::move(engine)) : std::move(engine), chat,
            asked.grammar_bytes, loaded.model);
  if (replay != nullptr) replay->UseVocabulary(loaded.model.engine->tokenizer());
  return loaded;
}

LoadedBatchModel LoadBatchModel(const EngineOptions& asked, const ChatFormatOptions& chat,
                                const Machine& machine, bool raw, BatchJobOptions& job) {
  OpenedModel opened = OpenForBatch(asked, machine);
  LoadedBatchModel loaded;
  loaded.model = ModelOf(opened.options, chat);
  const ChatTemplate* const chat_template = loaded.model.chat_template.get();
  job.prompts.chat = !raw && chat_template != nullptr;
  const auto tokenizer = LoadTokenizerOf(opened.options, opened.files.config);
  PlannedJob planned = ReadJob(job, *tokenizer, chat_template);
  loaded.engine = std::make_shared<BatchEngine>(
      ResolveBatch(std::move(opened), std::move(planned), machine, ShowMeasuring));
  SetEngine(loaded.engine, chat, asked.grammar_bytes, loaded.model);
  return loaded;
}

LoadedBatchModel LoadBatchModel(const EngineOptions& asked, const ChatFormatOptions& chat,
                                const Machine& machine, PlannedJob job) {
  OpenedModel opened = OpenForBatch(asked, machine);
  LoadedBatchModel loaded;
  loaded.model = ModelOf(opened.options, chat);
  loaded.engine = std::make_shared<BatchEngine>(
      ResolveBatch(std::move(opened), std::move(job), machine, [](std::string_view) {}));
  SetEngine(loaded.engine, chat, asked.grammar_bytes, loaded.model);
  return loaded;
}

}  // namespace moesaic
