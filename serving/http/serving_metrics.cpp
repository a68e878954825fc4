#include "serving/http/serving_metrics.h"

#include <array>
#include <utility>
#include <vector>

namespace moesaic {
namespace {

// vLLM's buckets, so that its dashboards show the same quantiles.
std::vector<double> FirstTokenBuckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}
std::vector<double> TokenBuckets() {
  return {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3,
          .4,   .5,    .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
}
std::vector<double> RequestBuckets() {
  return {.01, .05, .1, .3, .5, .8, 1,   1.5, 2,   2.5, 5,    10,
          15,  20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}
std::vector<double> LengthBuckets() {
  return {1,    2,    5,    10,    20,    50,    100,    200,   500,
          1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
}

struct Alias {
  std::string_view ours;
  std::string_view vllm;
};
constexpr std::array kAliases = {
    Alias{"moe_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
    Alias{"moe_generation_tokens_total", "vllm:generation_tokens_total"},
    Alias{"moe_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
    Alias{"moe_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"},
    Alias{"moe_num_requests_running", "vllm:num_requests_running"},
    Alias{"moe_num_requests_waiting", "vllm:num_requests_waiting"},
    Alias{"moe_preemptions_total", "vllm:num_preemptions_total"},
    Alias{"moe_prompt_tokens_total", "vllm:prompt_tokens_total"},
    Alias{"moe_request_decode_time_seconds", "vllm:request_decode_time_seconds"},
    Alias{"moe_request_generation_tokens", "vllm:request_generation_tokens"},
    Alias{"moe_request_inference_time_seconds", "vllm:request_inference_time_seconds"},
    Alias{"moe_request_prefill_time_seconds", "vllm:request_prefill_time_seconds"},
    Alias{"moe_request_prompt_tokens", "vllm:request_prompt_tokens"},
    Alias{"moe_request_queue_time_seconds", "vllm:request_queue_time_seconds"},
    Alias{"moe_request_success_total", "vllm:request_success_total"},
    Alias{"moe_request_time_per_output_token_seconds",
          "vllm:request_time_per_output_token_seconds"},
    Alias{"moe_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
};

}  // namespace

ModelMetrics::ModelMetrics(MetricsRegistry& r, const std::string& model)
    : registry_(r),
      labels_({{"model_name", model}}),
      prompt_tokens_total_(
          r.GetCounter("moe_prompt_tokens_total", "Prompt tokens of finished requests", labels_)),
      generation_tokens_total_(r.GetCounter("moe_generation_tokens_total",
                                            "Generated tokens of finished requests", labels_)),
      first_token_(r.GetHistogram("moe_time_to_first_token_seconds",
                                  "From submission to a request's first token", FirstTokenBuckets(),
                                  labels_)),
      inter_token_(r.GetHistogram("moe_inter_token_latency_seconds",
                                  "Between two tokens of a sequence", TokenBuckets(), labels_)),
      per_output_token_(r.GetHistogram("moe_request_time_per_output_token_seconds",
                                       "A request's mean time per token after the first",
                                       TokenBuckets(), labels_)),
      total_(r.GetHistogram("moe_e2e_request_latency_seconds", "From submission to the last token",
                            RequestBuckets(), labels_)),
      queue_(r.GetHistogram("moe_request_queue_time_seconds", "From submission to the first step",
                            RequestBuckets(), labels_)),
      inference_(r.GetHistogram("moe_request_inference_time_seconds",
                                "From the first step to the last token", RequestBuckets(),
                                labels_)),
      prefill_(r.GetHistogram("moe_request_prefill_time_seconds",
                              "From the first step to the first token", RequestBuckets(), labels_)),
      decode_(r.GetHistogram("moe_request_decode_time_seconds", "From the first to the last token",
                             RequestBuckets(), labels_)),
      prompt_tokens_(
          r.GetHistogram("moe_request_prompt_tokens", "Prompt length", LengthBuckets(), labels_)),
      generation_tokens_(r.GetHistogram("moe_request_generation_tokens", "Generated tokens",
                                        LengthBuckets(), labels_)),
      running_(r.GetGauge("moe_num_requests_running", "Sequences in the running batch", labels_)),
      waiting_(r.GetGauge("moe_num_requests_waiting", "Sequences that wait to be run", labels_)),
      kv_usage_(
          r.GetGauge("moe_kv_cache_usage_ratio", "Share of KV blocks in use, 0 to 1", labels_)) {
  // The series exist from the start, so that the first event shows as an increase.
  for (const char* reason : {"stop", "length", "abort"}) {
    MetricLabels labels = labels_;
    labels.emplace_back("finished_reason", reason);
    r.GetCounter("moe_request_success_total", "Sequences that ended, by reason", labels);
  }
}

void ModelMetrics::ObserveFinished(const Finished& finished) {
  MetricLabels labels = labels_;
  labels.emplace_back("finished_reason", std::string(finished.reason));
  registry_.GetCounter("moe_request_success_total", "Sequences that ended, by reason", labels)
      .Add();
  prompt_tokens_total_.Add(static_cast<double>(finished.prompt_tokens));
  generation_tokens_total_.Add(static_cast<double>(finished.generation_tokens));
  prompt_tokens_.Observe(static_cast<double>(finished.prompt_tokens));
  generation_tokens_.Observe(static_cast<double>(finished.generation_tokens));
  total_.Observe(finished.total_s);
  if (finished.first_token_s >= 0) {
    const double decode_s = finished.total_s - finished.first_token_s;
    decode_.Observe(decode_s);
    if (finished.generation_tokens > 1) {
      per_output_token_.Observe(decode_s / static_cast<double>(finished.generation_tokens - 1));
    }
    if (finished.queue_s >= 0) prefill_.Observe(finished.first_token_s - finished.queue_s);
  }
  if (finished.queue_s >= 0) {
    queue_.Observe(finished.queue_s);
    inference_.Observe(finished.total_s - finished.queue_s);
  }
}

void ModelMetrics::SetStatus(const EngineStatus& status) {
  running_.Set(static_cast<double>(status.running));
  waiting_.Set(static_cast<double>(status.waiting));
  kv_usage_.Set(status.kv_usage);
}

ServingMetrics::ServingMetrics(MetricsRegistry& registry)
    : registry_(registry),
      connections_(registry.GetGauge("moe_http_connections", "Open client connections")) {}

void ServingMetrics::CountResponse(std::string_view route, int status) {
  registry_
      .GetCounter("moe_http_responses_total", "HTTP responses, by route and status",
                  {{"route", std::string(route)}, {"status", std::to_string(status)}})
      .Add();
}

ModelMetrics& ServingMetrics::ForModel(const std::string& model) {
  MutexLock lock(mutex_);
  auto& slot = models_[model];
  if (slot == nullptr) slot = std::make_unique<ModelMetrics>(registry_, model);
  return *slot;
}

std::string ServingMetrics::Serialize(bool vllm_names) const {
  std::string text = registry_.Serialize();
  if (vllm_names) text += VllmAliases(text);
  return text;
}

std::string VllmAliases(std::string_view text) {
  std::string out;
  const Alias* current = nullptr;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    constexpr std::string_view kHelp = "# HELP ";
    constexpr std::string_view kType = "# TYPE ";
    const bool is_help = line.substr(0, kHelp.size()) == kHelp;
    const size_t name_at = is_help || line.substr(0, kType.size()) == kType ? kHelp.size() : 0;
    if (is_help) {  // a family begins
      const std::string_view name = line.substr(name_at, line.find(' ', name_at) - name_at);
      current = nullptr;
      for (const Alias& alias : kAliases) {
        if (alias.ours == name) current = &alias;
      }
    }
    if (current == nullptr) continue;
    out += line.substr(0, name_at);
    out += current->vllm;
    out += line.substr(name_at + current->ours.size());  // "_bucket{...} 3" or " gauge"
    out += '\n';
  }
  return out;
}

}  // namespace moesaic
