#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "serving/cli/output.h"
#include "serving/cli/trace_command.h"
#include "tracer/binary_trace.h"
#include "tracer/heat_map.h"
#include "tracer/state_checkpoint.h"

namespace moesaic {
namespace {

struct TraceSummary {
  std::string file;
  bool binary = false;
  uint64_t file_bytes = 0;
  RoutingTraceHeader header;
  size_t sequences = 0;
  int64_t tokens = 0;
  int64_t prefill_tokens = 0;
  int64_t shortest = 0;
  int64_t longest = 0;
  bool weights = false;
  bool token_ids = false;
  uint64_t lost_bytes = 0;
  std::map<std::string, std::pair<int64_t, int64_t>> domains;  // sequences, tokens
  TraceReuse reuse;
};

TraceSummary Summarise(const std::string& file, const RoutingTrace& trace) {
  TraceSummary s;
  s.file = file;
  s.binary = IsBinaryTrace(file);
  s.file_bytes = std::filesystem::file_size(file);
  s.header = trace.header;
  s.sequences = trace.sequences.size();
  s.lost_bytes = trace.lost_bytes;
  for (const TraceSequence& sequence : trace.sequences) {
    const int64_t tokens = trace.tokens(sequence);
    s.shortest = s.tokens == 0 ? tokens : std::min(s.shortest, tokens);
    s.longest = std::max(s.longest, tokens);
    s.tokens += tokens;
    s.prefill_tokens += trace.header.phase == "prefill" ? tokens : sequence.prefill_tokens;
    s.weights |= !sequence.weights.empty();
    s.token_ids |= !sequence.token_ids.empty();
    auto& domain = s.domains[sequence.domain];
    ++domain.first;
    domain.second += tokens;
  }
  s.reuse = MeasureReuse(trace);
  return s;
}

Json SummaryJson(const TraceSummary& s) {
  Json domains = Json::array();
  for (const auto& [name, counts] : s.domains) {
    domains.push_back({{"domain", name}, {"sequences", counts.first}, {"tokens", counts.second}});
  }
  return {{"file", s.file},
          {"form", s.binary ? "binary" : "jsonl"},
          {"file_bytes", s.file_bytes},
          {"lost_bytes", s.lost_bytes},
          {"model", s.header.model},
          {"phase", s.header.phase},
          {"layers", s.header.num_layers},
          {"first_layer", s.header.first_layer},
          {"experts", s.header.num_experts},
          {"top_k", s.header.top_k},
          {"weights", s.weights},
          {"token_ids", s.token_ids},
          {"sequences", s.sequences},
          {"tokens", s.tokens},
          {"prefill_tokens", s.prefill_tokens},
          {"domains", domains},
          {"reuse",
           {{"from_last_token", s.reuse.from_last_token},
            {"experts_per_sequence", s.reuse.per_sequence},
            {"trace_top_tenth", s.reuse.trace_top_tenth},
            {"trace_top_quarter", s.reuse.trace_top_quarter},
            {"trace_top_half", s.reuse.trace_top_half},
            {"sequence_top_tenth", s.reuse.sequence_top_tenth},
            {"sequence_top_quarter", s.reuse.sequence_top_quarter},
            {"sequence_top_half", s.reuse.sequence_top_half}}}};
}

std::string Percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::string SummaryText(const TraceSummary& s, int64_t most_domains) {
  TextTable table("<<", 0);
  table.Add({"File", fmt::format("{}, {}, {}", s.file, s.binary ? "binary" : "JSON lines",
                                 FormatBytes(s.file_bytes))});
  table.Add({"Model", s.header.model.empty() ? "not told" : s.header.model});
  table.Add({"Shape", fmt::format("{}, the first is layer {}", DescribeShape(s.header),
                                  s.header.first_layer)});
  table.Add({"Phase", s.header.phase.empty() ? "not told" : s.header.phase});
  table.Add({"Tokens", fmt::format("{} in {} sequences of {} to {}; {} of prompts", s.tokens,
                                   s.sequences, s.shortest, s.longest, s.prefill_tokens)});
  if (s.tokens > 0) {
    table.Add(
        {"Bytes", fmt::format("{:.1f} of the file per token; {}, {}",
                              static_cast<double>(s.file_bytes) / static_cast<double>(s.tokens),
                              s.weights ? "with weights" : "no weights",
                              s.token_ids ? "with token numbers" : "no token numbers")});
  }
  std::string out = table.Render() + "\nReuse of experts (means over layers)\n";
  TextTable reuse("<>>>");
  reuse.Add(
      {"a token's experts that the token before used", Percent(s.reuse.from_last_token), "", ""});
  reuse.Add({"a layer's experts that a sequence uses", Percent(s.reuse.per_sequence), "", ""});
  reuse.Add({"uses that fall on the busiest", "10%", "25%", "50% of the experts"});
  reuse.Add({"  of the trace", Percent(s.reuse.trace_top_tenth), Percent(s.reuse.trace_top_quarter),
             Percent(s.reuse.trace_top_half)});
  reuse.Add({"  of the sequence itself", Percent(s.reuse.sequence_top_tenth),
             Percent(s.reuse.sequence_top_quarter), Percent(s.reuse.sequence_top_half)});
  out += reuse.Render();

  std::vector<std::pair<std::string, std::pair<int64_t, int64_t>>> domains(s.domains.begin(),
                                                                           s.domains.end());
  std::stable_sort(domains.begin(), domains.end(),
                   [](const auto& a, const auto& b) { return a.second.second > b.second.second; });
  out += fmt::format("\nDomains ({})\n", domains.size());
  TextTable rows("<>>");
  rows.Add({"", "sequences", "tokens"});
  for (size_t i = 0; i < domains.size() && i < static_cast<size_t>(most_domains); ++i) {
    rows.Add({domains[i].first.empty() ? "(none)" : domains[i].first,
              fmt::format("{}", domains[i].second.first),
              fmt::format("{}", domains[i].second.second)});
  }
  if (domains.size() > static_cast<size_t>(most_domains)) {
    rows.Add(
        {fmt::format("and {} more", domains.size() - static_cast<size_t>(most_domains)), "", ""});
  }
  return out + rows.Render();
}

std::string HeatMapOf(const RoutingTrace& trace) {
  ExpertActivationMatrix sum(trace.header.first_layer + trace.header.num_layers,
                             trace.header.num_experts);
  for (const TraceSequence& sequence : trace.sequences) sum += RequestEam(trace, sequence);
  HeatMapOptions options;
  options.width = std::min(TerminalWidth(), 120);
  options.color = UseColor(STDOUT_FILENO);
  options.title = "Experts used by the trace";
  return FormatHeatMap(sum, options);
}

int DescribeState(const std::string& file, bool json) {
  const StoredState state = ReadStateFile(file);
  if (json) {
    Json sections = Json::array();
    for (const StoredSection& section : state.sections) {
      sections.push_back(
          {{"name", section.name}, {"version", section.version}, {"bytes", section.bytes.size()}});
    }
    const Json root = {{"file", file},
                       {"form", "state"},
                       {"model", DescribeFingerprint(state.model)},
                       {"sections", sections}};
    WriteOut(root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return 0;
  }
  Print("{}: learned state of {}\n", file, DescribeFingerprint(state.model));
  TextTable table("<>>");
  table.Add({"section", "version", "size"});
  for (const StoredSection& section : state.sections) {
    table.Add(
        {section.name, fmt::format("{}", section.version), FormatBytes(section.bytes.size())});
  }
  WriteOut(table.Render());
  return 0;
}

}  // namespace

int TraceInfoCommand(const Invocation& invocation) {
  CommandLine line(
      {"trace info",
       "FILE",
       "Describe a routing trace of either form: its shape, its sequences, how much the "
       "uses of experts repeat, and a heat map. A file of learned state is described by "
       "its sections.",
       {"moesaic trace info sample.trace",
        "moesaic trace info sample.trace --domain law --phase decode"}});
  bool json = false;
  bool no_map = false;
  std::string domain;
  std::string phase = "all";
  int64_t most_domains = 12;
  AddPhaseOption(phase, line.table());
  line.table().Add({"domain", &domain, "TEXT", "Take only the sequences of this domain.", "Input"});
  line.table().Add({"json", &json, "", "Print everything as JSON.", "Output"});
  line.table().Add({"hide-map", &no_map, "", "Leave the heat map out.", "Output"});
  line.table().Add(
      {"domains", &most_domains, "N", "List so many domains.", "Output", 0, {}, 0, 1e9});
  if (!line.Parse(invocation)) return 0;
  if (line.positionals().empty()) {
    Fail(ErrorKind::kInvalidArgument, "no trace given; `moesaic trace info --help` shows how");
  }
  line.RequireAtMost(1);
  const std::string& file = line.positionals().front();
  if (IsStateFile(file)) return DescribeState(file, json);

  RoutingTrace trace = ReadRoutingTrace(file);
  if (!json) WarnOfLostBytes(trace, file);
  trace = SelectPhase(std::move(trace), PhaseOf(phase));
  if (!domain.empty()) {
    std::erase_if(trace.sequences, [&](const TraceSequence& s) { return s.domain != domain; });
    if (trace.sequences.empty()) {
      Fail(ErrorKind::kInvalidArgument, "--domain {}: the trace has no sequence of it", domain);
    }
  }
  const TraceSummary summary = Summarise(file, trace);
  if (json) {
    WriteOut(SummaryJson(summary).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return 0;
  }
  WriteOut(SummaryText(summary, most_domains));
  if (!no_map) Print("\n{}", HeatMapOf(trace));
  return 0;
}

}  // namespace moesaic
