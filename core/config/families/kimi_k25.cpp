// Kimi-K2.5 and K2.6: the text of a model that also sees, which is one of DeepSeek-V3's family
// (as Kimi-K2) in a configuration and under names of its own.
#include "core/config/family_fields.h"
#include "core/config/latent_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

void ReadKimiK25(const JsonFields& outer, ModelConfig& model) {
  const nlohmann::json text = TextConfig(outer);
  ReadDeepseekV3(JsonFields(text, outer.file(), "text_config."), "language_model.", model);
}

}  // namespace

const ModelFamily& KimiK25Family() {
  static constexpr ModelFamily kFamily = {"KimiK25ForConditionalGeneration", "kimi_k25",
                                          ReadKimiK25};
  return kFamily;
}

}  // namespace moesaic
