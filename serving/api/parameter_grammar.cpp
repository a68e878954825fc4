#include "serving/api/parameter_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/api/chat/argument_writer.h"
#include "serving/api/json_text.h"
#include "serving/grammar/subschemas.h"

namespace moesaic {
namespace {

constexpr int kMaxReferences = 32;  // one leading to another
constexpr int kMaxJsonSpaces = 16;  // between two things of JSON, as elsewhere
constexpr std::string_view kAnyKey = "[A-Za-z_][A-Za-z0-9_.-]{0,63}";

// What a parameter that is read by its looks may begin with to be text for certain: not as JSON
// does, nor as a word that stands for a value does.
constexpr std::string_view kPlainBeginning =
    "[^<\\s\"{\\[\\-0-9tTfFnN]|"
    "[tT]([^r<]|r([^u<]|u([^e<]|e[^\\s<])))|"
    "[fF]([^a<]|a([^l<]|l([^s<]|s([^e<]|e[^\\s<]))))|"
    "n([^u<]|u([^l<]|l([^l<]|l[^\\s<])))|"
    "N([^o<]|o([^n<]|n([^e<]|e[^\\s<])))";

// Of RFC 3339, ISO 8601, RFC 4122, RFC 1123, RFC 4291 and RFC 3986; of the last two no form that is
// rarely written.
constexpr std::string_view kDate =
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "02-(0[1-9]|1[0-9]|2[0-8]))";
constexpr std::string_view kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+\\-]([01][0-9]|2[0-3]):[0-5][0-9]"
    ")";
constexpr std::string_view kByte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";

std::optional<std::string> PatternOfFormat(std::string_view format) {
  const std::string byte(kByte);
  if (format == "date") return std::string(kDate);
  if (format == "time") return std::string(kTime);
  if (format == "date-time") return fmt::format("{}T{}", kDate, kTime);
  if (format == "duration") {
    const std::string_view time =
        "T([0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}S)";
    const std::string_view days = "[0-9]{1,9}D";
    return fmt::format(
        "P([0-9]{{1,9}}W|([0-9]{{1,9}}Y([0-9]{{1,9}}M({0})?)?|[0-9]{{1,9}}M({0})?|{0})({1})?|{1})",
        days, time);
  }
  if (format == "ipv4") return fmt::format("{}\\.{}\\.{}\\.{}", byte, byte, byte, byte);
  if (format == "ipv6") {
    return "([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|([0-9a-fA-F]{1,4}:){1,6}:[0-9a-fA-F]{1,4}|"
           "([0-9a-fA-F]{1,4}:){1,6}:|::([0-9a-fA-F]{1,4}:){0,5}[0-9a-fA-F]{1,4}|::";
  }
  if (format == "uuid") {
    return "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
  }
  constexpr std::string_view kHost =
      "[A-Za-z0-9]([A-Za-z0-9\\-]{0,30}[A-Za-z0-9])?"
      "(\\.[A-Za-z0-9]([A-Za-z0-9\\-]{0,30}[A-Za-z0-9])?){0,6}";
  if (format == "hostname") return std::string(kHost);
  if (format == "uri") {
    return fmt::format(
        "[a-z][a-z0-9+]{{0,15}}://{}(:[0-9]{{1,4}})?(/[A-Za-z0-9._~\\-]*)*"
        "(\\?[A-Za-z0-9._~=&\\-]*)?(#[A-Za-z0-9._~\\-]*)?",
        kHost);
  }
  return std::nullopt;
}

// Formats of xgrammar.
Json Rules(std::string grammar) { return {{"type", "grammar"}, {"grammar", std::move(grammar)}}; }
Json Sequence(Json elements) { return {{"type", "sequence"}, {"elements", std::move(elements)}}; }
Json Either(Json elements) {
  if (elements.size() == 1) return std::move(elements[0]);
  return {{"type", "or"}, {"elements", std::move(elements)}};
}
Json Maybe(Json content) { return {{"type", "optional"}, {"content", std::move(content)}}; }
Json Literal(std::string_view text) {
  if (text.empty()) return Rules("root ::= \"\"\n");
  return {{"type", "const_string"}, {"value", text}};
}
Json Matching(std::string_view pattern) { return {{"type", "regex"}, {"pattern", pattern}}; }

// Text in which `close` does not occur: between what begins it and goes on otherwise there is no
// '<'. As an automaton over characters: xgrammar's own text with exclusions is one over bytes, and
// tokens of control would pass as text.
Json TextWithout(std::string_view close) {
  CHECK(!close.empty() && close[0] == '<' && close.find('<', 1) == std::string_view::npos);
  std::string pattern = "[^<]*(<";
  std::string begun = "<";
  for (size_t at = 1; at < close.size();) {
    size_t next = at + 1;
    while (next < close.size() && (static_cast<unsigned char>(close[next]) & 0xc0) == 0x80) ++next;
    const std::string_view character = close.substr(at, next - at);
    if (at > 1) pattern += "|" + begun;
    pattern += fmt::format("([^<{}][^<]*)?", character);
    begun += character;
    at = next;
  }
  pattern += ")*";
  return Rules("root ::= Regex(\"" + pattern + "\")\n");
}

// `pattern` so that no match has a '<', with which the closing tag begins. nullopt: it asks for
// one, or may in a way that is not looked into.
std::optional<std::string> WithoutTags(std::string_view pattern) {
  const auto is_among = [](char c, std::string_view some) {
    return some.find(c) != std::string_view::npos;
  };
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '<') return std::nullopt;
    if (c == '.') {
      out += "[^<\\n\\r]";
    } else if (c == '\\') {
      if (++i == pattern.size() || is_among(pattern[i], "xupPck0123456789<")) return std::nullopt;
      const auto lower = static_cast<char>(pattern[i] | 0x20);
      if (is_among(pattern[i], "SWD")) {
        out += fmt::format("[^<\\{}]", lower);
      } else {
        out += {'\\', pattern[i]};
      }
    } else if (c == '[') {
      size_t end = i + 1;
      while (end < pattern.size() && pattern[end] != ']') end += pattern[end] == '\\' ? 2 : 1;
      if (end >= pattern.size()) return std::nullopt;
      std::string_view members = pattern.substr(i + 1, end - i - 1);
      const bool negated = members.starts_with('^');
      if (negated) {
        out += fmt::format("[^<{}]", members.substr(1));
      } else {
        for (size_t m = 0; m < members.size(); ++m) {
          if (members[m] == '<') return std::nullopt;
          const bool escaped = members[m] == '\\' && m + 1 < members.size();
          if (escaped && is_among(members[++m], "SWDxupPc<")) return std::nullopt;
          if (m + 2 >= members.size() || members[m + 1] != '-') continue;
          const auto first = static_cast<unsigned char>(members[m]);
          const auto last = static_cast<unsigned char>(members[m + 2]);
          if (escaped || last == '\\' || (first < '<' && last > '<')) return std::nullopt;
        }
        out += pattern.substr(i, end - i + 1);
      }
      i = end;
    } else {
      out += c;
    }
  }
  return out;
}

void MoveReferences(Json& schema, const std::string& name) {
  if (!schema.is_object()) return;
  if (schema.contains("$ref")) {
    const std::string target = schema["$ref"].get<std::string>();  // "#" or "#/..."
    schema["$ref"] = "#/$defs/" + name + target.substr(1);
  }
  ForEachSubschema(schema, [&name](Json& part, const std::string&) { MoveReferences(part, name); });
}

bool HasReferences(Json& schema) {
  if (!schema.is_object()) return false;
  bool has = schema.contains("$ref");
  ForEachSubschema(schema,
                   [&has](Json& part, const std::string&) { has = has || HasReferences(part); });
  return has;
}

class Parameters {
 public:
  Parameters(const CallSyntax& calls, const Json& root, const ToolSchemas& types,
             const std::string& tool, FunctionRef<Json(std::string_view)> own)
      : calls_(calls), root_(root), types_(types), tool_(tool), own_(own) {}

  Json Format() {
    const Json& object = Resolved(root_);
    if (object.value("type", Json()) != Json("object")) {
      Fail(ErrorKind::kInvalidArgument,
           "the schema: it must be of type object where a model writes parameters in tags");
    }
    Json elements = Json::array();
    const Json properties = object.value("properties", Json::object());
    const Json required = object.value("required", Json::array());
    for (const char* count : {"minProperties", "maxProperties"}) {
      if (!object.contains(count)) continue;
      Fail(ErrorKind::kInvalidArgument,
           "/{}: it is not supported where a model writes parameters in tags", count);
    }
    for (const auto& [name, schema] : properties.items()) {
      at_ = "/properties/" + name;
      CheckName(name);
      Json parameter = Parameter(Literal(name), types_.TypeOf(tool_, name), schema);
      const bool needed = std::find(required.begin(), required.end(), Json(name)) != required.end();
      elements.push_back(needed ? std::move(parameter) : Maybe(std::move(parameter)));
    }
    const Json others = object.value("additionalProperties", Json(false));
    if (properties.empty() && others != Json(false)) {
      at_ = "/additionalProperties";
      Json parameter = Parameter(Rules(fmt::format("root ::= Regex(\"{}\")\n", kAnyKey)),
                                 types_.TypeOf(tool_, ""), others);
      elements.push_back({{"type", "star"}, {"content", std::move(parameter)}});
    }
    return elements.empty() ? Json() : Sequence(std::move(elements));
  }

 private:
  // What a schema allows, taken apart as far as it decides how a value is written.
  struct Value {
    enum class Kind { kText, kOneText, kJson, kAny };
    Kind kind;
    Json schema;  // of kOneText the text
  };

  std::string_view Close() const {
    return calls_.body == CallSyntax::Body::kPairs ? calls_.pairs.value_close
                                                   : calls_.parameters.parameter_close;
  }

  template <typename... Args>
  [[noreturn]] void Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    Fail(ErrorKind::kInvalidArgument, "{}: {} where a model writes parameters in tags", at_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  void CheckName(const std::string& name) const {
    const bool bare = !name.empty() && name.size() <= kMaxToolNameBytes &&
                      name.find_first_of("<>\"\\\r\n\t") == std::string::npos &&
                      name.front() != ' ' && name.back() != ' ';
    if (!bare) Refuse("this name is not supported");
  }

  const Json& Resolved(const Json& schema) const {
    const Json* at = &schema;
    for (int i = 0; i < kMaxReferences; ++i) {
      if (const auto reference = at->find("$ref"); reference != at->end()) {
        const std::string target = reference->get<std::string>();
        const Json::json_pointer pointer(target.substr(1));
        if (!root_.contains(pointer)) Refuse("\"{}\" refers to nothing", target);
        at = &root_.at(pointer);
      } else if (const auto all = at->find("allOf"); all != at->end()) {
        at = &all->at(0);
      } else {
        return *at;
      }
    }
    Refuse("its references are not supported");
  }

  void AddValues(const Json& schema, int depth, std::vector<Value>& values) const {
    if (depth > kMaxReferences) Refuse("schemas as deep as this are not supported");
    const Json& at = Resolved(schema);
    using Kind = Value::Kind;
    if (at.is_boolean() || at.empty()) {
      values.push_back({Kind::kAny, Json::object()});
      return;
    }
    for (const char* name : {"anyOf", "oneOf"}) {
      if (!at.contains(name)) continue;
      for (const Json& option : at[name]) AddValues(option, depth + 1, values);
      return;
    }
    if (at.contains("enum") || at.contains("const")) {
      const Json list = at.contains("enum") ? at["enum"] : Json::array({at["const"]});
      Json others = Json::array();
      for (const Json& value : list) {
        if (value.is_string()) {
          values.push_back({Kind::kOneText, value});
        } else {
          others.push_back(value);
        }
      }
      if (!others.empty()) values.push_back({Kind::kJson, Json{{"enum", std::move(others)}}});
      return;
    }
    const Json type = at.value("type", Json());
    const Json types = type.is_array() ? type : Json::array({type});
    for (const Json& one : types) {
      Json typed = at;
      typed["type"] = one;
      const Kind kind = one == Json("string") ? Kind::kText : Kind::kJson;
      values.push_back({one.is_null() ? Kind::kAny : kind, std::move(typed)});
    }
  }

  Json Parameter(Json key, ParameterType type, const Json& schema) const {
    std::vector<Value> values;
    AddValues(schema, 0, values);
    const Json line_break = Maybe(Literal("\n"));
    if (calls_.body == CallSyntax::Body::kPairs) {
      const PairForm& pairs = calls_.pairs;
      return Sequence({own_(pairs.key_open), std::move(key), own_(pairs.key_close), line_break,
                       own_(pairs.value_open), Content(values, type), own_(pairs.value_close),
                       line_break});
    }
    const ParameterForm& form = calls_.parameters;
    const std::string_view edge = form.own_lines ? "\n" : "";
    if (form.text_attribute.empty()) {
      const std::string behind_key =
          fmt::format("{}{}{}", form.name_end, form.name_end == ">" ? "" : ">", edge);
      return Sequence({own_(form.parameter_open), std::move(key), Literal(behind_key),
                       Content(values, type), own_(fmt::format("{}{}", edge, form.parameter_close)),
                       line_break});
    }
    // The tag says itself what it is.
    Json options = Json::array();
    const auto add = [&](const char* is_text, Json content) {
      options.push_back(Sequence(
          {Literal(fmt::format("{} {}=\"{}\">", form.name_end, form.text_attribute, is_text)),
           std::move(content), own_(form.parameter_close), line_break}));
    };
    std::vector<Value> texts, others;
    for (const Value& value : values) {
      const bool any = value.kind == Value::Kind::kAny;
      if (any || value.kind != Value::Kind::kJson) {
        texts.push_back(any ? Value{Value::Kind::kText, Json::object()} : value);
      }
      if (any || value.kind == Value::Kind::kJson) others.push_back(value);
    }
    if (!texts.empty()) add("true", Content(texts, ParameterType::kText));
    if (!others.empty()) add("false", Content(others, ParameterType::kJson));
    return Sequence({own_(form.parameter_open), std::move(key), Either(std::move(options))});
  }

  // Of values that are read as `type`.
  Json Content(const std::vector<Value>& values, ParameterType type) const {
    using Kind = Value::Kind;
    const bool any = std::any_of(values.begin(), values.end(),
                                 [](const Value& value) { return value.kind == Kind::kAny; });
    // However it is read, it is one of all values.
    if (any && type != ParameterType::kJson) return TextWithout(Close());
    Json options = Json::array();
    Json schemas = Json::array();
    for (const Value& value : values) {
      const bool text = value.kind == Kind::kText || value.kind == Kind::kOneText;
      if (text && type != ParameterType::kJson) {
        AddText(value, type, options);
      } else if (type == ParameterType::kNullableText) {
        options.push_back(Literal("null"));
      } else if (type == ParameterType::kText) {
        Refuse("a value that is not text beside others is not supported");
      } else if (value.kind == Kind::kOneText) {
        schemas.push_back(Json{{"const", value.schema}});
      } else {
        schemas.push_back(value.schema);
      }
    }
    if (!schemas.empty()) {
      Json schema = schemas.size() == 1 ? std::move(schemas[0]) : Json{{"anyOf", schemas}};
      CloseOut(schema);
      if (HasReferences(schema)) {
        Json root = root_;
        CloseOut(root);
        Json definitions;
        schema = SchemaWithin(root, "root", std::move(schema), definitions);
        schema["$defs"] = std::move(definitions);
      }
      options.push_back({{"type", "json_schema"},
                         {"json_schema", std::move(schema)},
                         {"max_whitespace_cnt", kMaxJsonSpaces},
                         {"excludes", Json::array({std::string(Close())})}});
    }
    if (options.empty()) Refuse("no value of it can be written");
    return Either(std::move(options));
  }

  void AddText(const Value& value, ParameterType type, Json& options) const {
    if (value.kind == Value::Kind::kOneText) {
      const std::string text = value.schema.get<std::string>();
      const bool closes = text.find(Close()) != std::string::npos;
      if (!closes && IsReadAs(text, type)) options.push_back(Literal(text));
      return;
    }
    const Json& schema = value.schema;
    const int64_t least = schema.value("minLength", int64_t{0});
    const bool bounded = least > 0 || schema.contains("maxLength");
    const bool free = !bounded && !schema.contains("pattern") && !schema.contains("format");
    if (type == ParameterType::kAny) {
      if (!free) Refuse("a string with a constraint beside values of other types is not supported");
      options.push_back(Maybe(Sequence({Matching(kPlainBeginning), TextWithout(Close())})));
    } else if (free) {
      options.push_back(TextWithout(Close()));
    } else if (bounded) {
      options.push_back(Rules(fmt::format("root ::= [^<]{{{},{}}}\n", least, Most(schema))));
    } else {
      options.push_back(Matching(PatternOf(schema)));
    }
  }

  static std::string Most(const Json& schema) {
    return schema.contains("maxLength") ? std::to_string(schema["maxLength"].get<int64_t>()) : "";
  }

  std::string PatternOf(const Json& schema) const {
    if (schema.contains("format")) {
      const auto pattern = PatternOfFormat(schema["format"].get_ref<const std::string&>());
      if (!pattern) Refuse("this format is not supported");
      return *pattern;
    }
    const auto pattern = WithoutTags(schema["pattern"].get_ref<const std::string&>());
    if (!pattern) Refuse("a pattern that may match \"<\" is not supported");
    return *pattern;
  }

  bool IsReadAs(const std::string& text, ParameterType type) const {
    ChatEvents events;
    events.BeginCall("f");
    ArgumentWriter writer(events);
    writer.BeginParameter("p", type);
    writer.Value(text);
    writer.EndParameter();
    writer.EndObject();
    std::string arguments;
    for (const ChatEvent& event : events.Take()) {
      if (event.kind == ChatEvent::Kind::kArguments) arguments += event.text;
    }
    const Json read = Json::parse(arguments, nullptr, false);
    return read.is_object() && read["p"] == Json(text);
  }

  // Nested strings cannot have the closing tag in them, either. xgrammar keeps it out of those
  // without a constraint (`excludes`), and would leave out the length of others.
  void CloseOut(Json& schema) const {
    if (!schema.is_object()) return;
    if (schema.contains("pattern")) schema["pattern"] = PatternOf(schema);
    if (schema.contains("minLength") || schema.contains("maxLength")) {
      schema["pattern"] =
          fmt::format("^[^<]{{{},{}}}$", schema.value("minLength", int64_t{0}), Most(schema));
      schema.erase("minLength");
      schema.erase("maxLength");
    }
    for (const char* name : {"enum", "const"}) {
      if (schema.contains(name) && DumpJson(schema[name]).find(Close()) != std::string::npos) {
        Refuse("a value with \"{}\" in it is not supported", Close());
      }
    }
    if (schema.contains("properties")) {
      for (const auto& [name, part] : schema["properties"].items()) {
        if (name.find(Close()) != std::string::npos) {
          Refuse("a name with \"{}\" in it is not supported", Close());
        }
      }
    }
    ForEachSubschema(schema, [this](Json& part, const std::string&) { CloseOut(part); });
  }

  const CallSyntax& calls_;
  const Json& root_;
  const ToolSchemas& types_;
  const std::string& tool_;
  const FunctionRef<Json(std::string_view)> own_;
  std::string at_ = "the schema";  // what is being looked at
};

}  // namespace

Json ParameterFormat(const CallSyntax& calls, const Json& schema, const ToolSchemas& types,
                     const std::string& tool, FunctionRef<Json(std::string_view)> own) {
  return Parameters(calls, schema, types, tool, own).Format();
}

Json SchemaWithin(const Json& root, const std::string& name, Json part, Json& definitions) {
  if (!part.is_object() || !HasReferences(part)) return part;
  Json moved = root;
  MoveReferences(moved, name);
  MoveReferences(part, name);
  definitions[name] = std::move(moved);
  return part;
}

}  // namespace moesaic
