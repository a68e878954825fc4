#include "core/base/file.h"
#include "core/base/json_fields.h"
#include "core/config/model_config.h"

namespace moesaic {

GenerationDefaults ParseGenerationConfig(std::string_view text, std::string_view name) {
  const nlohmann::json object = ParseJsonObject(text, name);
  const JsonFields config(object, name);
  GenerationDefaults result;
  // A null is how the file says that it has no opinion.
  const auto number = [&](const char* key, double least, double most) {
    return config.OptionalNumber(key, least, most).value_or(-1.0);
  };
  result.temperature = number("temperature", 0.0, 100.0);
  result.top_p = number("top_p", 0.0, 1.0);
  result.min_p = number("min_p", 0.0, 1.0);
  result.repetition_penalty = number("repetition_penalty", 1e-3, 1e3);
  result.top_k = config.OptionalInt("top_k", -1, -1, INT32_MAX).value_or(-1);
  if (!config.Absent("do_sample")) result.do_sample = config.Bool("do_sample", true);
  for (const int64_t id : config.Ints("eos_token_id", 0, INT32_MAX)) {
    result.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  result.bos_token_id =
      static_cast<int32_t>(config.OptionalInt("bos_token_id", -1, -1, INT32_MAX).value_or(-1));
  return result;
}

GenerationDefaults LoadGenerationDefaults(const std::filesystem::path& model_dir) {
  constexpr uint64_t kMostBytes = 1 << 20;
  const std::filesystem::path path = model_dir / "generation_config.json";
  if (!std::filesystem::exists(path)) return {};
  return ParseGenerationConfig(ReadTextFile(path, kMostBytes), path.string());
}

}  // namespace moesaic
