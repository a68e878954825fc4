// What is done with whole routing traces: choosing a phase, joining, counting, summing up to EAMs.
//
// Thread contract: functions of their arguments.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tracer/expert_activation_matrix.h"
#include "tracer/routing_trace.h"

namespace moesaic {

enum class TracePhase { kAll, kPrefill, kDecode };

// Only the tokens of one phase; sequences without any are left out. A trace of one phase only is
// given back as it is, or empty.
RoutingTrace SelectPhase(RoutingTrace trace, TracePhase phase);

// Appends `from`. Its texts get other numbers where theirs are taken. Throws
// Error(kInvalidArgument), naming `name`, when the shapes differ or one numbers tokens by their
// texts and the other does not.
void AppendTrace(RoutingTrace from, std::string_view name, RoutingTrace& to);

// Tokens per expert of one sequence; layers are numbered as in the model, those before the first
// with experts are zero.
ExpertActivationMatrix RequestEam(const RoutingTrace& trace, const TraceSequence& sequence);
// Of every sequence that has tokens.
std::vector<ExpertActivationMatrix> RequestEams(const RoutingTrace& trace);

// How the uses of experts repeat; all are means over layers.
struct TraceReuse {
  double from_last_token = 0;  // share of a token's experts that the token before it used, too
  double per_sequence = 0;     // share of a layer's experts that a sequence uses at all
  // Share of all uses that fall on the tenth, quarter and half of a layer's experts used most: by
  // the whole trace, and by the sequence itself.
  double trace_top_tenth = 0, trace_top_quarter = 0, trace_top_half = 0;
  double sequence_top_tenth = 0, sequence_top_quarter = 0, sequence_top_half = 0;
};
TraceReuse MeasureReuse(const RoutingTrace& trace);

}  // namespace moesaic
