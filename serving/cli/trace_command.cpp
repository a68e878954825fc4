#include "serving/cli/trace_command.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "serving/cli/commands.h"
#include "serving/cli/output.h"

namespace moesaic {
namespace {

struct Part {
  const char* name;
  const char* summary;
  int (*run)(const Invocation& invocation);
};

constexpr std::array<Part, 7> kParts = {{
    {"record", "Run prompts through a model and record which experts they use", TraceRecordCommand},
    {"info", "Describe a trace, or a file of learned state", TraceInfoCommand},
    {"show", "Draw a trace as an HTML file", TraceShowCommand},
    {"import", "JSON lines to the binary form", TraceImportCommand},
    {"export", "The binary form to JSON lines", TraceExportCommand},
    {"merge", "Join traces of one shape", TraceMergeCommand},
    {"compact", "Traces to a collection of activation matrices, by k-means", TraceCompactCommand},
}};

std::string Overview() {
  std::string out =
      "Usage: moesaic trace COMMAND [arguments] [options]\n\n"
      "Routing traces: which experts every token used, recorded for the prediction of what comes\n"
      "next.\n\nCommands:\n";
  for (const Part& part : kParts) out += fmt::format("  {:<9}{}\n", part.name, part.summary);
  out +=
      "\nExamples:\n"
      "  moesaic trace record models/sample --prompts prompts.jsonl -o sample.trace\n"
      "  moesaic trace info sample.trace\n"
      "\n`moesaic trace COMMAND --help` describes a command and its options.\n";
  return out;
}

}  // namespace

int TraceCommand(const Invocation& invocation) {
  const std::vector<std::string>& words = invocation.arguments;
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    WriteOut(Overview());
    return 0;
  }
  std::vector<std::string> names;
  for (const Part& part : kParts) {
    names.emplace_back(part.name);
    if (words[0] != part.name) continue;
    Invocation rest = invocation;
    rest.arguments.erase(rest.arguments.begin());
    return part.run(rest);
  }
  const std::string nearest = NearestOf(words[0], names);
  Fail(ErrorKind::kInvalidArgument, "unknown command 'trace {}'{}", words[0],
       nearest.empty() ? "; `moesaic trace --help` lists them"
                       : fmt::format("; did you mean `moesaic trace {}`?", nearest));
}

void AddPhaseOption(std::string& phase, OptionTable& table) {
  table.Add({"phase",
             &phase,
             "",
             "Take only the tokens of prompts (prefill) or of answers (decode).",
             "Input",
             0,
             {"all", "prefill", "decode"}});
}

TracePhase PhaseOf(const std::string& phase) {
  return phase == "prefill"  ? TracePhase::kPrefill
         : phase == "decode" ? TracePhase::kDecode
                             : TracePhase::kAll;
}

std::string DescribeShape(const RoutingTraceHeader& header) {
  return fmt::format("{} layer{} of {} experts, top {}", header.num_layers,
                     header.num_layers == 1 ? "" : "s", header.num_experts, header.top_k);
}

void WarnOfLostBytes(const RoutingTrace& trace, const std::string& file) {
  if (trace.lost_bytes == 0) return;
  fmt::print(stderr, "{}: its last {} are damaged and left out; was its recorder killed?\n", file,
             FormatBytes(trace.lost_bytes));
}

}  // namespace moesaic
