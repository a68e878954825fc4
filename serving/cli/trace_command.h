// The parts of `moesaic trace`.
#pragma once

#include "serving/cli/command_line.h"
#include "tracer/routing_trace.h"
#include "tracer/trace_ops.h"

namespace moesaic {

int TraceRecordCommand(const Invocation& invocation);
int TraceInfoCommand(const Invocation& invocation);
int TraceShowCommand(const Invocation& invocation);
int TraceImportCommand(const Invocation& invocation);
int TraceExportCommand(const Invocation& invocation);
int TraceMergeCommand(const Invocation& invocation);
int TraceCompactCommand(const Invocation& invocation);

// --phase, as a setting of a command.
void AddPhaseOption(std::string& phase, OptionTable& table);
TracePhase PhaseOf(const std::string& phase);

// "24 layers of 32 experts, top 4"
std::string DescribeShape(const RoutingTraceHeader& header);
// A line on standard error when the end of the file was lost.
void WarnOfLostBytes(const RoutingTrace& trace, const std::string& file);

}  // namespace moesaic
