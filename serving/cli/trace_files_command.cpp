// import, export, merge and compact: files in, a file out.
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "kernels/cpu/kernels.h"
#include "serving/cli/output.h"
#include "serving/cli/trace_command.h"
#include "tracer/binary_trace.h"
#include "tracer/compact_traces.h"
#include "tracer/eam_collection_section.h"
#include "tracer/routing_trace_json.h"
#include "tracer/state_checkpoint.h"

namespace moesaic {
namespace {

void AddOutputOption(std::string& output, const char* help, OptionTable& table) {
  table.Add({"output", &output, "FILE", help, "Output", 'o'});
}

void RequireFiles(const CommandLine& line, const std::string& output, size_t most) {
  if (line.positionals().empty()) {
    Fail(ErrorKind::kInvalidArgument, "no trace given; `--help` shows how");
  }
  line.RequireAtMost(most);
  if (output.empty()) Fail(ErrorKind::kInvalidArgument, "-o FILE is missing");
}

bool IsJsonName(const std::string& file) {
  return file.ends_with(".jsonl") || file.ends_with(".jsonl.gz");
}

RoutingTrace ReadAll(const std::vector<std::string>& files, TracePhase phase) {
  RoutingTrace all;
  for (size_t i = 0; i < files.size(); ++i) {
    RoutingTrace trace = ReadRoutingTrace(files[i]);
    WarnOfLostBytes(trace, files[i]);
    trace = SelectPhase(std::move(trace), phase);
    if (i == 0) {
      all = std::move(trace);
    } else {
      AppendTrace(std::move(trace), files[i], all);
    }
  }
  all.lost_bytes = 0;
  return all;
}

void Write(const RoutingTrace& trace, const std::string& output) {
  if (IsJsonName(output)) {
    WriteJsonTrace(output, trace);
  } else {
    WriteBinaryTrace(output, trace);
  }
  int64_t tokens = 0;
  for (const TraceSequence& sequence : trace.sequences) tokens += trace.tokens(sequence);
  Print("{}: {} sequences, {} tokens, {}\n", output, trace.sequences.size(), tokens,
        FormatBytes(std::filesystem::file_size(output)));
}

}  // namespace

int TraceImportCommand(const Invocation& invocation) {
  CommandLine line({"trace import",
                    "FILE",
                    "Turn a trace of JSON lines (plain or gzip) into the binary form.",
                    {"moesaic trace import mmlu_test.jsonl.gz -o mmlu.trace"}});
  std::string output;
  AddOutputOption(output, "The binary trace.", line.table());
  if (!line.Parse(invocation)) return 0;
  RequireFiles(line, output, 1);
  if (IsJsonName(output)) {
    Fail(ErrorKind::kInvalidArgument, "-o {}: that name is one of JSON lines; use trace export",
         output);
  }
  Write(ReadAll(line.positionals(), TracePhase::kAll), output);
  return 0;
}

int TraceExportCommand(const Invocation& invocation) {
  CommandLine line({"trace export",
                    "FILE",
                    "Turn a trace into JSON lines, gzipped when the name ends in .gz.",
                    {"moesaic trace export sample.trace -o sample.jsonl.gz",
                     "moesaic trace export sample.trace --phase decode -o decode.jsonl"}});
  std::string output;
  std::string phase = "all";
  AddPhaseOption(phase, line.table());
  AddOutputOption(output, "The JSON lines: a name that ends in .jsonl or .jsonl.gz.", line.table());
  if (!line.Parse(invocation)) return 0;
  RequireFiles(line, output, 1);
  if (!IsJsonName(output)) {
    Fail(ErrorKind::kInvalidArgument, "-o {}: the name must end in .jsonl or .jsonl.gz", output);
  }
  Write(ReadAll(line.positionals(), PhaseOf(phase)), output);
  return 0;
}

int TraceMergeCommand(const Invocation& invocation) {
  CommandLine line(
      {"trace merge",
       "FILE...",
       "Join traces of one shape, of either form, into one: of JSON lines when its name "
       "says so, else binary.",
       {"moesaic trace merge monday.trace tuesday.trace -o week.trace"}});
  std::string output;
  std::string phase = "all";
  AddPhaseOption(phase, line.table());
  AddOutputOption(output, "The joined trace.", line.table());
  if (!line.Parse(invocation)) return 0;
  RequireFiles(line, output, SIZE_MAX);
  Write(ReadAll(line.positionals(), PhaseOf(phase)), output);
  return 0;
}

int TraceCompactCommand(const Invocation& invocation) {
  CommandLine line(
      {"trace compact",
       "FILE...",
       "Cluster the requests of traces by the experts they use and write a collection of that many "
       "activation matrices: a file of learned state to begin serving with.",
       {"moesaic trace compact week.trace --capacity 500 -o model.state"}});
  std::string output;
  std::string phase = "all";
  int64_t capacity = 1000;
  int64_t iterations = 20;
  int64_t seed = 1;
  AddPhaseOption(phase, line.table());
  line.table().Add({"capacity",
                    &capacity,
                    "N",
                    "Matrices to keep; an archive of no more requests is kept whole.",
                    "Clustering",
                    0,
                    {},
                    1,
                    1 << 20});
  line.table().Add({"iterations", &iterations, "N", "Of k-means.", "Clustering", 0, {}, 1, 1000});
  line.table().Add(
      {"seed", &seed, "N", "Chooses the first centres.", "Clustering", 0, {}, 0, 1 << 30});
  AddOutputOption(output, "The state file. What lies there and is none is set aside.",
                  line.table());
  if (!line.Parse(invocation)) return 0;
  RequireFiles(line, output, SIZE_MAX);

  const RoutingTrace trace = ReadAll(line.positionals(), PhaseOf(phase));
  const std::vector<ExpertActivationMatrix> archive = RequestEams(trace);
  if (archive.empty()) {
    Fail(ErrorKind::kInvalidArgument, "the trace has no tokens{}",
         phase == "all" ? "" : " of phase " + phase);
  }
  CompactOptions options;
  options.iterations = static_cast<int>(iterations);
  options.seed = static_cast<int>(seed);
  const std::vector<ExpertActivationMatrix> kept =
      CompactTraces(archive, static_cast<int>(capacity), options);
  EamCollection collection(kept.front().num_layers(), kept.front().num_experts(),
                           static_cast<int>(kept.size()), SelectKernels());
  for (const ExpertActivationMatrix& eam : kept) collection.Insert(eam);

  ModelFingerprint model;
  model.moe_layers = trace.header.num_layers;
  model.num_experts = trace.header.num_experts;
  model.top_k = trace.header.top_k;
  EamCollectionSection section(collection);
  const std::filesystem::path aside = StateCheckpoint(output, model, {&section}).Save().aside;
  if (!aside.empty()) {
    fmt::print(stderr, "{} was not a state file of such a model; it is now {}\n", output,
               aside.string());
  }
  double nearest = 0;
  for (const ExpertActivationMatrix& eam : archive) nearest += collection.Nearest(eam).similarity;
  Print("{}: {} of {} requests kept, {}; mean similarity of a request to its nearest {:.4f}\n",
        output, kept.size(), archive.size(), FormatBytes(std::filesystem::file_size(output)),
        nearest / static_cast<double>(archive.size()));
  return 0;
}

}  // namespace moesaic
