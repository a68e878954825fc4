#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/metrics.h"
#include "serving/api/request_runner.h"
#include "serving/cli/answer_printer.h"
#include "serving/cli/chat_repl.h"
#include "serving/cli/commands.h"
#include "serving/cli/interrupt.h"
#include "serving/cli/output.h"
#include "serving/cli/run_stats.h"
#include "serving/cli/serving_setup.h"
#include "serving/startup/machine_options.h"
#include "tracer/heat_map.h"
#include "tracer/request_tracer.h"

namespace moesaic {
namespace {

constexpr uint64_t kMaxPromptBytes = uint64_t{64} << 20;
constexpr double kUnset = std::numeric_limits<double>::quiet_NaN();

struct RunFlags {
  std::string prompt_file;
  bool chat = false;
  bool raw = false;
  std::string system;
  int64_t max_tokens = 256;
  double temperature = kUnset;
  double top_p = kUnset;
  double min_p = kUnset;
  int64_t top_k = -1;
  double repetition_penalty = kUnset;
  double presence_penalty = kUnset;
  double frequency_penalty = kUnset;
  std::string stop;
  bool ignore_eos = false;
  bool stats = false;
  bool json = false;
};

void AddFlags(RunFlags& f, OptionTable& table) {
  const char* prompt = "Prompt";
  table.Add({"prompt-file", &f.prompt_file, "FILE",
             "Read the prompt from a file; - is standard input.", prompt, 'f'});
  table.Add({"chat", &f.chat, "", "Hold a conversation, beginning with the prompt if there is one.",
             prompt});
  table.Add({"raw", &f.raw, "",
             "Continue the prompt as it is instead of putting it through the chat template.",
             prompt});
  table.Add({"system", &f.system, "TEXT", "System message of the conversation.", prompt});

  const char* sampling = "Output";
  table.Add({"max-tokens",
             &f.max_tokens,
             "N",
             "Longest answer. 0: as much as the context holds.",
             sampling,
             'n',
             {},
             0,
             1e9});
  // What is not given comes from the model's generation_config.json.
  const auto add_sampling = [&](Option option) {
    option.quiet_default = true;
    option.section = "Sampling (defaults from the model's generation_config.json)";
    table.Add(std::move(option));
  };
  table.Add({"stop", &f.stop, "TEXT", "End before this text.", sampling});
  table.Add(
      {"ignore-eos", &f.ignore_eos, "", "Go on after the model has ended its answer.", sampling});
  add_sampling({"temperature",
                &f.temperature,
                "",
                "0 takes the likeliest token every time.",
                "",
                't',
                {},
                0,
                100});
  add_sampling({"top-p",
                &f.top_p,
                "",
                "Only the likeliest tokens of this total probability.",
                "",
                0,
                {},
                0,
                1});
  add_sampling({"top-k",
                &f.top_k,
                "",
                "Only this many of the likeliest tokens. 0: off.",
                "",
                0,
                {},
                0,
                1e9});
  add_sampling({"min-p",
                &f.min_p,
                "",
                "Only tokens above this part of the likeliest one's "
                "probability.",
                "",
                0,
                {},
                0,
                1});
  add_sampling({"repetition-penalty",
                &f.repetition_penalty,
                "",
                "Above 1: tokens of prompt and answer become less likely.",
                "",
                0,
                {},
                0.01,
                100});
  add_sampling({"presence-penalty",
                &f.presence_penalty,
                "",
                "Above 0: tokens of the answer become less likely.",
                "",
                0,
                {},
                -2,
                2});
  add_sampling({"frequency-penalty",
                &f.frequency_penalty,
                "",
                "The same for each time that they were used.",
                "",
                0,
                {},
                -2,
                2});

  const char* report = "Report";
  table.Add({"stats", &f.stats, "",
             "Show on standard error what the answer took: times, hit rate, bytes read, and which "
             "experts it used.",
             report});
  table.Add({"json", &f.json, "", "Print one JSON object with the text and the numbers.", report});
}

ApiRequest FieldsFrom(const RunFlags& flags, uint64_t seed, const CommandLine& line) {
  const auto set = [](double value) {
    return std::isnan(value) ? std::nullopt : std::optional<double>(value);
  };
  if (flags.top_p == 0) {
    Fail(ErrorKind::kInvalidArgument,
         "--top-p 0 would leave no token to choose; --temperature 0 takes the likeliest one");
  }
  ApiRequest fields;
  fields.sampling.temperature = set(flags.temperature);
  fields.sampling.top_p = set(flags.top_p);
  fields.sampling.min_p = set(flags.min_p);
  fields.sampling.repetition_penalty = set(flags.repetition_penalty);
  fields.sampling.presence_penalty = set(flags.presence_penalty);
  fields.sampling.frequency_penalty = set(flags.frequency_penalty);
  if (flags.top_k >= 0) fields.sampling.top_k = static_cast<int32_t>(flags.top_k);
  if (line.table().origin("seed") != "default") {
    fields.sampling.seed = seed;
  }
  if (flags.max_tokens > 0) fields.max_tokens = static_cast<int32_t>(flags.max_tokens);
  fields.max_tokens_name = "--max-tokens";
  if (!flags.stop.empty()) fields.stop.push_back(flags.stop);
  fields.ignore_eos = flags.ignore_eos;
  return fields;
}

std::string ReadStandardInput() {
  std::string text;
  char chunk[1 << 16];
  for (;;) {
    const ssize_t got = read(STDIN_FILENO, chunk, sizeof(chunk));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Fail(ErrorKind::kIo, "cannot read standard input: {}", ErrnoMessage(errno));
    if (got == 0) return text;
    text.append(chunk, static_cast<size_t>(got));
    if (text.size() > kMaxPromptBytes) {
      Fail(ErrorKind::kInvalidArgument, "the prompt on standard input is larger than 64 MiB");
    }
  }
}

// The prompt of the arguments, the file or a pipe; "" when there is none.
std::string FindPrompt(const RunFlags& flags, const std::vector<std::string>& words) {
  std::string prompt;
  for (const std::string& word : words) prompt += (prompt.empty() ? "" : " ") + word;
  if (!flags.prompt_file.empty()) {
    if (!prompt.empty()) {
      Fail(ErrorKind::kInvalidArgument, "a prompt and --prompt-file were both given");
    }
    return flags.prompt_file == "-" ? ReadStandardInput()
                                    : ReadTextFile(flags.prompt_file, kMaxPromptBytes);
  }
  if (prompt.empty() && !flags.chat && !IsTerminal(STDIN_FILENO)) return ReadStandardInput();
  return prompt;
}

// The experts that a request used, prompt and output together.
std::string HeatMapOf(const RequestTrace& trace) {
  ExpertActivationMatrix matrix = trace.prefill;
  matrix += trace.decode;
  HeatMapOptions options;
  options.width = std::min(TerminalWidth(), 120);
  options.color = UseColor(STDERR_FILENO);
  // The last token is never run, so that there is one less than the answer has.
  const std::string title =
      fmt::format("experts used by {} tokens, {} of them the prompt's",
                  trace.prefill_tokens + trace.decode_tokens, trace.prefill_tokens);
  options.title = title;
  return FormatHeatMap(matrix, options);
}

}  // namespace

int RunCommand(const Invocation& invocation) {
  CommandLine line(
      {"run",
       "MODEL [PROMPT]",
       "Answer a prompt in the terminal: of the arguments, of a file, or of a pipe; without "
       "one, hold a conversation. A prompt goes through the model's chat template, when it "
       "has one, unless --raw is given. The answer streams to standard output.",
       {"moesaic run models/sample \"How many legs do three cats have?\"",
        "moesaic run models/sample --raw \"The old man\" --expert-memory 25% --stats",
        "git diff | moesaic run MODEL --system \"Review this change.\"",
        "moesaic run models/sample"}});
  RunFlags flags;
  Settings settings;
  AddFlags(flags, line.table());
  line.UseSettings(settings, {true, false});
  if (!line.Parse(invocation)) return 0;
  SetUpLogging(line, settings.log, LogLevel::kWarning);
  std::vector<std::string> words = line.positionals();
  const std::string model_name = TakeModel(line, settings.engine, words);
  const std::string prompt = FindPrompt(flags, words);
  const bool chat = flags.chat || (prompt.empty() && IsTerminal(STDIN_FILENO));
  if (prompt.empty() && !chat) {
    Fail(ErrorKind::kInvalidArgument, "the prompt is empty");
  }
  if (chat && flags.json) {
    Fail(ErrorKind::kInvalidArgument, "--json is for a single prompt, not for a conversation");
  }

  const Stopwatch load_watch;
  MetricsRegistry metrics;
  StatusLine(fmt::format("loading {} ...", model_name));
  const LoadedModel loaded =
      LoadModel(settings.engine, settings.chat, ReadMachine(invocation.environment), metrics);
  StatusLine("");
  const double load_s = load_watch.seconds();
  const ServedModel& model = loaded.model;
  const bool raw = flags.raw || model.chat_template == nullptr;
  if (raw && !flags.system.empty()) {
    Fail(ErrorKind::kInvalidArgument, "--system needs a chat template: {}",
         flags.raw ? "leave --raw out" : "this model has none, so put the text into the prompt");
  }

  const RequestRunner runner(model, FieldsFrom(flags, settings.engine.seed, line));
  InterruptFlag interrupt;
  const auto summary = [&](const RunResult& result) {
    return RunSummary{result, loaded.plan, model.engine->Status(), load_s, PeakRssBytes()};
  };
  const auto show_stats = [&](const RunResult& result) {
    const Style style = StyleFor(STDERR_FILENO);
    fmt::print(stderr, "\n{}{}{}", style.dim, RunStatsText(summary(result)), style.reset);
    if (result.trace) fmt::print(stderr, "\n{}", HeatMapOf(*result.trace));
  };
  if (chat) {
    RunChat(runner, {flags.system, prompt, raw, flags.stats}, interrupt, show_stats);
    return 0;
  }

  RunPrompt tokens;
  if (raw) {
    tokens = runner.EncodeRaw(prompt);
  } else {
    Json messages = Json::array();
    if (!flags.system.empty()) {
      messages.push_back({{"role", "system"}, {"content", flags.system}});
    }
    messages.push_back({{"role", "user"}, {"content", prompt}});
    tokens = runner.EncodeMessages(messages);
  }
  AnswerPrinter shown;
  const RunResult result = runner.Run(
      tokens,
      [&](std::string_view text, bool reasoning) {
        if (!flags.json) shown.Write(text, reasoning);
      },
      [&] { return interrupt.raised(); });
  if (flags.json) {
    Json json;
    json["model"] = model_name;
    json["text"] = result.text;
    if (!result.reasoning.empty()) json["reasoning"] = result.reasoning;
    json["finish_reason"] = FinishReasonName(result.finish);
    json["usage"] = {{"prompt_tokens", result.usage.prompt_tokens},
                     {"completion_tokens", result.usage.completion_tokens},
                     {"cached_tokens", result.usage.cached_tokens}};
    json["stats"] = RunStatsJson(summary(result));
    WriteOut(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    shown.End();
  }
  if (flags.stats) show_stats(result);
  // What a shell expects of a command that Ctrl-C has ended.
  return interrupt.raised() ? 130 : 0;
}

}  // namespace moesaic
