#include "core/config/rope_config.h"

#include <string>

namespace moesaic {
namespace {

using nlohmann::json;

constexpr double kMostTheta = 1e15;
constexpr double kMostFactor = 1e6;
constexpr int64_t kMostRopePosition = int64_t{1} << 31;

RopeKind ParseKind(const JsonFields& rope) {
  // `type` is the older name of `rope_type`.
  const char* key = rope.Absent("rope_type") ? "type" : "rope_type";
  if (rope.Absent(key)) return RopeKind::kDefault;
  const std::string kind = rope.String(key, "");
  if (kind == "default") return RopeKind::kDefault;
  if (kind == "linear") return RopeKind::kLinear;
  if (kind == "dynamic") return RopeKind::kDynamicNtk;
  if (kind == "yarn") return RopeKind::kYarn;
  if (kind == "llama3") return RopeKind::kLlama3;
  rope.FailAt(key,
              fmt::format("the rope kind \"{}\" is not supported; supported are default, linear, "
                          "dynamic, yarn and llama3",
                          kind.substr(0, 80)),
              ErrorKind::kUnsupported);
}

double RequiredNumber(const JsonFields& rope, const char* key, double least, double most) {
  if (rope.Absent(key)) rope.FailAt(key, "is missing, and this rope kind needs it");
  return rope.Number(key, 0.0, least, most);
}

void ReadYarn(const JsonFields& rope, RopeConfig& result) {
  result.beta_fast = rope.OptionalNumber("beta_fast", 1e-6, 1e6).value_or(result.beta_fast);
  result.beta_slow = rope.OptionalNumber("beta_slow", 1e-6, 1e6).value_or(result.beta_slow);
  if (result.beta_fast < result.beta_slow) {
    rope.FailAt("beta_fast", fmt::format("is {}, expected at least beta_slow, {}", result.beta_fast,
                                         result.beta_slow));
  }
  result.attention_factor = rope.OptionalNumber("attention_factor", 0.0, 1e6).value_or(0.0);
  result.mscale = rope.OptionalNumber("mscale", 0.0, 1e6).value_or(0.0);
  result.mscale_all_dim = rope.OptionalNumber("mscale_all_dim", 0.0, 1e6).value_or(0.0);
  result.truncate = rope.Bool("truncate", true);
}

void ReadLlama3(const JsonFields& rope, RopeConfig& result) {
  result.low_freq_factor = RequiredNumber(rope, "low_freq_factor", 1e-6, 1e6);
  result.high_freq_factor = RequiredNumber(rope, "high_freq_factor", 1e-6, 1e6);
  if (result.high_freq_factor <= result.low_freq_factor) {
    rope.FailAt("high_freq_factor", fmt::format("is {}, expected more than low_freq_factor, {}",
                                                result.high_freq_factor, result.low_freq_factor));
  }
}

// transformers takes `rope_scaling` when both objects are there (an empty one counts as absent).
JsonFields RopeObject(const JsonFields& config) {
  static const json kNone = json::object();
  const json* scaling = config.Find("rope_scaling");
  const bool has_scaling = scaling != nullptr && !scaling->is_null() && !scaling->empty();
  const char* key = has_scaling ? "rope_scaling" : "rope_parameters";
  const json& object = config.Absent(key) ? kNone : *config.Find(key);
  if (!object.is_object()) config.FailAt(key, "is not an object");
  return JsonFields(object, config.file(), std::string(key) + ".");
}

}  // namespace

RopeConfig ParseRopeConfig(const JsonFields& config, double default_theta, int64_t max_position) {
  const JsonFields rope = RopeObject(config);
  RopeConfig result;
  result.theta = config.Number("rope_theta", default_theta, 1.0, kMostTheta);
  if (!rope.Absent("rope_theta")) result.theta = rope.Number("rope_theta", 0.0, 1.0, kMostTheta);
  result.kind = ParseKind(rope);
  result.original_max_position = max_position;
  if (result.kind == RopeKind::kDefault) return result;

  if (result.kind == RopeKind::kYarn || result.kind == RopeKind::kLlama3) {
    if (!rope.Absent("original_max_position_embeddings")) {
      result.original_max_position =
          rope.Int("original_max_position_embeddings", 0, 1, kMostRopePosition);
    }
    // The key at the top of config.json overrides the one inside.
    if (!config.Absent("original_max_position_embeddings")) {
      result.original_max_position =
          config.Int("original_max_position_embeddings", 0, 1, kMostRopePosition);
    }
  }
  const json* factor = rope.Find("factor");
  if (result.kind == RopeKind::kYarn && factor != nullptr && factor->is_null()) {
    result.factor =
        static_cast<double>(max_position) / static_cast<double>(result.original_max_position);
  } else {
    result.factor = RequiredNumber(rope, "factor", 1e-6, kMostFactor);
  }
  if (result.kind == RopeKind::kYarn) ReadYarn(rope, result);
  if (result.kind == RopeKind::kYarn && result.theta <= 1.0) {
    rope.FailAt("rope_theta",
                "is 1, expected more than 1 for yarn, whose formula divides by its "
                "logarithm");
  }
  if (result.kind == RopeKind::kLlama3) ReadLlama3(rope, result);
  return result;
}

double ParseRotaryShare(const JsonFields& config, double fallback) {
  const double outside =
      config.OptionalNumber("partial_rotary_factor", 0.0, 1.0).value_or(fallback);
  return RopeObject(config).OptionalNumber("partial_rotary_factor", 0.0, 1.0).value_or(outside);
}

}  // namespace moesaic
