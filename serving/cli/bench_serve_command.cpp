#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "serving/cli/bench_dataset.h"
#include "serving/cli/bench_report.h"
#include "serving/cli/commands.h"
#include "serving/cli/load_client.h"
#include "serving/cli/output.h"

namespace moesaic {
namespace {

// The flags, under the names that vLLM's `bench serve` has for them.
struct BenchFlags {
  std::string backend = "openai";
  std::string base_url;
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  std::string endpoint;
  std::string model;
  std::string api_key;
  std::string dataset_name = "random";
  std::string dataset_path;
  int64_t num_prompts = 100;
  double request_rate = std::numeric_limits<double>::infinity();
  double burstiness = 1;
  int64_t max_concurrency = 0;
  int64_t num_warmups = 1;
  int64_t seed = 0;
  double temperature = 0;
  bool ignore_eos = false;
  int64_t random_input_len = 1024;
  int64_t random_output_len = 128;
  double random_range_ratio = 0;
  int64_t random_prefix_len = 0;
  int64_t random_vocab_size = 1000;
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl", "e2el"};
  std::vector<std::string> metric_percentiles = {"90", "99"};
  std::vector<std::string> goodput;
  double request_timeout_s = 600;
  double ready_timeout_s = 60;
  bool json = false;
  bool save_result = false;
  bool save_detailed = false;
  std::string result_dir = ".";
  std::string result_filename;
};

void AddFlags(BenchFlags& f, OptionTable& table) {
  const char* server = "Server";
  table.Add({"base-url", &f.base_url, "URL", "The server; overrules --host and --port.", server});
  table.Add({"host", &f.host, "ADDRESS", "Address of the server.", server});
  table.Add({"port", &f.port, "", "Port of the server.", server, 0, {}, 1, 65535});
  table.Add({"backend", &f.backend, "", "Which API to use.", server, 0, {"openai", "openai-chat"}});
  table.Add({"endpoint", &f.endpoint, "PATH",
             "Path of the API. Default: /v1/completions, or /v1/chat/completions.", server});
  table.Add({"model", &f.model, "NAME", "Model to ask for. Default: the first that the server has.",
             server});
  Option key{"api-key", &f.api_key, "KEY", "Key to send.", server};
  key.secret = true;
  table.Add(std::move(key));
  table.Add({"ready-check-timeout-sec",
             &f.ready_timeout_s,
             "SECONDS",
             "How long to wait for the server to be ready.",
             server,
             0,
             {},
             0,
             1e6});

  const char* traffic = "Traffic";
  table.Add({"num-prompts", &f.num_prompts, "", "Requests to send.", traffic, 0, {}, 1, 1e7});
  table.Add({"request-rate",
             &f.request_rate,
             "PER_SECOND",
             "Requests per second; inf sends all at once.",
             traffic,
             0,
             {},
             1e-6});
  table.Add({"burstiness",
             &f.burstiness,
             "",
             "1: a Poisson process; below 1 burstier, above 1 more even.",
             traffic,
             0,
             {},
             1e-6,
             1e6});
  table.Add({"max-concurrency",
             &f.max_concurrency,
             "",
             "Requests under way at most. 0: no limit.",
             traffic,
             0,
             {},
             0,
             1e6});
  table.Add({"num-warmups",
             &f.num_warmups,
             "",
             "Requests to send before, unmeasured.",
             traffic,
             0,
             {},
             0,
             1e6});
  table.Add({"request-timeout",
             &f.request_timeout_s,
             "SECONDS",
             "A request fails after this long.",
             traffic,
             0,
             {},
             0.001,
             1e6});
  table.Add({"seed", &f.seed, "", "Of prompts and arrival times.", traffic, 0, {}, 0, 9e15});

  const char* data = "Requests";
  table.Add({"dataset-name",
             &f.dataset_name,
             "",
             "random: token ids (words for chat); jsonl: lines with \"prompt\" or \"messages\".",
             data,
             0,
             {"random", "jsonl"}});
  table.Add({"dataset-path", &f.dataset_path, "FILE", "The file of a jsonl dataset.", data});
  table.Add(
      {"random-input-len", &f.random_input_len, "TOKENS", "Prompt length.", data, 0, {}, 1, 1e7});
  table.Add({"random-output-len",
             &f.random_output_len,
             "TOKENS",
             "Output length; of jsonl lines that name none, too.",
             data,
             0,
             {},
             1,
             1e7});
  table.Add({"random-range-ratio",
             &f.random_range_ratio,
             "",
             "Lengths vary by this part up and down.",
             data,
             0,
             {},
             0,
             1});
  table.Add({"random-prefix-len",
             &f.random_prefix_len,
             "TOKENS",
             "Tokens before each prompt that are the same in all.",
             data,
             0,
             {},
             0,
             1e7});
  table.Add({"random-vocab-size",
             &f.random_vocab_size,
             "",
             "Token ids are below this.",
             data,
             0,
             {},
             1,
             1e7});
  table.Add({"ignore-eos", &f.ignore_eos, "", "Generate the full output length.", data});
  table.Add({"temperature", &f.temperature, "", "Sampling temperature.", data, 0, {}, 0, 100});

  const char* result = "Result";
  table.Add({"percentile-metrics", &f.percentile_metrics, "LIST",
             "Latencies to report: ttft, tpot, itl, e2el.", result});
  table.Add(
      {"metric-percentiles", &f.metric_percentiles, "LIST", "Percentiles to report.", result});
  table.Add({"goodput", &f.goodput, "LIST",
             "Count requests within limits in ms, for example ttft:200,tpot:50.", result});
  table.Add({"json", &f.json, "", "Print the result as JSON.", result});
  table.Add({"save-result", &f.save_result, "", "Write the result to a JSON file.", result});
  table.Add(
      {"save-detailed", &f.save_detailed, "", "With every request's numbers and text.", result});
  table.Add({"result-dir", &f.result_dir, "DIR", "Where that file goes.", result});
  table.Add({"result-filename", &f.result_filename, "FILE", "Its name.", result});
}

double ParseNumber(const std::string& text, const char* flag) {
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size() || !(value >= 0)) {
    Fail(ErrorKind::kInvalidArgument, "{}: '{}' is not a number", flag, text);
  }
  return value;
}

void CheckMetric(const std::string& metric, const char* flag) {
  for (const char* known : {"ttft", "tpot", "itl", "e2el"}) {
    if (metric == known) return;
  }
  Fail(ErrorKind::kInvalidArgument, "{}: '{}' is not one of ttft, tpot, itl, e2el", flag, metric);
}

std::vector<double> ParsePercentiles(const std::vector<std::string>& texts) {
  std::vector<double> percentiles;
  for (const std::string& text : texts) {
    percentiles.push_back(ParseNumber(text, "--metric-percentiles"));
    if (percentiles.back() > 100) {
      Fail(ErrorKind::kInvalidArgument, "--metric-percentiles: {} is more than 100", text);
    }
  }
  return percentiles;
}

std::map<std::string, double> ParseGoodput(const std::vector<std::string>& texts) {
  std::map<std::string, double> limits;
  for (const std::string& text : texts) {
    const size_t colon = std::min(text.find(':'), text.size());
    const std::string metric = text.substr(0, colon);
    CheckMetric(metric, "--goodput");
    if (metric == "itl") {
      Fail(ErrorKind::kInvalidArgument, "--goodput: itl is not of a request; use tpot");
    }
    limits[metric] = ParseNumber(text.substr(std::min(colon + 1, text.size())), "--goodput");
  }
  return limits;
}

// Waits until the server lists its models; returns the name to ask for.
std::string WaitForModel(const Endpoint& endpoint, const BenchFlags& flags) {
  const Stopwatch watch;
  std::string problem;
  do {
    try {
      const HttpReply reply = HttpCall(endpoint, "/v1/models", flags.api_key, "", 5);
      const auto json = nlohmann::json::parse(reply.body, nullptr, false);
      if (reply.status == 200 && json.is_object() && json.contains("data") &&
          json["data"].is_array() && !json["data"].empty() && json["data"][0].is_object()) {
        return flags.model.empty() ? json["data"][0].value("id", "") : flags.model;
      }
      problem = fmt::format("{}:{} answers /v1/models with {} {}", endpoint.host, endpoint.port,
                            reply.status, reply.body.substr(0, 200));
      if (reply.status == 401 || reply.status == 404) break;
    } catch (const Error& error) {
      problem = error.what();
    }
    StatusLine(fmt::format("waiting for the server: {}", problem));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  } while (watch.seconds() < flags.ready_timeout_s);
  StatusLine("");
  Fail(ErrorKind::kUnavailable, "no server to measure: {}", problem);
}

std::vector<LoadRequest> MakeRequests(const BenchFlags& flags, const std::string& model,
                                      int64_t count) {
  BenchDatasetOptions options;
  options.model = model;
  options.chat = flags.backend == "openai-chat";
  options.ignore_eos = flags.ignore_eos;
  options.temperature = flags.temperature;
  options.count = count;
  options.seed = static_cast<uint64_t>(flags.seed);
  options.input_tokens = flags.random_input_len;
  options.output_tokens = flags.random_output_len;
  options.range_ratio = flags.random_range_ratio;
  options.prefix_tokens = flags.random_prefix_len;
  options.vocab_size = flags.random_vocab_size;
  if (flags.dataset_name == "random") return MakeRandomRequests(options);
  if (flags.dataset_path.empty()) {
    Fail(ErrorKind::kInvalidArgument, "--dataset-path FILE is missing");
  }
  return ReadJsonLinesRequests(flags.dataset_path, options);
}

void SaveResult(const BenchFlags& flags, const std::string& model, const std::string& text) {
  std::string name = flags.result_filename;
  if (name.empty()) {
    const std::string base =
        model.substr(model.rfind('/') == std::string::npos ? 0 : model.rfind('/') + 1);
    char stamp[32];
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    std::strftime(stamp, sizeof(stamp), "%Y%m%d-%H%M%S", &parts);
    name = fmt::format("{}-{}qps-{}-{}.json", flags.backend, flags.request_rate, base, stamp);
  }
  std::error_code error;
  std::filesystem::create_directories(flags.result_dir, error);
  const std::filesystem::path path = std::filesystem::path(flags.result_dir) / name;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) Fail(ErrorKind::kIo, "{}: cannot write the result", path.string());
  fmt::print(stderr, "result written to {}\n", path.string());
}

}  // namespace

int BenchServeCommand(const Invocation& invocation) {
  CommandLine line(
      {"bench serve",
       "",
       "Send requests to a running OpenAI-compatible server and report throughput and "
       "latencies, with the flags and result keys of vLLM's `bench serve`. Each request has "
       "a connection of its own; times run from the moment it is opened.",
       {"moesaic bench serve --num-prompts 64 --max-concurrency 8 --ignore-eos",
        "moesaic bench serve --backend openai-chat --dataset-name jsonl --dataset-path "
        "prompts.jsonl"}});
  BenchFlags flags;
  AddFlags(flags, line.table());
  if (!line.Parse(invocation)) return 0;
  line.RequireAtMost(0);
  for (const std::string& metric : flags.percentile_metrics) {
    CheckMetric(metric, "--percentile-metrics");
  }
  const std::vector<double> percentiles = ParsePercentiles(flags.metric_percentiles);
  const std::map<std::string, double> goodput = ParseGoodput(flags.goodput);
  Endpoint endpoint{flags.host, std::to_string(flags.port), ""};
  if (!flags.base_url.empty()) endpoint = ParseBaseUrl(flags.base_url);
  const std::string path = !flags.endpoint.empty()          ? flags.endpoint
                           : flags.backend == "openai-chat" ? "/v1/chat/completions"
                                                            : "/v1/completions";

  const std::string model = WaitForModel(endpoint, flags);
  const std::vector<LoadRequest> requests = MakeRequests(flags, model, flags.num_prompts);
  LoadShape shape;
  shape.timeout_s = flags.request_timeout_s;
  if (flags.num_warmups > 0) {
    StatusLine("warming up");
    BenchFlags warm = flags;
    warm.seed = flags.seed + 1;  // other prompts: the measured ones must not be in a prefix cache
    const LoadRun run = RunLoad(endpoint, path, flags.api_key,
                                MakeRequests(warm, model, flags.num_warmups), shape, [](size_t) {});
    const LoadResult& first = run.results.front();
    if (!first.ok) {
      StatusLine("");
      Fail(ErrorKind::kUnavailable, "the first request failed: {}", first.error);
    }
  }
  shape.requests_per_s = flags.request_rate;
  shape.burstiness = flags.burstiness;
  shape.max_concurrency = flags.max_concurrency;
  shape.seed = static_cast<uint64_t>(flags.seed);
  const LoadRun run = RunLoad(endpoint, path, flags.api_key, requests, shape, [&](size_t done) {
    StatusLine(fmt::format("{} of {} requests", done, requests.size()));
  });
  StatusLine("");

  const BenchReport report = MakeBenchReport(run, percentiles, goodput);
  nlohmann::ordered_json json;
  json["date"] = fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)));
  json["backend"] = flags.backend;
  json["model_id"] = model;
  json["num_prompts"] = flags.num_prompts;
  if (std::isfinite(flags.request_rate)) {
    json["request_rate"] = flags.request_rate;
  } else {
    json["request_rate"] = "inf";
  }
  json["burstiness"] = flags.burstiness;
  json["max_concurrency"] = nullptr;
  if (flags.max_concurrency > 0) json["max_concurrency"] = flags.max_concurrency;
  json.update(BenchReportJson(report, flags.percentile_metrics, run, flags.save_detailed));
  const std::string text =
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  WriteOut(flags.json ? text : BenchReportText(report, flags.percentile_metrics));
  if (flags.save_result) SaveResult(flags, model, text);
  if (report.failed > 0) {
    std::map<std::string, int> errors;
    for (const LoadResult& result : run.results) {
      if (!result.ok) ++errors[result.error];
    }
    for (const auto& [error, count] : errors) {
      fmt::print(stderr, "failed: {} x {}\n", count, error);
    }
  }
  return report.completed > 0 ? 0 : 1;
}

}  // namespace moesaic
