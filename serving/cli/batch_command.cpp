#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "core/base/metrics.h"
#include "core/io/expert_store.h"
#include "core/io/expert_wire.h"
#include "serving/api/request_runner.h"
#include "serving/batch/batch_report.h"
#include "serving/cli/batch_progress.h"
#include "serving/cli/commands.h"
#include "serving/cli/interrupt.h"
#include "serving/cli/job_files.h"
#include "serving/cli/output.h"
#include "serving/cli/ray_batch.h"
#include "serving/cli/run_stats.h"
#include "serving/cli/serving_setup.h"
#include "serving/jobs/batch_job.h"
#include "serving/startup/machine_options.h"

namespace moesaic {
namespace {

struct BatchFlags {
  std::string input;
  std::string output;
  std::string errors;
  std::string form = "auto";
  bool resume = false;
  bool overwrite = false;
  bool raw = false;
  int64_t max_tokens = 256;
  double temperature = -1;
  bool json = false;
  std::string mode = "throughput";
  std::string report;
};

void AddFlags(BatchFlags& f, OptionTable& table) {
  const char* files = "Files";
  table.Add({"input", &f.input, "FILE", "Requests, one a line.", files, 'i'});
  table.Add({"output", &f.output, "FILE", "Answers, one a line, in the order in which they end.",
             files, 'o'});
  table.Add({"errors", &f.errors, "FILE",
             "Lines that could not be answered, with their number. Default: the output's name and "
             ".errors.jsonl.",
             files});
  Option form{"input-format", &f.form, "",
              "jsonl: OpenAI batch lines or {\"prompt\": ...}. text: each line is a prompt. auto "
              "takes the first lines that are JSON at their word.",
              files};
  form.choices = {"auto", "jsonl", "text"};
  table.Add(std::move(form));
  table.Add(
      {"resume", &f.resume, "",
       "Go on with the output file: what it answers is not done again. The input may have grown.",
       files});
  table.Add({"overwrite", &f.overwrite, "",
             "Throw away what is in the output file and the error file.", files});

  const char* prompts = "Lines that are only a prompt";
  table.Add({"raw", &f.raw, "",
             "Continue a prompt as it is instead of putting it through the chat template.",
             prompts});
  table.Add({"max-tokens", &f.max_tokens, "N", "Longest answer.", prompts, 'n', {}, 1, 1e9});
  Option temperature{"temperature",
                     &f.temperature,
                     "",
                     "0 takes the likeliest token every time. Default: the model's.",
                     prompts,
                     't',
                     {},
                     0,
                     100};
  temperature.quiet_default = true;
  table.Add(std::move(temperature));
  const char* report = "Report";
  table.Add({"json", &f.json, "", "Print one JSON object with the numbers at the end.", report});
  table.Add({"report", &f.report, "PATH",
             "Write where time, bytes and memory went: PATH.json and PATH.html, or report.json and "
             "report.html in a directory PATH.",
             report});
  Option mode{"mode", &f.mode, "",
              "throughput moves a large batch through the model layer by layer while experts "
              "stream past, with sizes that fit --memory. latency is the engine of `moesaic "
              "serve`. The answers are the same.",
              "Batching"};
  mode.choices = {"throughput", "latency"};
  table.Add(std::move(mode));
}

BatchJobOptions JobOptionsFrom(const BatchFlags& flags, const EngineOptions& engine) {
  BatchJobOptions job;
  job.files.input = flags.input;
  job.files.output = flags.output;
  job.files.errors = flags.errors.empty() ? flags.output + ".errors.jsonl" : flags.errors;
  job.files.resume = flags.resume;
  job.files.overwrite = flags.overwrite;
  job.form = flags.form == "jsonl"  ? BatchInputForm::kJsonl
             : flags.form == "text" ? BatchInputForm::kText
                                    : BatchInputForm::kAuto;
  job.prompts.max_tokens = flags.max_tokens;
  job.prompts.temperature = flags.temperature;
  job.max_outstanding = engine.max_num_seqs + engine.max_queue;
  job.seed = engine.seed;
  return job;
}

// PATH of PATH.json and PATH.html; the name "report" in a directory.
std::string ReportStem(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path stem = path;
  if (fs::is_directory(stem)) stem /= "report";
  if (stem.extension() == ".json" || stem.extension() == ".html") stem.replace_extension();
  return stem.string();
}

void WriteReport(const std::string& path, const BatchReport& report) {
  const std::string stem = ReportStem(path);
  const auto write = [&](const char* extension, const std::string& text) {
    WriteFileAtomically(stem + extension, std::as_bytes(std::span(text)));
  };
  write(".json", BatchReportJson(report).dump(2) + "\n");
  write(".html", BatchReportHtml(report));
}

void CheckFlags(const BatchFlags& flags) {
  if (flags.input.empty()) {
    Fail(ErrorKind::kInvalidArgument, "no requests given: -i FILE names the file");
  }
  if (flags.output.empty()) {
    Fail(ErrorKind::kInvalidArgument, "no place for the answers given: -o FILE names the file");
  }
  if (!flags.report.empty() && flags.mode == "latency") {
    Fail(ErrorKind::kInvalidArgument, "--report is of throughput mode");
  }
  if (flags.resume && flags.overwrite) {
    Fail(ErrorKind::kInvalidArgument, "--resume and --overwrite were both given");
  }
}

// Answers may lie beside a model, so not all of its directory is the model's.
bool IsModelFile(const std::string& name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  for (const char* end : {".safetensors", ".index.json", ".jinja", ".model"}) {
    if (name.ends_with(end)) return true;
  }
  return (name.ends_with(".json") || name.ends_with(".txt")) &&
         (has("config") || has("token") || has("template") || has("vocab") || has("merges"));
}

// No file of the job is another one of it, by whatever name.
void CheckFiles(const BatchFlags& flags, const EngineOptions& engine, const BatchPaths& paths) {
  JobFiles files;
  files.Reads("-i", paths.input);
  files.ReadsAllIn("the model's file", ResolveModelPath(engine.model), IsModelFile);
  if (!engine.expert_store.empty()) {
    for (const std::filesystem::path& store : ExpertStoresOf(engine.expert_store)) {
      if (IsExpertPeer(store.string())) continue;  // not of this machine
      files.ReadsAllIn("the expert store's file", store, [](const std::string&) { return true; });
    }
  }
  files.Reads("--route-from", engine.route_from);
  files.Replaces("-o", paths.output);
  files.Replaces("--errors", paths.errors);
  files.Replaces("the record of the input", paths.record());
  files.Replaces("--state-file", engine.state_file);
  files.Writes("--record-trace", engine.record_trace);
  if (!flags.report.empty()) {
    const std::string stem = ReportStem(flags.report);
    files.Replaces("--report", stem + ".json");
    files.Replaces("--report", stem + ".html");
  }
  files.Check();
}

// What runs and, where it was planned, what is expected of it.
std::string PlanText(const BatchPlan& plan, const ModelConfig& config) {
  const BatchSizes& sizes = plan.sizes;
  const int64_t all = config.num_sparse_layers() * config.num_experts();
  std::string text =
      fmt::format("{} sequences, {} tokens a pass, {} of {} experts in memory", sizes.max_num_seqs,
                  sizes.max_batch_tokens, sizes.expert_slots - sizes.buffers, all);
  if (sizes.buffers > 0) text += fmt::format(", {} buffers", sizes.buffers);
  if (!plan.execution) return text + " (by rule, nothing was measured)\n";
  const PlanPrediction& prediction = plan.execution->prediction;
  const PhasePrediction& decode = prediction.decode;
  const bool link = decode.bottleneck == Resource::kLinkIn;
  text +=
      fmt::format("; expected: {:.1f} tokens/s, {}, bound by {}", prediction.generated_tokens_per_s,
                  FormatDuration(prediction.wall_s), link ? "reading experts" : "computing");
  if (sizes.buffers > 0) {
    text += fmt::format(" ({} takes {:.0f}% of that)", link ? "computing" : "reading",
                        100 * (1 - decode.slack));
  }
  return text + "\n";
}

std::string SummaryText(const BatchProgress& progress, const BatchJobOptions& job) {
  std::string text =
      fmt::format("{} of {} lines answered", progress.done + progress.resumed, progress.lines);
  if (progress.resumed > 0) text += fmt::format(" ({} before)", progress.resumed);
  text += fmt::format("; {} prompt and {} output tokens in {}: {:.1f} output tokens/s",
                      progress.prompt_tokens, progress.output_tokens,
                      FormatDuration(progress.seconds), TokensPerSecond(progress));
  if (progress.refused + progress.failed > 0) {
    text += fmt::format("\n{} bad and {} failed lines are in {}", progress.refused, progress.failed,
                        job.files.errors.string());
  }
  if (progress.left() > 0) {
    text +=
        fmt::format("\n{} lines are left; the same command with --resume goes on", progress.left());
  }
  return text + "\n";
}

Json SummaryJson(const BatchProgress& progress, const StepStats& stats) {
  Json json;
  json["lines"] = progress.lines;
  json["answered"] = progress.done;
  json["answered_before"] = progress.resumed;
  json["bad"] = progress.refused;
  json["failed"] = progress.failed;
  json["left"] = progress.left();
  json["seconds"] = progress.seconds;
  json["prompt_tokens"] = progress.prompt_tokens;
  json["output_tokens"] = progress.output_tokens;
  json["output_tokens_per_s"] = TokensPerSecond(progress);
  json["steps"] = stats.steps;
  json["expert_bytes_read"] = stats.experts.bytes_read;
  return json;
}

BatchProgress Run(const ServedModel& model, const BatchJobOptions& job,
                  const BatchCallbacks& callbacks) {
  try {
    return RunBatchJob(model, job, callbacks);
  } catch (const Error& error) {
    StatusLine("");
    if (error.kind() != ErrorKind::kIo) throw;
    Fail(ErrorKind::kIo,
         "{}; the answers up to there are whole: make room, and the same command with --resume "
         "goes on",
         error.what());
  }
}

}  // namespace

int BatchCommand(const Invocation& invocation) {
  CommandLine line(
      {"batch",
       "MODEL -i FILE -o FILE",
       "Answer a file of requests: OpenAI batch lines, objects with a prompt, or a prompt a line. "
       "Answers are appended as they end; a line that is bad goes to the error file and stops "
       "nothing. Ctrl-C and SIGTERM finish what is being answered; a second one stops at once. "
       "After that, "
       "or after a crash, --resume goes on and neither loses nor repeats a line.",
       {"moesaic batch models/sample -i requests.jsonl -o answers.jsonl",
        "moesaic batch models/sample -i prompts.txt -o answers.jsonl --max-tokens 64 -t 0",
        "moesaic batch models/sample -i requests.jsonl -o answers.jsonl --resume",
        "moesaic batch models/sample -i requests.jsonl -o answers.jsonl --ray auto"}});
  BatchFlags flags;
  RayFlags ray;
  Settings settings;
  AddFlags(flags, line.table());
  AddRayFlags(ray, line.table());
  line.UseSettings(settings, {true, false});
  if (!line.Parse(invocation)) return 0;
  SetUpLogging(line, settings.log, LogLevel::kWarning);
  std::vector<std::string> words = line.positionals();
  const std::string model_name = TakeModel(line, settings.engine, words);
  line.RequireAtMost(line.GivenAsFlag("model") ? 0 : 1);
  CheckFlags(flags);
  if (!ray.address.empty()) ExecRayBatch(invocation, line);

  BatchJobOptions job = JobOptionsFrom(flags, settings.engine);
  CheckFiles(flags, settings.engine, job.files);
  MetricsRegistry metrics;
  StatusLine(fmt::format("loading {} ...", model_name));
  const Machine machine = ReadMachine(invocation.environment);
  settings.engine.grammar_bytes = GrammarBytes({}, settings.engine.machine, machine);
  ServedModel model;
  std::shared_ptr<BatchEngine> batch_engine;  // null in latency mode
  if (flags.mode == "latency") {
    model = LoadModel(settings.engine, settings.chat, machine, metrics).model;
    job.prompts.chat = !flags.raw && model.chat_template != nullptr;
  } else {
    // What was not given is planned for the job.
    EngineOptions asked = settings.engine;
    if (line.table().origin("max-num-seqs") == "default") asked.max_num_seqs = 0;
    if (line.table().origin("max-num-batched-tokens") == "default") {
      asked.max_num_batched_tokens = 0;
    }
    LoadedBatchModel loaded = LoadBatchModel(asked, settings.chat, machine, flags.raw, job);
    model = std::move(loaded.model);
    batch_engine = std::move(loaded.engine);
    // Enough that those who join always find prompts waiting.
    job.max_outstanding = 2 * batch_engine->plan().sizes.max_num_seqs;
  }
  StatusLine("");
  const std::vector<std::string>& names = settings.server.served_model_names;
  if (!names.empty()) model.names = names;
  if (batch_engine != nullptr && !flags.json) {
    fmt::print(stderr, "{}", PlanText(batch_engine->plan(), batch_engine->config()));
  }

  const Engine& engine = *model.engine;
  int64_t planned_passes = 0;
  if (batch_engine != nullptr && batch_engine->plan().execution) {
    planned_passes = batch_engine->plan().execution->prediction.iterations;
  }
  InterruptFlag interrupt(InterruptFlag::Takes::kInterruptAndTerminate);
  const BatchCallbacks callbacks = {
      [&] {
        // Every answer that has ended is in the file, whole: nothing is left to do.
        if (interrupt.presses() >= 2) std::_Exit(interrupt.exit_code());
        return interrupt.presses();
      },
      [&](const BatchProgress& progress) {
        StatusLine(ProgressText(progress, engine.Stats(), planned_passes));
      }};
  const BatchProgress progress = Run(model, job, callbacks);
  StatusLine("");
  if (!flags.report.empty()) {
    WriteReport(flags.report,
                {model_name, batch_engine->plan(), engine.Stats(), batch_engine->TakeTimeline(),
                 progress.seconds, progress.prompt_tokens, progress.output_tokens,
                 batch_engine->preemptions(), PeakRssBytes()});
  }
  if (flags.json) {
    WriteOut(SummaryJson(progress, engine.Stats()).dump(2) + "\n");
  } else {
    fmt::print(stderr, "{}", SummaryText(progress, job));
  }
  if (interrupt.raised()) return interrupt.exit_code();
  if (progress.failed > 0) return ExitCode(ErrorKind::kIo);
  return progress.refused > 0 ? ExitCode(ErrorKind::kInvalidArgument) : 0;
}

}  // namespace moesaic
