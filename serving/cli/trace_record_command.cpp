#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/metrics.h"
#include "core/base/units.h"
#include "serving/api/request_runner.h"
#include "serving/cli/interrupt.h"
#include "serving/cli/output.h"
#include "serving/cli/serving_setup.h"
#include "serving/cli/trace_command.h"
#include "serving/cli/trace_prompts.h"
#include "tracer/binary_trace.h"

namespace moesaic {
namespace {

struct RecordFlags {
  std::string prompts;
  std::string output;
  std::string domain;
  int64_t limit = 0;
  int64_t max_tokens = 128;
  double temperature = 0;
  bool raw = false;
};

void AddFlags(RecordFlags& f, OptionTable& table) {
  const char* input = "Input";
  table.Add(
      {"prompts", &f.prompts, "FILE", "The prompts: JSON lines, or a prompt per line.", input});
  table.Add(
      {"limit", &f.limit, "N", "Run the first N prompts only. 0: all.", input, 0, {}, 0, 1e9});
  table.Add({"domain", &f.domain, "TEXT",
             "Domain of prompts that have none of their own. Empty: the file's name.", input});
  table.Add({"raw", &f.raw, "",
             "Continue the prompts as they are instead of putting them through the chat template.",
             input});
  const char* output = "Output";
  table.Add({"output", &f.output, "FILE", "The trace; goes on behind what it has.", output, 'o'});
  table.Add({"max-tokens", &f.max_tokens, "N", "Longest answer.", output, 'n', {}, 1, 1e9});
  table.Add({"temperature",
             &f.temperature,
             "",
             "0 takes the likeliest token every time.",
             output,
             't',
             {},
             0,
             100});
}

// Runs the prompts one after another; returns how many were run.
size_t RunPrompts(const std::vector<TracePrompt>& prompts, const RecordFlags& flags,
                  const ServedModel& model) {
  ApiRequest fields;
  fields.sampling.temperature = flags.temperature;
  fields.max_tokens = static_cast<int32_t>(flags.max_tokens);
  fields.max_tokens_name = "--max-tokens";
  const RequestRunner runner(model, fields);
  const bool raw = flags.raw || model.chat_template == nullptr;
  InterruptFlag interrupt;
  size_t done = 0;
  for (const TracePrompt& prompt : prompts) {
    if (interrupt.raised()) break;
    StatusLine(fmt::format("prompt {} of {}", done + 1, prompts.size()));
    const RunPrompt tokens =
        raw ? runner.EncodeRaw(prompt.text)
            : runner.EncodeMessages({{{"role", "user"}, {"content", prompt.text}}});
    runner.Run(
        tokens, [](std::string_view, bool) {}, [&] { return interrupt.raised(); },
        {prompt.id, prompt.domain});
    ++done;
  }
  StatusLine("");
  return done;
}

}  // namespace

int TraceRecordCommand(const Invocation& invocation) {
  CommandLine line(
      {"trace record",
       "MODEL",
       "Run prompts through a model, one after another, and record which experts every "
       "token of prompt and answer uses, with the router's weights. A server records "
       "with --record-trace.",
       {"moesaic trace record models/sample --prompts prompts.jsonl -o sample.trace",
        "moesaic trace record MODEL --prompts mt_bench.jsonl -n 64 -o mt.trace"}});
  RecordFlags flags;
  Settings settings;
  AddFlags(flags, line.table());
  line.UseSettings(settings, {true, false});
  if (!line.Parse(invocation)) return 0;
  SetUpLogging(line, settings.log, LogLevel::kWarning);
  std::vector<std::string> words = line.positionals();
  line.RequireAtMost(line.GivenAsFlag("model") ? 0 : 1);
  const std::string model_name = TakeModel(line, settings.engine, words);
  if (flags.output.empty()) flags.output = settings.engine.record_trace.string();
  if (flags.prompts.empty() || flags.output.empty()) {
    Fail(ErrorKind::kInvalidArgument, "{} is missing",
         flags.prompts.empty() ? "--prompts FILE" : "-o FILE, the trace,");
  }
  const std::string domain =
      flags.domain.empty() ? std::filesystem::path(flags.prompts).stem().string() : flags.domain;
  std::vector<TracePrompt> prompts = ReadTracePrompts(flags.prompts, domain);
  if (flags.limit > 0 && prompts.size() > static_cast<size_t>(flags.limit)) {
    prompts.resize(static_cast<size_t>(flags.limit));
  }
  if (prompts.empty()) Fail(ErrorKind::kInvalidArgument, "{}: has no prompts", flags.prompts);

  std::error_code error;
  const size_t before = std::filesystem::exists(flags.output, error)
                            ? ReadBinaryTrace(flags.output).sequences.size()
                            : 0;
  settings.engine.record_trace = flags.output;
  settings.engine.prefix_cache =
      false;  // what is found in it is not computed, and so has no routing
  const Stopwatch watch;
  size_t done = 0;
  {
    MetricsRegistry metrics;
    StatusLine(fmt::format("loading {} ...", model_name));
    const LoadedModel loaded =
        LoadModel(settings.engine, settings.chat, ReadMachine(invocation.environment), metrics);
    done = RunPrompts(prompts, flags, loaded.model);
  }
  const RoutingTrace trace = ReadBinaryTrace(flags.output);
  if (trace.sequences.size() < before + done) {
    Fail(ErrorKind::kIo, "{}: holds {} of {} requests; the log says why", flags.output,
         trace.sequences.size() - before, done);
  }
  int64_t tokens = 0;
  for (size_t i = before; i < trace.sequences.size(); ++i)
    tokens += trace.tokens(trace.sequences[i]);
  Print("{}: {} request{}, {} tokens, {} in {}\n", flags.output, done, done == 1 ? "" : "s", tokens,
        FormatBytes(std::filesystem::file_size(flags.output)), FormatDuration(watch.seconds()));
  return done < prompts.size() ? 130 : 0;
}

}  // namespace moesaic
