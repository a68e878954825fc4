#include "core/config/model_family.h"

#include <iterator>
#include <string>

#include "core/base/error.h"

namespace moesaic {
namespace {

using nlohmann::json;

constexpr FamilyDefaults kFamilies[] = {
    {ModelFamily::kQwen3Moe, "Qwen3MoeForCausalLM", "qwen3_moe", 151936, 2048, 6144, 24, 32, 4,
     32768, 1e-6, 1e4, "num_experts", 128, 8, 768, -1, -1, -1},
    {ModelFamily::kMixtral, "MixtralForCausalLM", "mixtral", 32000, 4096, 14336, 32, 32, 8, 131072,
     1e-5, 1e6, "num_local_experts", 8, 2, -1, 1, 2, -1},
    {ModelFamily::kQwen2Moe, "Qwen2MoeForCausalLM", "qwen2_moe", 151936, 2048, 5632, 24, 16, 16,
     32768, 1e-6, 1e4, "num_experts", 60, 4, 1408, -1, -1, -1},
    {ModelFamily::kOlmoe, "OlmoeForCausalLM", "olmoe", 50304, 2048, 2048, 16, 16, -1, 4096, 1e-5,
     1e4, "num_experts", 64, 8, -1, -1, 50279, 1},
};

std::string SupportedArchitectures() {
  std::string list;
  for (const FamilyDefaults& family : kFamilies) {
    if (!list.empty()) list += &family == std::end(kFamilies) - 1 ? " and " : ", ";
    list += family.architecture;
  }
  return list;
}

}  // namespace

const FamilyDefaults& FindFamily(const JsonFields& config) {
  const std::string model_type = config.String("model_type", "");
  const json* architectures = config.Find("architectures");
  std::string architecture;
  if (architectures != nullptr && !architectures->is_null()) {
    if (!architectures->is_array() ||
        (!architectures->empty() && !(*architectures)[0].is_string())) {
      config.FailAt("architectures", "expected a list of names");
    }
    if (!architectures->empty()) architecture = (*architectures)[0].get<std::string>();
  }
  const std::string_view wanted = architecture.empty() ? model_type : architecture;
  for (const FamilyDefaults& family : kFamilies) {
    if (wanted != (architecture.empty() ? family.model_type : family.architecture)) continue;
    if (!model_type.empty() && model_type != family.model_type) {
      config.FailAt("model_type",
                    fmt::format("is \"{}\", but architectures says {}, whose model_type is "
                                "\"{}\"",
                                model_type.substr(0, 80), family.architecture, family.model_type));
    }
    return family;
  }
  if (wanted.empty()) {
    config.FailAt("architectures",
                  "is missing, and so is model_type; is this the config.json of a "
                  "language model?");
  }
  config.FailAt(architecture.empty() ? "model_type" : "architectures",
                fmt::format("\"{}\" is not supported; supported are {}", wanted.substr(0, 80),
                            SupportedArchitectures()),
                ErrorKind::kUnsupported);
}

const char* ModelFamilyName(ModelFamily family) {
  for (const FamilyDefaults& entry : kFamilies) {
    if (entry.family == family) return entry.model_type;
  }
  return "unknown";
}

}  // namespace moesaic
