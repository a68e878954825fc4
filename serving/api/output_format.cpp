#include "serving/api/output_format.h"

#include <utility>

#include "serving/api/api_request.h"
#include "serving/grammar/schema_check.h"
#include "serving/grammar/text_limits.h"

namespace moesaic {
namespace {

constexpr int kMaxWhitespaceBytes = 16;  // between two things of JSON in a structural tag
constexpr size_t kMaxChoices = 1024;
constexpr size_t kMaxChoiceBytes = 64 << 10;  // of all

void SetFormat(GrammarSpec spec, std::string_view param, ApiRequest& request) {
  if (request.format) {
    throw BadParam(param, "{} and {} exclude each other.", param, request.format->param);
  }
  request.format = OutputFormat{std::string(param), std::move(spec)};
}

// `work` finds faults by Error; they are the field's.
template <typename Work>
auto OfParam(std::string_view param, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw BadParam(param, "{}: {}.", param, error.what());
  }
}

Json Checked(const Json& schema, std::string_view param) {
  return OfParam(param, [&] { return CheckSchema(schema); });
}

// vLLM takes a schema as an object or as its text.
Json SchemaOf(const Json& value) {
  return value.is_string() ? ParseJson(value.get_ref<const std::string&>()) : value;
}

void SetText(GrammarPart::Kind kind, const Json& value, std::string_view param,
             ApiRequest& request) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    throw BadParam(param, "{} must be a string that is not empty.", param);
  }
  GrammarPart part{.kind = kind, .text = value.get<std::string>()};
  OfParam(param, [&] { CheckGrammarText(part.text); });
  SetFormat(SpecOf(std::move(part)), param, request);
}

void SetChoice(const Json& value, std::string_view param, ApiRequest& request) {
  if (!value.is_array() || value.empty() || value.size() > kMaxChoices) {
    throw BadParam(param, "{} must be an array of 1 to {} strings.", param, kMaxChoices);
  }
  GrammarSpec spec;
  for (const Json& choice : value) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      throw BadParam(param, "{} must be an array of strings that are not empty.", param);
    }
    spec.alternatives.push_back({{.kind = GrammarPart::Kind::kText, .text = choice}});
  }
  if (spec.bytes() > kMaxChoiceBytes) {
    throw BadParam(param, "the texts of {} are longer than {} bytes in all.", param,
                   kMaxChoiceBytes);
  }
  SetFormat(std::move(spec), param, request);
}

// Checks what a structural tag holds: schemas, expressions, grammars.
void CheckTag(Json& value, std::string_view param) {
  if (value.is_array()) {
    for (Json& item : value) CheckTag(item, param);
    return;
  }
  if (!value.is_object()) return;
  // As of other schemas, or a model could write spaces until its tokens are used up.
  if (value.contains("json_schema") && !value.contains("max_whitespace_cnt")) {
    value["max_whitespace_cnt"] = kMaxWhitespaceBytes;
  }
  for (auto& [name, member] : value.items()) {
    // "schema" is the name in the older form, {"structures": [{"begin", "schema", "end"}]}.
    if (name == "json_schema" || name == "schema") {
      member = Checked(member, param);
    } else if ((name == "pattern" || name == "grammar") && member.is_string()) {
      const std::string& text = member.get_ref<const std::string&>();
      OfParam(param, [&] { CheckGrammarText(text); });
    } else {
      CheckTag(member, param);
    }
  }
}

void SetTag(const Json& value, std::string_view param, ApiRequest& request) {
  Json tag = SchemaOf(value);
  if (!tag.is_object()) throw BadParam(param, "{} must be an object.", param);
  CheckTag(tag, param);
  SetFormat(SpecOf({.kind = GrammarPart::Kind::kStructuralTag, .text = DumpJson(tag)}), param,
            request);
}

void ReadStructuredOutputs(const Json& value, ApiRequest& request) {
  RequestFields fields(value, "structured_outputs.");
  const auto name = [&fields](const char* field) { return fields.Name(field); };
  if (const Json* schema = fields.Find("json")) {
    SetJsonFormat(SchemaOf(*schema), name("json"), request);
  }
  if (fields.Bool("json_object").value_or(false)) SetAnyJsonFormat(name("json_object"), request);
  if (const Json* text = fields.Find("regex")) {
    SetText(GrammarPart::Kind::kRegex, *text, name("regex"), request);
  }
  if (const Json* list = fields.Find("choice")) SetChoice(*list, name("choice"), request);
  if (const Json* text = fields.Find("grammar")) {
    SetText(GrammarPart::Kind::kEbnf, *text, name("grammar"), request);
  }
  if (const Json* tag = fields.Find("structural_tag")) {
    SetTag(*tag, name("structural_tag"), request);
  }
  for (std::string& unknown : fields.UnknownNames()) {
    request.unknown_fields.push_back(std::move(unknown));
  }
}

}  // namespace

void SetJsonFormat(const Json& schema, std::string_view param, ApiRequest& request) {
  SetFormat(
      SpecOf({.kind = GrammarPart::Kind::kJsonSchema, .text = DumpJson(Checked(schema, param))}),
      param, request);
}

void SetAnyJsonFormat(std::string_view param, ApiRequest& request) {
  SetJsonFormat(Json{{"type", "object"}}, param, request);
}

void ReadResponseFormat(const Json& format, std::string_view param, ApiRequest& request) {
  RequestFields fields(format, std::string(param) + ".");
  const std::string type = fields.String("type").value_or("text");
  if (type == "text") return;
  if (type == "structural_tag") return SetTag(format, param, request);
  if (type != "json_object" && type != "json_schema") {
    throw BadParam(fields.Name("type"),
                   "{} must be \"text\", \"json_object\", \"json_schema\" or \"structural_tag\", "
                   "it is \"{}\".",
                   fields.Name("type"), Excerpt(type, 40));
  }
  if (const Json* schema = fields.Find("schema")) {
    return SetJsonFormat(*schema, fields.Name("schema"), request);
  }
  const Json* named = fields.Find("json_schema");
  if (type == "json_object" && named == nullptr) return SetAnyJsonFormat(param, request);
  if (named == nullptr) {
    throw BadParam(fields.Name("json_schema"), "{} is missing.", fields.Name("json_schema"));
  }
  RequestFields inner(*named, fields.Name("json_schema."));
  const Json* schema = inner.Find("schema");
  if (schema == nullptr) return SetAnyJsonFormat(inner.Name("schema"), request);
  SetJsonFormat(*schema, inner.Name("schema"), request);
}

void ParseOutputFormat(RequestFields& fields, ApiRequest& request) {
  if (const Json* format = fields.Find("response_format")) {
    ReadResponseFormat(*format, "response_format", request);
  }
  if (const Json* outputs = fields.Find("structured_outputs")) {
    ReadStructuredOutputs(*outputs, request);
  }
  for (const char* name : {"guided_json", "json_schema"}) {
    if (const Json* schema = fields.Find(name)) SetJsonFormat(SchemaOf(*schema), name, request);
  }
  if (const Json* text = fields.Find("guided_regex")) {
    SetText(GrammarPart::Kind::kRegex, *text, "guided_regex", request);
  }
  if (const Json* list = fields.Find("guided_choice")) SetChoice(*list, "guided_choice", request);
  for (const char* name : {"guided_grammar", "grammar"}) {
    const Json* text = fields.Find(name);
    // llama.cpp's clients send an empty one for none.
    if (text == nullptr || *text == Json("")) continue;
    SetText(GrammarPart::Kind::kEbnf, *text, name, request);
  }
}

}  // namespace moesaic
