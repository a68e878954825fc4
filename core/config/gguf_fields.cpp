#include "core/config/gguf_fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/config/family_fields.h"

namespace moesaic {

using nlohmann::json;

GgufFields::GgufFields(const GgufHeader& header, std::string_view name)
    : header_(header),
      all_(header.metadata, name),
      architecture_(all_.String("general.architecture", "")) {
  if (architecture_.empty()) all_.FailAt("general.architecture", "is missing");
}

std::string GgufFields::Key(std::string_view key) const {
  return fmt::format("{}.{}", architecture_, key);
}

bool GgufFields::HasTensor(std::string_view of_layer) const {
  const std::string end = fmt::format(".{}", of_layer);
  return std::any_of(header_.tensors.begin(), header_.tensors.end(), [&](const auto& tensor) {
    return tensor.first.starts_with("blk.") && tensor.first.ends_with(end);
  });
}

bool GgufFields::HasTensor(int64_t layer, std::string_view of_layer) const {
  return HasModelTensor(fmt::format("blk.{}.{}", layer, of_layer));
}

bool GgufFields::HasModelTensor(std::string_view name) const {
  return header_.tensors.contains(std::string(name));
}

int64_t GgufFields::Int(std::string_view key, int64_t least, int64_t most) const {
  if (!Has(key)) all_.FailAt(Key(key), "is missing");
  return all_.Int(Key(key), 0, least, most);
}

int64_t GgufFields::Int(std::string_view key, int64_t fallback, int64_t least, int64_t most) const {
  return all_.Int(Key(key), fallback, least, most);
}

double GgufFields::Number(std::string_view key, std::optional<double> fallback, double least,
                          double most) const {
  if (!Has(key) && !fallback) all_.FailAt(Key(key), "is missing");
  return all_.Number(Key(key), fallback.value_or(0.0), least, most);
}

int64_t GgufFields::IntOfAllLayers(std::string_view key, std::optional<int64_t> fallback,
                                   int64_t most) const {
  const json* const value = all_.Find(Key(key));
  if (value == nullptr || !value->is_array()) {
    return fallback && value == nullptr ? *fallback : Int(key, 1, most);
  }
  const std::vector<int64_t> values = all_.Ints(Key(key), 0, most);
  const bool uniform =
      !values.empty() && values.front() >= 1 &&
      std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == values.front(); });
  if (!uniform) {
    Unsupported(key, "differs between layers, which no model of this kind does that is served");
  }
  return values.front();
}

std::vector<bool> GgufFields::FlagsOfLayers(std::string_view key, int64_t layers) const {
  const json* const value = all_.Find(Key(key));
  if (value == nullptr || !value->is_array() || std::ssize(*value) < layers) {
    all_.FailAt(Key(key),
                fmt::format("expected an array of a boolean for each of {} layers", layers));
  }
  std::vector<bool> flags;
  flags.reserve(static_cast<size_t>(layers));
  for (int64_t layer = 0; layer < layers; ++layer) {
    const json& flag = (*value)[static_cast<size_t>(layer)];
    if (!flag.is_boolean()) {
      all_.FailAt(Key(key), fmt::format("entry {} is not a boolean", layer));
    }
    flags.push_back(flag.get<bool>());
  }
  return flags;
}

int64_t GgufFields::Experts() const { return Int("expert_count", 1, kMostExperts); }

int64_t GgufFields::DenseWidth() const {
  return Has("feed_forward_length")
             ? IntOfAllLayers("feed_forward_length", std::nullopt, kMostWidth)
             : 1;
}

int64_t GgufFields::ExpertWidth() const {
  return Has("expert_feed_forward_length") ? Int("expert_feed_forward_length", 1, kMostWidth)
                                           : Int("feed_forward_length", 1, kMostWidth);
}

bool GgufFields::NormalisedWeights(bool of_family) const {
  return all_.Bool(Key("expert_weights_norm"), of_family);
}

void GgufFields::RequireSigmoidRouter() const {
  constexpr int64_t kSigmoid = 2;  // llama.cpp's enum of gating functions
  if (Int("expert_gating_func", kSigmoid, 0, 100) != kSigmoid) {
    Unsupported("expert_gating_func", "is not 2 (sigmoid), which this architecture has");
  }
}

void GgufFields::Unsupported(std::string_view key, std::string_view problem) const {
  all_.FailAt(Key(key), problem, ErrorKind::kUnsupported);
}

}  // namespace moesaic
