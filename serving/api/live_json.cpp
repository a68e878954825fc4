#include "serving/api/live_json.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/base/check.h"

namespace moesaic {
namespace {

// In the plane of places.
constexpr uint8_t kHasLeft = 3;

Json LedgerJson(const MemoryLedger& ledger) {
  Json items = Json::array();
  for (const MemoryItem& item : ledger.items) {
    items.push_back({{"name", item.name}, {"bytes", item.bytes}});
  }
  Json json = Json::object();
  json["memory"] = ledger.memory;
  json["limit_bytes"] = ledger.limit_bytes == UINT64_MAX ? Json(nullptr) : Json(ledger.limit_bytes);
  json["items"] = std::move(items);
  return json;
}

Json TotalsJson(const StepStats& totals) {
  const auto& experts = totals.experts;
  Json json = Json::object();
  json["steps"] = totals.steps;
  json["prefill_tokens"] = totals.prefill_tokens;
  json["decode_tokens"] = totals.decode_tokens;
  json["hits"] = experts.hits;
  json["late"] = experts.late_hits;
  json["misses"] = experts.misses;
  json["on_host"] = experts.on_host;
  json["evictions"] = experts.evictions;
  json["bytes_read"] = experts.bytes_read;
  json["blocked_us"] = experts.blocked_us;
  json["prefetched"] = experts.prefetched;
  json["prefetched_used"] = experts.prefetched_used;
  json["prefetched_unused"] = experts.prefetched_unused;
  json["failed_reads"] = experts.failed_reads;
  json["total_us"] = totals.total_us;
  return json;
}

Json RecallJson(const StepStats& totals) {
  Json recall = Json::array();
  for (size_t i = 0; i < totals.recall.used.size(); ++i) {
    recall.push_back({{"distance", i + 1},
                      {"used", totals.recall.used[i]},
                      {"foreseen", totals.recall.found[i]}});
  }
  return recall;
}

const char* PhaseName(LiveRequest::Phase phase) {
  switch (phase) {
    case LiveRequest::Phase::kWaiting:
      return "waiting";
    case LiveRequest::Phase::kPrefill:
      return "prefill";
    case LiveRequest::Phase::kDecode:
      return "decode";
    case LiveRequest::Phase::kEnded:
      return "ended";
  }
  return "";
}

Json RequestJson(const LiveRequest& request) {
  Json json = Json::object();
  json["id"] = request.id;
  json["request_id"] = request.name;
  json["phase"] = PhaseName(request.phase);
  if (!request.ended.empty()) json["ended"] = request.ended;
  json["prompt_tokens"] = request.prompt_tokens;
  json["cached_tokens"] = request.cached_tokens;
  json["computed_tokens"] = request.computed_tokens;
  json["output_tokens"] = request.output_tokens;
  json["max_tokens"] = request.max_tokens;
  json["queue_us"] = request.queue_us;
  json["age_us"] = request.age_us;
  json["blocked_us"] = request.blocked_us;
  return json;
}

std::string PlacesPlane(const LiveSample& sample) {
  std::vector<uint8_t> plane(sample.places.size());
  for (size_t i = 0; i < plane.size(); ++i) {
    plane[i] = static_cast<uint8_t>(sample.places[i]);
    if (sample.places[i] == ExpertPresence::kAbsent && sample.left[i] != 0) plane[i] = kHasLeft;
  }
  return Base64(plane);
}

// The square root of the share: most experts are used by a few percent of the tokens.
std::string UsePlane(const LiveSample& sample) {
  std::vector<uint8_t> plane(sample.use.size());
  for (size_t i = 0; i < plane.size(); ++i) {
    const float share = std::clamp(sample.use[i], 0.0f, 1.0f);
    plane[i] = static_cast<uint8_t>(std::lround(255 * std::sqrt(share)));
    if (share > 0) plane[i] = std::max<uint8_t>(plane[i], 1);
  }
  return Base64(plane);
}

}  // namespace

Json MatrixJson(const ExpertActivationMatrix& matrix) {
  Json rows = Json::array();
  for (int layer = 0; layer < matrix.num_layers(); ++layer) rows.push_back(matrix.Row(layer));
  return rows;
}

Json LiveModelJson(const ServedModel& model) {
  LiveView* const live = model.engine->live();
  CHECK(live != nullptr);
  const ModelConfig& config = model.engine->config();
  Json sparse = Json::array();
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    if (config.is_sparse(layer)) sparse.push_back(layer);
  }
  Json ledgers = Json::array();
  for (const MemoryLedger& ledger : live->ledgers()) ledgers.push_back(LedgerJson(ledger));
  Json json = Json::object();
  json["type"] = "model";
  json["name"] = model.names.front();
  json["names"] = model.names;
  json["family"] = config.model_type;
  json["layers"] = config.num_layers();
  json["layers_with_experts"] = std::move(sparse);
  json["experts"] = config.num_experts();
  json["experts_per_token"] = config.top_k();
  json["max_context_tokens"] = model.engine->max_context_tokens();
  json["chat"] = model.chat_template != nullptr;
  json["use_half_life_tokens"] = LiveSample::kUseHalfLifeTokens;
  json["memory"] = std::move(ledgers);
  return json;
}

Json LiveSampleJson(const LiveSample& sample) {
  Json links = Json::array();
  for (const LinkUse& link : sample.links) {
    links.push_back({{"on_demand_us", link.on_demand_us},
                     {"prefetch_us", link.prefetch_us},
                     {"on_demand_packets", link.on_demand_packets},
                     {"prefetch_packets", link.prefetch_packets}});
  }
  Json requests = Json::array();
  for (const LiveRequest& request : sample.requests) requests.push_back(RequestJson(request));
  Json json = Json::object();
  json["type"] = "sample";
  json["number"] = sample.number;
  json["time_us"] = sample.time_us;
  json["not_ready"] = sample.not_ready.empty() ? Json(nullptr) : Json(sample.not_ready);
  json["running"] = sample.running;
  json["waiting"] = sample.waiting;
  json["preemptions"] = sample.preemptions;
  json["kv_usage"] = sample.kv_usage;
  json["expert_slots"] = sample.expert_slots;
  json["experts_resident"] =
      std::count(sample.places.begin(), sample.places.end(), ExpertPresence::kResident);
  json["totals"] = TotalsJson(sample.totals);
  json["recall"] = RecallJson(sample.totals);
  json["links"] = std::move(links);
  json["requests"] = std::move(requests);
  json["places"] = PlacesPlane(sample);
  json["use"] = UsePlane(sample);
  return json;
}

Json RequestExpertsJson(const RequestExperts& experts) {
  const RequestTrace& trace = *experts.trace;
  Json json = Json::object();
  json["prefill_tokens"] = trace.prefill_tokens;
  json["decode_tokens"] = trace.decode_tokens;
  json["prefill"] = MatrixJson(trace.prefill);
  json["decode"] = MatrixJson(trace.decode);
  json["collection"] = experts.has_collection;
  json["nearest"] = nullptr;
  if (experts.nearest) {
    json["nearest"] = {{"entry", experts.nearest->entry},
                       {"entries", experts.nearest->entries},
                       {"similarity", experts.nearest->similarity},
                       {"counts", MatrixJson(experts.nearest->counts)}};
  }
  return json;
}

std::string Base64(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < count ? bytes[i + k] : 0);
    for (size_t k = 0; k < 4; ++k) {
      text += k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

}  // namespace moesaic
