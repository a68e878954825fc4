#include "serving/cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

namespace moesaic {
namespace {

const char* MetricTitle(const std::string& metric) {
  if (metric == "ttft") return "Time to First Token";
  if (metric == "tpot") return "Time per Output Token (excl. 1st token)";
  if (metric == "itl") return "Inter-token Latency";
  return "End-to-end Latency";
}

std::string Upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string Centered(const std::string& text, char fill) {
  constexpr size_t kWidth = 50;
  const size_t free = kWidth - std::min(kWidth, text.size());
  return std::string(free / 2, fill) + text + std::string(free - free / 2, fill) + "\n";
}

template <typename T>
std::string Line(const char* label, T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return fmt::format("{:<40} {:<10.2f}", label, value) + "\n";
  } else {
    return fmt::format("{:<40} {:<10}", label, value) + "\n";
  }
}

LatencySummary Summary(const std::vector<double>& seconds, const std::vector<double>& percentiles) {
  LatencySummary summary;
  summary.percentiles_ms.assign(percentiles.size(), 0);
  if (seconds.empty()) return summary;
  const auto count = static_cast<double>(seconds.size());
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  double squares = 0;
  for (const double s : seconds) squares += (s - mean) * (s - mean);
  summary.mean_ms = mean * 1e3;
  summary.median_ms = Percentile(seconds, 50) * 1e3;
  summary.std_ms = std::sqrt(squares / count) * 1e3;
  for (size_t i = 0; i < percentiles.size(); ++i) {
    summary.percentiles_ms[i] = Percentile(seconds, percentiles[i]) * 1e3;
  }
  return summary;
}

double TimePerOutputToken(const LoadResult& result) {
  return (result.latency_s - result.ttft_s) / static_cast<double>(result.output_tokens - 1);
}

bool IsGood(const LoadResult& result, const std::map<std::string, double>& goodput) {
  for (const auto& [metric, limit_ms] : goodput) {
    double value_s = result.latency_s;
    if (metric == "ttft") value_s = result.ttft_s;
    if (metric == "tpot") value_s = result.output_tokens > 1 ? TimePerOutputToken(result) : 0;
    if (value_s * 1e3 > limit_ms) return false;
  }
  return true;
}

double PerSecond(const BenchReport& report, int64_t count) {
  return report.duration_s > 0 ? static_cast<double>(count) / report.duration_s : 0;
}

}  // namespace

double Percentile(std::vector<double> samples, double percent) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const double position = percent / 100 * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] +
         (samples[above] - samples[below]) * (position - static_cast<double>(below));
}

BenchReport MakeBenchReport(const LoadRun& run, std::vector<double> percentiles,
                            const std::map<std::string, double>& goodput) {
  BenchReport report;
  report.duration_s = run.duration_s;
  report.percentiles = std::move(percentiles);
  if (!goodput.empty()) report.good_requests = 0;
  std::map<std::string, std::vector<double>> samples;
  for (const LoadResult& result : run.results) {
    if (!result.ok) {
      ++report.failed;
      continue;
    }
    ++report.completed;
    report.input_tokens += result.prompt_tokens;
    report.output_tokens += result.output_tokens;
    samples["ttft"].push_back(result.ttft_s);
    if (result.output_tokens > 1) samples["tpot"].push_back(TimePerOutputToken(result));
    samples["itl"].insert(samples["itl"].end(), result.itl_s.begin(), result.itl_s.end());
    samples["e2el"].push_back(result.latency_s);
    if (!goodput.empty() && IsGood(result, goodput)) ++report.good_requests;
  }
  for (const char* metric : {"ttft", "tpot", "itl", "e2el"}) {
    report.latencies[metric] = Summary(samples[metric], report.percentiles);
  }
  return report;
}

std::string BenchReportText(const BenchReport& report, const std::vector<std::string>& metrics) {
  std::string out = Centered(" Serving Benchmark Result ", '=');
  out += Line("Successful requests:", report.completed);
  out += Line("Failed requests:", report.failed);
  out += Line("Benchmark duration (s):", report.duration_s);
  out += Line("Total input tokens:", report.input_tokens);
  out += Line("Total generated tokens:", report.output_tokens);
  out += Line("Request throughput (req/s):", PerSecond(report, report.completed));
  if (report.good_requests >= 0) {
    out += Line("Request goodput (req/s):", PerSecond(report, report.good_requests));
  }
  out += Line("Output token throughput (tok/s):", PerSecond(report, report.output_tokens));
  out += Line("Total Token throughput (tok/s):",
              PerSecond(report, report.input_tokens + report.output_tokens));
  if (report.completed == 0) return out + Centered("", '=');
  for (const std::string& metric : metrics) {
    const LatencySummary& latency = report.latencies.at(metric);
    const std::string name = Upper(metric);
    out += Centered(MetricTitle(metric), '-');
    out += Line(fmt::format("Mean {} (ms):", name).c_str(), latency.mean_ms);
    out += Line(fmt::format("Median {} (ms):", name).c_str(), latency.median_ms);
    for (size_t i = 0; i < report.percentiles.size(); ++i) {
      out += Line(fmt::format("P{:g} {} (ms):", report.percentiles[i], name).c_str(),
                  latency.percentiles_ms[i]);
    }
  }
  return out + Centered("", '=');
}

nlohmann::ordered_json BenchReportJson(const BenchReport& report,
                                       const std::vector<std::string>& metrics, const LoadRun& run,
                                       bool detailed) {
  nlohmann::ordered_json json;
  json["duration"] = report.duration_s;
  json["completed"] = report.completed;
  json["failed"] = report.failed;
  json["total_input_tokens"] = report.input_tokens;
  json["total_output_tokens"] = report.output_tokens;
  json["request_throughput"] = PerSecond(report, report.completed);
  json["request_goodput"] = nullptr;
  if (report.good_requests >= 0) {
    json["request_goodput"] = PerSecond(report, report.good_requests);
  }
  json["output_throughput"] = PerSecond(report, report.output_tokens);
  json["total_token_throughput"] = PerSecond(report, report.input_tokens + report.output_tokens);
  for (const std::string& metric : metrics) {
    const LatencySummary& latency = report.latencies.at(metric);
    json["mean_" + metric + "_ms"] = latency.mean_ms;
    json["median_" + metric + "_ms"] = latency.median_ms;
    json["std_" + metric + "_ms"] = latency.std_ms;
    for (size_t i = 0; i < report.percentiles.size(); ++i) {
      json[fmt::format("p{:g}_{}_ms", report.percentiles[i], metric)] = latency.percentiles_ms[i];
    }
  }
  if (!detailed) return json;
  for (const char* key :
       {"input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors"}) {
    json[key] = nlohmann::ordered_json::array();
  }
  for (const LoadResult& result : run.results) {
    json["input_lens"].push_back(result.prompt_tokens);
    json["output_lens"].push_back(result.output_tokens);
    json["start_times"].push_back(result.start_s);
    json["ttfts"].push_back(result.ttft_s);
    json["itls"].push_back(result.itl_s);
    json["generated_texts"].push_back(result.text);
    json["errors"].push_back(result.error);
  }
  return json;
}

}  // namespace moesaic
