#include "serving/cli/trace_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "serving/api/json_text.h"
#include "serving/api/live_json.h"
#include "serving/http/page.h"

namespace moesaic {
namespace {

// Counts of some tokens, and their plane of bytes as in a live sample.
class TokenCounts {
 public:
  explicit TokenCounts(const RoutingTraceHeader& header)
      : experts_(header.num_experts),
        counts_(static_cast<size_t>(header.num_layers) * static_cast<size_t>(header.num_experts)) {}

  void Add(const RoutingTrace& trace, const TraceSequence& sequence, int64_t token) {
    for (int64_t layer = 0; layer < trace.header.num_layers; ++layer) {
      for (const uint16_t expert : trace.Experts(sequence, token, layer)) {
        ++counts_[static_cast<size_t>(layer * experts_ + expert)];
      }
    }
    ++tokens_;
  }
  int64_t tokens() const { return tokens_; }
  std::string Plane() const {
    std::vector<uint8_t> plane(counts_.size());
    for (size_t i = 0; i < plane.size(); ++i) {
      if (counts_[i] == 0) continue;
      const double share = static_cast<double>(counts_[i]) / static_cast<double>(tokens_);
      plane[i] = static_cast<uint8_t>(std::max(1L, std::lround(255 * std::sqrt(share))));
    }
    return Base64(plane);
  }
  void Clear() {
    std::fill(counts_.begin(), counts_.end(), 0);
    tokens_ = 0;
  }

 private:
  int64_t experts_;
  std::vector<uint32_t> counts_;  // [layers, experts]
  int64_t tokens_ = 0;
};

int64_t TokensOf(const RoutingTrace& trace) {
  int64_t tokens = 0;
  for (const TraceSequence& sequence : trace.sequences) tokens += trace.tokens(sequence);
  return tokens;
}

Json SequenceJson(const RoutingTrace& trace, const TraceSequence& sequence) {
  TokenCounts counts(trace.header);
  const int64_t tokens = trace.tokens(sequence);
  for (int64_t token = 0; token < tokens; ++token) counts.Add(trace, sequence, token);
  const int64_t prefill = trace.header.phase == "prefill"  ? tokens
                          : trace.header.phase == "decode" ? 0
                                                           : sequence.prefill_tokens;
  return {{"id", sequence.id},
          {"domain", sequence.domain},
          {"prompt_tokens", prefill},
          {"output_tokens", tokens - prefill},
          {"use", counts.Plane()}};
}

// So many tokens a window.
int64_t WindowTokens(const RoutingTrace& trace) {
  const int64_t plane = int64_t{trace.header.num_layers} * trace.header.num_experts;
  const int64_t windows =
      std::clamp<int64_t>(kTracePlaneBytes / std::max<int64_t>(1, plane), 1, kTraceWindows);
  return std::max<int64_t>(1, (TokensOf(trace) + windows - 1) / windows);
}

// In an HTML text: nothing of it may end the element.
std::string ForScript(std::string json) {
  std::string out;
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Json TracePageData(const RoutingTrace& trace, std::string_view name) {
  const RoutingTraceHeader& header = trace.header;
  Json layers = Json::array();
  for (int32_t layer = 0; layer < header.num_layers; ++layer) {
    layers.push_back(header.first_layer + layer);
  }
  Json windows = Json::array();
  TokenCounts counts(header);
  const int64_t window = WindowTokens(trace);
  const auto end_window = [&](const TraceSequence& sequence) {
    if (counts.tokens() == 0) return;
    windows.push_back({{"tokens", counts.tokens()}, {"in", sequence.id}, {"use", counts.Plane()}});
    counts.Clear();
  };
  for (const TraceSequence& sequence : trace.sequences) {
    for (int64_t token = 0; token < trace.tokens(sequence); ++token) {
      counts.Add(trace, sequence, token);
      if (counts.tokens() == window) end_window(sequence);
    }
  }
  if (!trace.sequences.empty()) end_window(trace.sequences.back());
  TokenCounts all(header);
  Json sequences = Json::array();
  for (const TraceSequence& sequence : trace.sequences) {
    for (int64_t token = 0; token < trace.tokens(sequence); ++token) {
      all.Add(trace, sequence, token);
    }
    if (sequences.size() < kTraceSequences) sequences.push_back(SequenceJson(trace, sequence));
  }
  Json json = Json::object();
  json["file"] = name;
  json["model"] = header.model;
  json["phase"] = header.phase;
  json["layers"] = std::move(layers);
  json["experts"] = header.num_experts;
  json["experts_per_token"] = header.top_k;
  json["tokens"] = all.tokens();
  json["all_sequences"] = trace.sequences.size();
  json["use"] = all.Plane();
  json["windows"] = std::move(windows);
  json["sequences"] = std::move(sequences);
  return json;
}

std::string TracePage(const RoutingTrace& trace, std::string_view name) {
  const std::string data =
      fmt::format("<script type=\"application/json\" id=\"recorded\">{}</script>\n",
                  ForScript(DumpJson(TracePageData(trace, name))));
  std::string page(PageText());
  const auto insert = [&page](std::string_view before, std::string_view text) {
    const size_t at = page.find(before);
    CHECK(at != std::string::npos);
    page.insert(at, text);
  };
  insert("<script>", data);
  insert("<title>", fmt::format("<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n",
                                PagePolicy()));
  return page;
}

}  // namespace moesaic
