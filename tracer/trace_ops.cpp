#include "tracer/trace_ops.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "core/base/error.h"

namespace moesaic {
namespace {

// Keeps the tokens [first, last).
void Cut(size_t first, size_t last, size_t per_token, TraceSequence& sequence) {
  const auto keep = [&](auto& values, size_t each) {
    if (values.empty()) return;
    values.erase(values.begin() + static_cast<ptrdiff_t>(last * each), values.end());
    values.erase(values.begin(), values.begin() + static_cast<ptrdiff_t>(first * each));
  };
  keep(sequence.experts, per_token);
  keep(sequence.weights, per_token);
  keep(sequence.token_ids, 1);
  if (sequence.first_pos >= 0) sequence.first_pos += static_cast<int64_t>(first);
  sequence.prefill_tokens = 0;
}

// What the largest values of the row add up to.
uint64_t TopSum(std::span<const uint32_t> row, double share, std::vector<uint32_t>& scratch) {
  const auto count = static_cast<size_t>(
      std::max<int64_t>(1, std::llround(share * static_cast<double>(row.size()))));
  scratch.assign(row.begin(), row.end());
  std::nth_element(scratch.begin(), scratch.begin() + static_cast<ptrdiff_t>(count) - 1,
                   scratch.end(), std::greater<>());
  return std::accumulate(scratch.begin(), scratch.begin() + static_cast<ptrdiff_t>(count),
                         uint64_t{0});
}

}  // namespace

RoutingTrace SelectPhase(RoutingTrace trace, TracePhase phase) {
  if (phase == TracePhase::kAll) return trace;
  const char* wanted = phase == TracePhase::kPrefill ? "prefill" : "decode";
  if (trace.header.phase == wanted) return trace;
  if (trace.header.phase != "mixed") {
    trace.sequences.clear();
  } else {
    for (TraceSequence& sequence : trace.sequences) {
      const auto prefill = static_cast<size_t>(sequence.prefill_tokens);
      const auto tokens = static_cast<size_t>(trace.tokens(sequence));
      if (phase == TracePhase::kPrefill) {
        Cut(0, prefill, trace.header.experts_per_token(), sequence);
      } else {
        Cut(prefill, tokens, trace.header.experts_per_token(), sequence);
      }
    }
    std::erase_if(trace.sequences, [](const TraceSequence& s) { return s.experts.empty(); });
  }
  trace.header.phase = wanted;
  return trace;
}

void AppendTrace(RoutingTrace from, std::string_view name, RoutingTrace& to) {
  const std::string difference = ShapeDifference(from.header, to.header);
  if (!difference.empty()) {
    Fail(ErrorKind::kInvalidArgument, "{}: has another shape than the traces before it ({})", name,
         difference);
  }
  const auto numbered = [](const RoutingTrace& trace) {
    return std::any_of(trace.sequences.begin(), trace.sequences.end(),
                       [](const TraceSequence& s) { return !s.token_ids.empty(); });
  };
  if (numbered(from) && numbered(to) && from.token_texts.empty() != to.token_texts.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "{}: numbers its tokens differently from the traces before it (by text, or by a "
         "vocabulary)",
         name);
  }
  std::map<int32_t, int32_t> renumbered;
  for (const auto& [id, text] : from.token_texts.texts()) {
    const int32_t mine = to.token_texts.Intern(text);
    if (mine != id) renumbered[id] = mine;
  }
  to.header.weight_scale = std::max(to.header.weight_scale, from.header.weight_scale);
  to.header.weight_bits = 0;
  for (TraceSequence& sequence : from.sequences) {
    for (int32_t& id : sequence.token_ids) {
      if (const auto it = renumbered.find(id); it != renumbered.end()) id = it->second;
    }
    to.sequences.push_back(std::move(sequence));
  }
}

ExpertActivationMatrix RequestEam(const RoutingTrace& trace, const TraceSequence& sequence) {
  const RoutingTraceHeader& header = trace.header;
  ExpertActivationMatrix eam(header.first_layer + header.num_layers, header.num_experts);
  for (int64_t token = 0; token < trace.tokens(sequence); ++token) {
    for (int32_t layer = 0; layer < header.num_layers; ++layer) {
      for (const uint16_t expert : trace.Experts(sequence, token, layer)) {
        eam.Add(header.first_layer + layer, expert);
      }
    }
  }
  return eam;
}

std::vector<ExpertActivationMatrix> RequestEams(const RoutingTrace& trace) {
  std::vector<ExpertActivationMatrix> eams;
  for (const TraceSequence& sequence : trace.sequences) {
    if (!sequence.experts.empty()) eams.push_back(RequestEam(trace, sequence));
  }
  return eams;
}

TraceReuse MeasureReuse(const RoutingTrace& trace) {
  const RoutingTraceHeader& header = trace.header;
  ExpertActivationMatrix all(header.first_layer + header.num_layers, header.num_experts);
  std::vector<uint32_t> scratch;
  double repeated = 0;
  double following = 0;
  double distinct = 0;
  double rows = 0;
  double tenth = 0, quarter = 0, half = 0;
  double uses = 0;
  for (const TraceSequence& sequence : trace.sequences) {
    if (sequence.experts.empty()) continue;
    const ExpertActivationMatrix eam = RequestEam(trace, sequence);
    all += eam;
    for (int32_t layer = 0; layer < header.num_layers; ++layer) {
      const int at = header.first_layer + layer;
      distinct += eam.distinct(at);
      rows += header.num_experts;
      uses += static_cast<double>(eam.row_sum(at));
      tenth += static_cast<double>(TopSum(eam.Row(at), 0.10, scratch));
      quarter += static_cast<double>(TopSum(eam.Row(at), 0.25, scratch));
      half += static_cast<double>(TopSum(eam.Row(at), 0.50, scratch));
      for (int64_t token = 1; token < trace.tokens(sequence); ++token) {
        const auto now = trace.Experts(sequence, token, layer);
        const auto before = trace.Experts(sequence, token - 1, layer);
        following += static_cast<double>(now.size());
        for (const uint16_t expert : now) {
          repeated += std::find(before.begin(), before.end(), expert) != before.end() ? 1 : 0;
        }
      }
    }
  }
  TraceReuse reuse;
  if (uses == 0) return reuse;
  reuse.from_last_token = following > 0 ? repeated / following : 0;
  reuse.per_sequence = distinct / rows;
  reuse.sequence_top_tenth = tenth / uses;
  reuse.sequence_top_quarter = quarter / uses;
  reuse.sequence_top_half = half / uses;
  for (int32_t layer = header.first_layer; layer < all.num_layers(); ++layer) {
    reuse.trace_top_tenth += static_cast<double>(TopSum(all.Row(layer), 0.10, scratch)) / uses;
    reuse.trace_top_quarter += static_cast<double>(TopSum(all.Row(layer), 0.25, scratch)) / uses;
    reuse.trace_top_half += static_cast<double>(TopSum(all.Row(layer), 0.50, scratch)) / uses;
  }
  return reuse;
}

}  // namespace moesaic
