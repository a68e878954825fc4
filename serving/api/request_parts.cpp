#include "serving/api/request_parts.h"

#include <charconv>

#include <utility>

#include "serving/api/keep_alive.h"

namespace moesaic {
namespace {

constexpr size_t kMaxStops = 16;        // OpenAI has 4; evaluation harnesses send a few more
constexpr size_t kMaxStopBytes = 1024;  // text is held back for as long as a stop may be
constexpr double kMaxTemperature = 100.0;
constexpr double kMaxPenalty = 2.0;  // OpenAI's range, of both signs
constexpr double kMaxBias = 100.0;

std::vector<std::pair<int32_t, float>> ParseLogitBias(RequestFields& fields) {
  std::vector<std::pair<int32_t, float>> biases;
  const Json* value = fields.Find("logit_bias");
  if (value == nullptr) return biases;
  if (!value->is_object()) {
    throw BadParam("logit_bias",
                   "logit_bias must be an object from token ids to numbers, it is {}.",
                   JsonTypeName(*value));
  }
  for (const auto& item : value->items()) {
    const std::string& key = item.key();
    int32_t token = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token < 0) {
      throw BadParam("logit_bias", "logit_bias has the key \"{}\", which is not a token id.",
                     Excerpt(key, 40));
    }
    if (!item.value().is_number()) {
      throw BadParam("logit_bias", "logit_bias of token {} must be a number, it is {}.", token,
                     JsonTypeName(item.value()));
    }
    const double bias = item.value().get<double>();
    if (!(bias >= -kMaxBias && bias <= kMaxBias)) {
      throw BadParam("logit_bias", "logit_bias of token {} must be between -100 and 100, it is {}.",
                     token, bias);
    }
    biases.emplace_back(token, static_cast<float>(bias));
  }
  return biases;
}

}  // namespace

SamplingFields ParseSampling(RequestFields& fields) {
  SamplingFields sampling;
  sampling.temperature = fields.Number("temperature", 0, kMaxTemperature);
  sampling.top_p = fields.Number("top_p", 0, 1);
  if (sampling.top_p == 0.0) {
    throw BadParam(
        "top_p",
        "top_p must be greater than 0, which would leave no token to choose; for the most "
        "likely token alone use temperature 0.");
  }
  sampling.min_p = fields.Number("min_p", 0, 1);
  sampling.repetition_penalty = fields.Number("repetition_penalty", 1e-3, 1e3);
  sampling.presence_penalty = fields.Number("presence_penalty", -kMaxPenalty, kMaxPenalty);
  sampling.frequency_penalty = fields.Number("frequency_penalty", -kMaxPenalty, kMaxPenalty);
  if (const auto top_k = fields.Int("top_k", -1, INT32_MAX)) {
    sampling.top_k = static_cast<int32_t>(*top_k);
  }
  if (const Json* seed = fields.Find("seed")) {
    // Any 64-bit integer; the sign only makes it another seed.
    if (!seed->is_number_integer()) {
      throw BadParam("seed", "seed must be a 64-bit integer, it is {}.", JsonTypeName(*seed));
    }
    sampling.seed = seed->is_number_unsigned() ? seed->get<uint64_t>()
                                               : static_cast<uint64_t>(seed->get<int64_t>());
  }
  sampling.logit_bias = ParseLogitBias(fields);
  return sampling;
}

std::vector<std::string> ParseStop(RequestFields& fields, std::string_view name) {
  const Json* value = fields.Find(name);
  std::vector<std::string> stops;
  if (value == nullptr) return stops;
  if (value->is_string()) {
    stops.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    for (const Json& item : *value) {
      if (!item.is_string()) {
        throw BadParam(name, "{} must hold strings, item {} is {}.", name, stops.size(),
                       JsonTypeName(item));
      }
      stops.push_back(item.get<std::string>());
    }
  } else {
    throw BadParam(name, "{} must be a string or an array of strings, it is {}.", name,
                   JsonTypeName(*value));
  }
  if (stops.size() > kMaxStops) {
    throw BadParam(name, "{} must have at most {} strings, it has {}.", name, kMaxStops,
                   stops.size());
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) throw BadParam(name, "{} must not contain an empty string.", name);
    if (stop.size() > kMaxStopBytes) {
      throw BadParam(name, "a stop string must have at most {} bytes, one has {}.", kMaxStopBytes,
                     stop.size());
    }
  }
  return stops;
}

std::optional<int32_t> ParseTokenCount(RequestFields& fields, std::string_view name, int32_t min) {
  const auto count = fields.Int(name, min, INT32_MAX);
  return count.has_value() ? std::optional(static_cast<int32_t>(*count)) : std::nullopt;
}

void ParseTreatment(RequestFields& fields, ApiRequest& request) {
  request.keep_alive = ReadKeepAlive(fields);
  const auto priority = fields.Int("priority", INT32_MIN, INT32_MAX);
  if (priority) request.priority = static_cast<int32_t>(*priority);
}

void KeepUnknown(const RequestFields& fields, ApiRequest& request) {
  for (std::string& name : fields.UnknownNames()) request.unknown_fields.push_back(std::move(name));
}

}  // namespace moesaic
