// The text of Qwen3.5 and 3.6 MoE as a model of its own, as transformers saves it: the names of
// other models, and a tensor for each matrix of an expert.
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

void ReadQwen35MoeText(const JsonFields& config, ModelConfig& model) {
  ReadQwen35Text(config, "model.", model);
}

}  // namespace

const ModelFamily& Qwen35MoeTextFamily() {
  static constexpr ModelFamily kFamily = {"Qwen3_5MoeForCausalLM", "qwen3_5_moe_text",
                                          ReadQwen35MoeText};
  return kFamily;
}

}  // namespace moesaic
