#include "serving/api/expert_json.h"

#include <algorithm>
#include <span>

#include "serving/api/live_json.h"
#include "tracer/request_tracer.h"

namespace moesaic {

Json RoutedBase64(const RoutedExperts* routed, int64_t start) {
  if (routed == nullptr) return nullptr;
  const auto first = static_cast<size_t>(start * routed->num_layers() * routed->top_k());
  const std::span<const int16_t> experts = routed->experts();
  const std::span<const int16_t> told = experts.subspan(std::min(first, experts.size()));
  const std::vector<int32_t> wide(told.begin(), told.end());
  return Base64({reinterpret_cast<const uint8_t*>(wide.data()), wide.size() * sizeof(int32_t)});
}

Json RoutedLists(const RoutedExperts* routed, const RoutedOutput& output, int64_t begin,
                 int64_t end) {
  if (routed == nullptr) return nullptr;
  Json tokens = Json::array();
  for (int64_t token = begin; token < std::min(end, routed->tokens()); ++token) {
    Json layers = Json::array();
    for (const int64_t layer : output.layers) {
      const auto first =
          static_cast<size_t>((token * routed->num_layers() + layer) * routed->top_k());
      const auto row = routed->experts().subspan(first, static_cast<size_t>(routed->top_k()));
      layers.push_back(Json(std::vector<int16_t>(row.begin(), row.end())));
    }
    tokens.push_back(std::move(layers));
  }
  return tokens;
}

Json ExpertUseJson(const OutputDelta& last) {
  const ExpertStats& experts = last.experts;
  Json json = Json::object();
  json["hits"] = experts.hits;
  json["late_hits"] = experts.late_hits;
  json["misses"] = experts.misses;
  json["on_host"] = experts.on_host;
  json["bytes_read"] = experts.bytes_read;
  json["blocked_us"] = experts.blocked_us;
  Json links = Json::array();
  for (const LinkBytes& link : last.links) {
    links.push_back({{"name", link.name}, {"bytes", link.bytes}});
  }
  if (links.empty()) links.push_back({{"name", "experts"}, {"bytes", experts.bytes_read}});
  json["links"] = std::move(links);
  if (last.trace == nullptr) return json;
  const RequestTrace& trace = *last.trace;
  json["steps"] = trace.iterations;
  json["prefill"] = {{"tokens", trace.prefill_tokens}, {"eam", MatrixJson(trace.prefill)}};
  json["decode"] = {{"tokens", trace.decode_tokens}, {"eam", MatrixJson(trace.decode)}};
  return json;
}

}  // namespace moesaic
