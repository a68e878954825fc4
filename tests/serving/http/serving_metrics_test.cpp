#include "serving/http/serving_metrics.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(ServingMetricsTest, AFinishedRequestIsSeenEverywhere) {
  MetricsRegistry registry;
  ServingMetrics metrics(registry);
  ModelMetrics& model = metrics.ForModel("m");
  EXPECT_EQ(&model, &metrics.ForModel("m"));
  ModelMetrics::Finished finished;
  finished.reason = "stop";
  finished.prompt_tokens = 7;
  finished.generation_tokens = 5;
  finished.total_s = 3;
  finished.first_token_s = 1;
  finished.queue_s = 0.5;
  model.ObserveFinished(finished);
  model.ObserveFirstToken(1);
  const std::string text = metrics.Serialize(false);
  for (const char* line :
       {"moe_request_success_total{model_name=\"m\",finished_reason=\"stop\"} 1\n",
        "moe_request_success_total{model_name=\"m\",finished_reason=\"length\"} 0\n",
        "moe_prompt_tokens_total{model_name=\"m\"} 7\n",
        "moe_generation_tokens_total{model_name=\"m\"} 5\n",
        "moe_e2e_request_latency_seconds_sum{model_name=\"m\"} 3\n",
        "moe_request_queue_time_seconds_sum{model_name=\"m\"} 0.5\n",
        "moe_request_inference_time_seconds_sum{model_name=\"m\"} 2.5\n",
        "moe_request_prefill_time_seconds_sum{model_name=\"m\"} 0.5\n",
        "moe_request_decode_time_seconds_sum{model_name=\"m\"} 2\n",
        "moe_request_time_per_output_token_seconds_sum{model_name=\"m\"} 0.5\n",
        "moe_time_to_first_token_seconds_count{model_name=\"m\"} 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_EQ(text.find("vllm:"), std::string::npos);
}

TEST(ServingMetricsTest, UnknownTimesAreLeftOut) {
  MetricsRegistry registry;
  ServingMetrics metrics(registry);
  ModelMetrics::Finished finished;
  finished.reason = "abort";
  metrics.ForModel("m").ObserveFinished(finished);
  const std::string text = metrics.Serialize(false);
  EXPECT_NE(text.find("moe_request_queue_time_seconds_count{model_name=\"m\"} 0\n"),
            std::string::npos);
  EXPECT_NE(text.find("moe_request_decode_time_seconds_count{model_name=\"m\"} 0\n"),
            std::string::npos);
}

TEST(ServingMetricsTest, VllmNames) {
  EXPECT_EQ(
      VllmAliases("# HELP moe_steps_total s\n# TYPE moe_steps_total counter\nmoe_steps_total 1\n"
                  "# HELP moe_kv_cache_usage_ratio k\n# TYPE moe_kv_cache_usage_ratio gauge\n"
                  "moe_kv_cache_usage_ratio{model_name=\"m\"} 0.5\n"),
      "# HELP vllm:kv_cache_usage_perc k\n# TYPE vllm:kv_cache_usage_perc gauge\n"
      "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.5\n");
  MetricsRegistry registry;
  ServingMetrics metrics(registry);
  metrics.ForModel("m");
  metrics.CountResponse("/health", 200);
  const std::string text = metrics.Serialize(true);
  for (const char* line :
       {"vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.001\"} 0\n",
        "vllm:num_requests_running{model_name=\"m\"} 0\n",
        "moe_http_responses_total{route=\"/health\",status=\"200\"} 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace moesaic
