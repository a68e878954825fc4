#include "core/config/model_family.h"

#include <string>

#include "core/base/error.h"

namespace moesaic {
namespace {

using nlohmann::json;

std::string SupportedArchitectures() {
  const auto families = ModelFamilies();
  std::string list;
  for (size_t i = 0; i < families.size(); ++i) {
    if (i > 0) list += i + 1 == families.size() ? " and " : ", ";
    list += families[i]->architecture;
  }
  return list;
}

}  // namespace

const ModelFamily& FindFamily(const JsonFields& config) {
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
  for (const ModelFamily* family : ModelFamilies()) {
    const bool of_type = !model_type.empty() && (model_type == family->model_type ||
                                                 model_type == family->other_model_type);
    if (architecture.empty() ? !of_type : wanted != family->architecture) continue;
    if (!model_type.empty() && !of_type) {
      config.FailAt(
          "model_type",
          fmt::format("is \"{}\", but architectures says {}, whose model_type is "
                      "\"{}\"",
                      model_type.substr(0, 80), family->architecture, family->model_type));
    }
    return *family;
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

}  // namespace moesaic
