#include "serving/cli/shared_simulation_job.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <span>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/units.h"
#include "kernels/cpu/kernels.h"
#include "serving/simulate/arrival_file.h"
#include "tracer/routing_trace.h"

namespace moesaic {
namespace {

constexpr uint64_t kMostArrivalBytes = uint64_t{1} << 30;
constexpr double kMostSeconds = 31 * 86400.0;  // that are simulated

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  size_t begin = 0;
  while (true) {
    const size_t comma = text.find(',', begin);
    words.push_back(text.substr(begin, comma - begin));
    if (comma == std::string::npos) return words;
    begin = comma + 1;
  }
}

// The model's of a list with an entry for all or one for each.
template <typename T>
T Of(const std::vector<T>& list, size_t model) {
  return list[list.size() == 1 ? 0 : model];
}

template <typename T>
void CheckCount(const std::vector<T>& list, size_t models, const std::string& option) {
  if (list.size() == 1 || list.size() == models) return;
  Fail(ErrorKind::kInvalidArgument, "--{}: {} values for {} traces; give one for all or one each",
       option, list.size(), models);
}

std::vector<uint64_t> ParseSizes(const std::string& text, const std::string& option) {
  std::vector<uint64_t> sizes;
  for (const std::string& word : Words(text)) sizes.push_back(ParseBytes(word, "--" + option));
  return sizes;
}

int64_t NanosecondsOf(double us) { return std::llround(us * 1000); }

double Quantile(const std::vector<double>& ascending, double q) {
  const auto at = static_cast<size_t>(q * static_cast<double>(ascending.size()));
  return ascending[std::min(ascending.size() - 1, at)];
}

struct Latencies {
  std::vector<double> all;                    // seconds, ascending
  std::vector<std::vector<double>> of_model;  // likewise
};

Latencies LatenciesOf(const SharedResult& result, std::span<const SharedRequest> requests,
                      double warm_up_s) {
  Latencies latencies;
  latencies.of_model.resize(result.models.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    if (static_cast<double>(requests[i].at_ns) < warm_up_s * 1e9) continue;
    const double seconds = static_cast<double>(result.latency_ns[i]) * 1e-9;
    latencies.all.push_back(seconds);
    latencies.of_model[requests[i].model].push_back(seconds);
  }
  std::sort(latencies.all.begin(), latencies.all.end());
  for (auto& of_model : latencies.of_model) std::sort(of_model.begin(), of_model.end());
  return latencies;
}

nlohmann::ordered_json Summary(const std::vector<double>& ascending) {
  nlohmann::ordered_json json;
  json["requests"] = ascending.size();
  if (ascending.empty()) return json;
  json["mean_s"] = std::accumulate(ascending.begin(), ascending.end(), 0.0) /
                   static_cast<double>(ascending.size());
  json["p50_s"] = Quantile(ascending, 0.5);
  json["p99_s"] = Quantile(ascending, 0.99);
  return json;
}

nlohmann::ordered_json ToJson(const SharedResult& result, const Latencies& latencies) {
  nlohmann::ordered_json json = Summary(latencies.all);
  uint64_t read = 0;
  uint64_t moved = 0;
  int64_t blocked_ns = 0;
  int64_t loads = 0;
  uint64_t accesses = 0;
  uint64_t hits = 0;
  auto models = nlohmann::ordered_json::array();
  for (size_t i = 0; i < result.models.size(); ++i) {
    const SharedResult::Model& model = result.models[i];
    read += model.read_bytes;
    moved += model.given_bytes;
    blocked_ns += model.blocked_ns;
    loads += model.loads;
    accesses += model.expert_accesses;
    hits += model.hits;
    nlohmann::ordered_json of_model = Summary(latencies.of_model[i]);
    of_model["steps"] = model.steps;
    of_model["loads"] = model.loads;
    of_model["blocked_s"] = static_cast<double>(model.blocked_ns) * 1e-9;
    of_model["read_bytes"] = model.read_bytes;
    of_model["hit_rate"] = static_cast<double>(model.hits) /
                           static_cast<double>(std::max<uint64_t>(1, model.expert_accesses));
    of_model["moved_bytes"] = model.given_bytes;
    of_model["expert_bytes"] = model.expert_bytes;
    models.push_back(std::move(of_model));
  }
  json["read_bytes"] = read;
  json["moved_bytes"] = moved;
  json["blocked_s"] = static_cast<double>(blocked_ns) * 1e-9;
  json["loads"] = loads;
  json["hit_rate"] =
      static_cast<double>(hits) / static_cast<double>(std::max<uint64_t>(1, accesses));
  json["most_bytes"] = result.most_bytes;
  json["seconds"] = static_cast<double>(result.end_ns) * 1e-9;
  json["models"] = std::move(models);
  return json;
}

}  // namespace

std::vector<double> ParseNumbers(const std::string& text, const std::string& option) {
  std::vector<double> numbers;
  for (const std::string& word : Words(text)) {
    double number = -1;
    try {
      size_t used = 0;
      number = std::stod(word, &used);
      if (used != word.size()) number = -1;
    } catch (const std::exception&) {
    }
    if (!(number >= 0 && number <= 1e12)) {
      Fail(ErrorKind::kInvalidArgument, "--{}: '{}' is no number from 0 on", option, word);
    }
    numbers.push_back(number);
  }
  return numbers;
}

void SharedSimulationJob::AddOptions(OptionTable& table) {
  const std::string section = "Several traces";
  table.Add({"arrivals", &arrivals_, "FILE",
             "When requests come and how long they are: comma-separated values with a header, such "
             "as the Azure LLM inference traces. Must be given.",
             section});
  table.Add({"rate",
             &rate_,
             "R",
             "Requests a second that the arrivals are stretched to (0: as they are).",
             section,
             0,
             {},
             0,
             1e9});
  table.Add(
      {"requests", &most_requests_, "N", "Of the arrivals, at most (0: all).", section, 0, {}, 0});
  table.Add(
      {"skip", &skip_, "N", "Arrivals that are left out at the beginning.", section, 0, {}, 0});
  table.Add({"shares", &shares_, "LIST",
             "Where the arrivals name no model: what share of the requests each model gets, such "
             "as .9,.1. Default: the same.",
             section});
  table.Add({"seed", &seed_, "N", "Which of them it gets.", section, 0, {}, 0});
  table.Add(
      {"max-prompt", &most_prompt_, "N", "Longer prompts are cut (0: none).", section, 0, {}, 0});
  table.Add(
      {"max-answer", &most_answer_, "N", "Longer answers are cut (0: none).", section, 0, {}, 0});
  table.Add({"warm-up",
             &warm_up_s_,
             "S",
             "Requests that come in the first seconds are not counted.",
             section,
             0,
             {},
             0,
             1e9});
  table.Add({"memory", &memory_, "SIZE",
             "For all models together; a share is one of all that they have. Must be given.",
             section});
  table.Add({"expert-size", &expert_size_, "LIST",
             "Bytes of an expert, of all models or of each: 768KiB,3MiB. Must be given.", section});
  table.Add({"other-size", &other_size_, "LIST",
             "Memory that a model takes besides experts, of all or of each.", section});
  table.Add({"load-ms", &load_ms_, "LIST",
             "What loading a model as a whole takes before anything of it is read, of all or of "
             "each.",
             section});
  table.Add({"preload", &preload_, "",
             "Begin with empty caches, not with what servers read before the first request.",
             section});
  table.Add({"min-experts", &min_experts_, "SIZE",
             "Memory of experts that a model keeps in any case; a share is one of its own experts.",
             section});
  table.Add(
      {"link-rate", SizeInBytes(&link_rate_), "SIZE", "Bytes a second that are read.", section});
  table.Add({"expert-compute-us", &expert_compute_us_, "LIST",
             "Computing an expert of a layer, of all models or of each.", section});
  table.Add({"max-num-seqs",
             &most_seqs_,
             "N",
             "Requests that a model runs at once.",
             section,
             0,
             {},
             1,
             4096});
}

std::vector<SharedRequest> SharedSimulationJob::Requests(size_t models) const {
  if (arrivals_.empty()) Fail(ErrorKind::kInvalidArgument, "--arrivals is missing");
  std::vector<Arrival> arrivals =
      ParseArrivals(ReadTextFile(arrivals_, kMostArrivalBytes), arrivals_);
  if (skip_ >= std::ssize(arrivals)) {
    Fail(ErrorKind::kInvalidArgument, "--skip: {} has {} arrivals", arrivals_, arrivals.size());
  }
  arrivals.erase(arrivals.begin(), arrivals.begin() + skip_);
  if (most_requests_ > 0 && most_requests_ < std::ssize(arrivals)) {
    arrivals.resize(static_cast<size_t>(most_requests_));
  }
  std::vector<double> shares(models, 1.0);
  if (!shares_.empty()) shares = ParseNumbers(shares_, "shares");
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (shares.size() != models || all <= 0) {
    Fail(ErrorKind::kInvalidArgument, "--shares: '{}' has to be {} numbers, of which one is not 0",
         shares_, models);
  }
  const double first_s = arrivals.front().at_s;
  const double span_s = arrivals.back().at_s - first_s;
  const double stretch =
      rate_ > 0 && span_s > 0 ? static_cast<double>(arrivals.size() - 1) / rate_ / span_s : 1;
  if (span_s * stretch > kMostSeconds) {
    Fail(ErrorKind::kInvalidArgument,
         "--arrivals: they last for {:.0f} s, more than {:.0f}; take fewer (--requests) or stretch "
         "them to a higher --rate",
         span_s * stretch, kMostSeconds);
  }
  std::mt19937_64 random(static_cast<uint64_t>(seed_));
  std::vector<SharedRequest> requests;
  requests.reserve(arrivals.size());
  for (const Arrival& arrival : arrivals) {
    SharedRequest request;
    request.at_ns = std::llround((arrival.at_s - first_s) * stretch * 1e9);
    // Not a distribution of the library's: the same everywhere.
    double draw = static_cast<double>(random() >> 11) * 0x1p-53 * all;
    while (request.model + 1 < models && draw >= shares[request.model]) {
      draw -= shares[request.model++];
    }
    if (arrival.model >= 0) {
      if (arrival.model >= static_cast<int64_t>(models)) {
        Fail(ErrorKind::kInvalidArgument, "--arrivals: {} names model {}, but there are {} traces",
             arrivals_, arrival.model, models);
      }
      request.model = static_cast<size_t>(arrival.model);
    }
    const auto cut = [](int64_t tokens, int64_t most) {
      return most > 0 ? std::min(tokens, most) : tokens;
    };
    request.prompt_tokens = cut(arrival.prompt_tokens, most_prompt_);
    request.answer_tokens = cut(arrival.answer_tokens, most_answer_);
    requests.push_back(request);
  }
  return requests;
}

nlohmann::ordered_json SharedSimulationJob::Run(const Common& common) const {
  const size_t count = common.traces.size();
  if (memory_.is_auto()) Fail(ErrorKind::kInvalidArgument, "--memory is missing");
  if (expert_size_.empty()) Fail(ErrorKind::kInvalidArgument, "--expert-size is missing");
  const std::vector<uint64_t> expert_bytes = ParseSizes(expert_size_, "expert-size");
  const std::vector<uint64_t> other_bytes = ParseSizes(other_size_, "other-size");
  const std::vector<double> expert_us = ParseNumbers(expert_compute_us_, "expert-compute-us");
  CheckCount(expert_bytes, count, "expert-size");
  CheckCount(other_bytes, count, "other-size");
  CheckCount(expert_us, count, "expert-compute-us");
  const std::vector<double> load_ms = ParseNumbers(load_ms_, "load-ms");
  CheckCount(load_ms, count, "load-ms");
  CheckCount(common.layer_compute_us, count, "layer-compute-us");
  std::vector<RoutingTrace> traces;
  traces.reserve(count);
  for (const std::string& file : common.traces) traces.push_back(ReadRoutingTrace(file));
  std::vector<SharedModel> models;
  uint64_t whole_bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const RoutingTraceHeader& header = traces[i].header;
    SharedModel& model = models.emplace_back();
    model.trace = &traces[i];
    model.expert_bytes = Of(expert_bytes, i);
    model.other_bytes = Of(other_bytes, i);
    model.layer_compute_ns = NanosecondsOf(Of(common.layer_compute_us, i));
    model.expert_compute_ns = NanosecondsOf(Of(expert_us, i));
    model.load_ns = NanosecondsOf(1000 * Of(load_ms, i));
    const uint64_t experts = CheckedMul(
        model.expert_bytes,
        static_cast<uint64_t>(header.num_layers) * static_cast<uint64_t>(header.num_experts),
        "--expert-size");
    model.floor_bytes =
        std::min(experts, min_experts_.is_auto() ? 0 : min_experts_.BytesOf(experts));
    whole_bytes = CheckedAdd(whole_bytes, CheckedAdd(experts, model.other_bytes, "--other-size"),
                             "--other-size");
  }
  SharedOptions options;
  options.memory_bytes = memory_.BytesOf(whole_bytes);
  options.link_bytes_per_s = link_rate_;
  options.preload = preload_;
  options.most_seqs = most_seqs_;
  options.predictor = common.predictor;
  options.prefetch = common.prefetch;
  const std::vector<SharedRequest> requests = Requests(count);
  nlohmann::ordered_json json;
  json["traces"] = common.traces;
  json["memory_bytes"] = options.memory_bytes;
  json["whole_bytes"] = whole_bytes;
  json["arrivals"] = requests.size();
  auto& policies = json["sharing"] = nlohmann::ordered_json::object();
  for (const auto& [name, sharing] : kMemorySharings) {
    options.sharing = sharing;
    const SharedResult result = SimulateShared(models, requests, options, SelectKernels());
    policies[name] = ToJson(result, LatenciesOf(result, requests, warm_up_s_));
  }
  return json;
}

}  // namespace moesaic
