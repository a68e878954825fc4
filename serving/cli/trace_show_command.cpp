#include <string>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "serving/cli/output.h"
#include "serving/cli/trace_command.h"
#include "serving/cli/trace_page.h"

namespace moesaic {

int TraceShowCommand(const Invocation& invocation) {
  CommandLine line({"trace show",
                    "FILE",
                    "Draw a routing trace as one HTML file that needs nothing else: a map of its "
                    "experts over its tokens, and of each sequence beside the one most like it.",
                    {"moesaic trace show sample.trace --html",
                     "moesaic trace show sample.trace --html --phase decode -o decode.html"}});
  bool html = false;
  std::string output;
  std::string phase = "all";
  AddPhaseOption(phase, line.table());
  line.table().Add({"html", &html, "", "Write HTML.", "Output"});
  line.table().Add(
      {"output", &output, "FILE", "The HTML file; FILE.html if not given.", "Output", 'o'});
  if (!line.Parse(invocation)) return 0;
  if (line.positionals().empty()) {
    Fail(ErrorKind::kInvalidArgument, "no trace given; `moesaic trace show --help` shows how");
  }
  line.RequireAtMost(1);
  if (!html) {
    Fail(ErrorKind::kInvalidArgument,
         "trace show writes HTML: give --html (`moesaic trace info` draws in the terminal)");
  }
  const std::string& file = line.positionals().front();
  if (output.empty()) output = file + ".html";
  RoutingTrace trace = ReadRoutingTrace(file);
  WarnOfLostBytes(trace, file);
  trace = SelectPhase(std::move(trace), PhaseOf(phase));
  const std::string page = TracePage(trace, file);
  SaveTextFile(output, page);
  Print("{}: {} sequences, {}\n", output, trace.sequences.size(), FormatBytes(page.size()));
  return 0;
}

}  // namespace moesaic
