#include "serving/api/ollama_models.h"

#include "serving/api/chat_format.h"
#include "serving/api/ollama_request.h"
#include "serving/api/request_fields.h"
#include "serving/api/utc_text.h"
#include "serving/text/chat_template.h"

namespace moesaic {
namespace {

Json DetailsOf(const ServedModel& model) {
  // Known once it is loaded.
  const std::string family = model.engine != nullptr ? model.engine->config().model_type : "";
  Json details = Json::object();
  details["parent_model"] = "";
  details["format"] = "safetensors";
  details["family"] = family;
  details["families"] = Json::array({family});
  return details;
}

Json CapabilitiesOf(const ServedModel& model) {
  Json capabilities = Json::array({"completion"});
  if (model.chat_format == nullptr) return capabilities;
  const ChatSyntax& syntax = model.chat_format->syntax;
  if (syntax.calls != nullptr || syntax.channels) capabilities.push_back("tools");
  if (syntax.reasoning != nullptr || syntax.channels) capabilities.push_back("thinking");
  return capabilities;
}

}  // namespace

std::string OllamaModels(const ModelTable& models, bool running) {
  Json list = Json::array();
  for (const ServedModel& model : models.models()) {
    if (running && model.engine == nullptr) continue;
    for (const std::string& name : model.names) {
      Json json = Json::object();
      json["name"] = name;
      json["model"] = name;
      json[running ? "expires_at" : "modified_at"] =
          running ? "9999-12-31T23:59:59Z" : UtcText(model.created_unix_s);
      json["details"] = DetailsOf(model);
      if (running) json["context_length"] = model.engine->max_context_tokens();
      list.push_back(std::move(json));
    }
  }
  return DumpJson(Json{{"models", std::move(list)}});
}

std::string OllamaShow(const ModelTable& models, std::string_view body,
                       const std::atomic<bool>& gone) {
  const JsonDocument document(body, {}, &gone);
  RequestFields fields(document);
  // The older name of the field.
  const auto older = fields.String("name");
  const std::string name = fields.String("model").value_or(older.value_or(""));
  if (name.empty()) throw BadParam("model", "model is missing.");
  const ServedModel& model = models.Get(WithoutLatestTag(name));
  const std::string& family = model.engine->config().model_type;
  Json info = Json::object();
  info["general.architecture"] = family;
  info[family + ".context_length"] = model.engine->max_context_tokens();
  Json json = Json::object();
  json["modified_at"] = UtcText(model.created_unix_s);
  json["details"] = DetailsOf(model);
  json["model_info"] = std::move(info);
  json["template"] = model.chat_template == nullptr ? "" : model.chat_template->text();
  json["capabilities"] = CapabilitiesOf(model);
  return DumpJson(json);
}

}  // namespace moesaic
