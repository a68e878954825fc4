// Calls held to grammars in every syntax: what the grammar lets through is, once the parser has
// read it, of the tool's schema.
#include "serving/api/call_grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "serving/api/api_error.h"
#include "serving/api/chat/call_opening.h"
#include "serving/api/chat/chat_parser.h"
#include "serving/api/json_text.h"
#include "serving/grammar/grammar_backend.h"
#include "serving/text/chat_template.h"
#include "serving/text/tokenizer.h"
#include "tests/serving/api/test_tokenizer.h"

namespace moesaic {
namespace call_grammar_test {

// Bytes, the end, and tokens of control as some of the models have them.
class ControlTokenizer : public ListedTokenizer {
 public:
  static constexpr int32_t kEnd = 256;

  ControlTokenizer() : ListedTokenizer(Tokens()) {}

 private:
  static std::vector<ListedToken> Tokens() {
    std::vector<ListedToken> tokens = AllBytes();
    for (const char* text : {"<end>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
                             "<arg_value>", "</arg_value>", "<|tool_call_begin|>",
                             "<|tool_call_argument_begin|>", "<|tool_call_end|>", "｜DSML｜"}) {
      tokens.push_back({text, true});
    }
    return tokens;
  }
};

// In which syntax, and whether a mask may be made of the build.
class CallGrammarTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string_view(GrammarBackendName()).empty()) GTEST_SKIP() << "built without xgrammar";
    // Making it takes longer than a test.
    static const std::shared_ptr<GrammarBackend> backend = MakeGrammarBackend(VocabularyOf(
        ControlTokenizer(), ControlTokenizer().vocab_size(), {ControlTokenizer::kEnd}));
    backend_ = backend;
    format_ = MakeChatFormat(nullptr, tokenizer_, GetParam(), "none");
  }

  CallWriting Writing() const { return {*format_, tokenizer_, template_text_}; }

  static Json Tools(const std::string& parameters, bool strict = false) {
    Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
    tools[0]["function"]["parameters"] = Json::parse(parameters);
    if (strict) tools[0]["function"]["strict"] = true;
    return tools;
  }

  static ChatInput Chat(Json tools, bool forced = true) {
    ChatInput chat;
    chat.messages = Json::array();
    chat.tools = std::move(tools);
    chat.force_call = forced;
    if (forced) chat.forced_tool = "f";
    return chat;
  }

  std::shared_ptr<const Grammar> Forced(const std::string& parameters) const {
    return backend_->Compile(*ForcedCallGrammar(Writing(), Chat(Tools(parameters))));
  }

  std::vector<int32_t> Allowed(GrammarMatch& match) const {
    const auto rows = static_cast<size_t>(tokenizer_.vocab_size());
    std::vector<int32_t> words((rows + 31) / 32);
    match.Fill(words);
    std::vector<int32_t> tokens;
    for (size_t token = 0; token < rows; ++token) {
      if ((static_cast<uint32_t>(words[token / 32]) >> (token % 32) & 1) != 0) {
        tokens.push_back(static_cast<int32_t>(token));
      }
    }
    return tokens;
  }

  // Tokens of a text: control where the syntax has one, else bytes.
  std::vector<int32_t> Tokens(std::string_view text) const {
    std::vector<int32_t> tokens;
    while (!text.empty()) {
      size_t bytes = 1;
      int32_t token = static_cast<unsigned char>(text[0]);
      for (const int32_t special : format_->special_tokens) {
        const std::string_view control = tokenizer_.TokenBytes(special);
        if (!text.starts_with(control) || control.size() <= bytes) continue;
        bytes = control.size();
        token = special;
      }
      tokens.push_back(token);
      text.remove_prefix(bytes);
    }
    return tokens;
  }

  // Whether the text is one of the grammar's, whole.
  bool Accepts(const Grammar& grammar, std::string_view text) const {
    const auto match = grammar.Start();
    for (const int32_t token : Tokens(text)) {
      if (!match->Accept(token)) return false;
    }
    return match->complete();
  }

  // An output as a model without any sense would write it; nullopt: it was not whole after some
  // hundred tokens. Characters of control and parts of characters are left out:
  // a grammar lets through more of them than JSON and UTF-8.
  std::optional<std::vector<int32_t>> Walk(const Grammar& grammar, std::mt19937& random) const {
    constexpr size_t kLongest = 600;
    constexpr std::string_view kClosing = "\"}]>\n/";
    const std::vector<int32_t> close = Tokens(ClosingTag());
    const auto match = grammar.Start();
    std::vector<int32_t> output;
    size_t closed = 0;  // tokens of the closing tag that have just come
    while (output.size() < kLongest) {
      std::vector<int32_t> allowed = Allowed(*match);
      if (allowed.size() > 1) {
        std::erase_if(allowed, [](int32_t token) {
          return (token < ' ' && token != '\n') ||
                 (token >= 0x80 && token < ControlTokenizer::kEnd);
        });
      }
      EXPECT_FALSE(allowed.empty()) << Text(output);
      if (allowed.empty()) return std::nullopt;
      std::vector<int32_t> closing;
      for (const int32_t token : allowed) {
        const bool closes = token >= ControlTokenizer::kEnd ||
                            kClosing.find(static_cast<char>(token)) != std::string_view::npos;
        if (closes) closing.push_back(token);
      }
      const std::vector<int32_t>& from = !closing.empty() && random() % 3 != 0 ? closing : allowed;
      int32_t token = from[random() % from.size()];
      const bool goes_on =
          random() % 8 < (closed > 0 ? 7u : 1u) && !close.empty() &&
          std::find(allowed.begin(), allowed.end(), close[closed]) != allowed.end();
      if (goes_on) token = close[closed];
      closed = !close.empty() && token == close[closed] ? (closed + 1) % close.size() : 0;
      EXPECT_TRUE(match->Accept(token));
      if (token == ControlTokenizer::kEnd) return output;
      output.push_back(token);
    }
    return std::nullopt;
  }

  std::string Text(const std::vector<int32_t>& tokens) const {
    std::string text;
    for (const int32_t token : tokens) text += tokenizer_.TokenBytes(token);
    return text;
  }

  std::string ClosingTag() const {
    if (format_->syntax.calls == nullptr) return "";
    return std::string(format_->syntax.calls->parameters.parameter_close);
  }

  // What the parser makes of the opening and the output: the arguments of its one call.
  std::string Arguments(const ChatInput& chat, const std::vector<int32_t>& output) const {
    auto options = std::make_shared<ChatParserOptions>();
    options->syntax = format_->syntax;
    options->tools = ToolSchemas(chat.tools);
    options->calls = true;
    options->control_markers = format_->control_markers;
    std::string opening;
    const CallOpeningOptions asked = {.tool = "f", .template_text = template_text_};
    for (const OpeningText& text : CallOpening(format_->syntax, asked)) opening += text.text;
    std::vector<int32_t> tokens = Tokens(opening);
    tokens.insert(tokens.end(), output.begin(), output.end());
    std::string text;
    std::vector<size_t> control;
    for (const int32_t token : tokens) {
      if (token > ControlTokenizer::kEnd) control.push_back(text.size());
      text += tokenizer_.TokenBytes(token);
    }
    const auto parser = MakeChatParser(options);
    ChatEvents events;
    parser->Add(text, control, events);
    parser->Finish(true, events);
    std::string arguments, others;
    for (const ChatEvent& event : events.Take()) {
      if (event.kind == ChatEvent::Kind::kArguments) arguments += event.text;
      if (event.kind == ChatEvent::Kind::kContent) others += event.text;
    }
    EXPECT_EQ(events.calls(), 1u) << text;
    EXPECT_EQ(others, "") << text;
    return arguments;
  }

  const ControlTokenizer tokenizer_;
  std::shared_ptr<GrammarBackend> backend_;
  std::shared_ptr<const ChatFormat> format_;
  std::string template_text_ = "[ARGS]";
};

size_t Characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

// Its characters, of UTF-8.
std::wstring Wide(const std::string& text) {
  std::wstring wide;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) == 0x80) {
      wide.back() = wide.back() << 6 | (byte & 0x3f);
    } else {
      wide += static_cast<wchar_t>(byte < 0x80 ? byte : byte < 0xe0 ? byte & 0x1f : byte & 0x0f);
    }
  }
  return wide;
}

// Of the keywords that the schemas below have.
bool IsOf(const Json& value, const Json& schema, const Json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref")) {
    const std::string target = schema["$ref"];
    return IsOf(value, root.at(Json::json_pointer(target.substr(1))), root);
  }
  if (schema.contains("anyOf")) {
    return std::any_of(schema["anyOf"].begin(), schema["anyOf"].end(),
                       [&](const Json& option) { return IsOf(value, option, root); });
  }
  if (schema.contains("const") && value != schema["const"]) return false;
  if (schema.contains("enum")) {
    const Json& list = schema["enum"];
    if (std::find(list.begin(), list.end(), value) == list.end()) return false;
  }
  if (schema.contains("type")) {
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    const auto is = [&value](const std::string& type) {
      return type == "string"    ? value.is_string()
             : type == "integer" ? value.is_number_integer()
             : type == "number"  ? value.is_number()
             : type == "boolean" ? value.is_boolean()
             : type == "null"    ? value.is_null()
             : type == "array"   ? value.is_array()
                                 : value.is_object();
    };
    if (std::none_of(types.begin(), types.end(), [&](const Json& type) { return is(type); })) {
      return false;
    }
  }
  if (value.is_string()) {
    const std::string text = value;
    if (Characters(text) < schema.value("minLength", size_t{0})) return false;
    if (Characters(text) > schema.value("maxLength", text.size())) return false;
    if (schema.contains("pattern") &&
        !std::regex_search(Wide(text), std::wregex(Wide(schema["pattern"].get<std::string>())))) {
      return false;
    }
  }
  if (value.is_number() && schema.contains("minimum") && value < schema["minimum"]) return false;
  if (value.is_array()) {
    if (value.size() > schema.value("maxItems", value.size())) return false;
    for (const Json& item : value) {
      if (schema.contains("items") && !IsOf(item, schema["items"], root)) return false;
    }
  }
  if (!value.is_object()) return true;
  for (const Json& name : schema.value("required", Json::array())) {
    if (!value.contains(name.get<std::string>())) return false;
  }
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [name, member] : value.items()) {
    const Json of = properties.contains(name)
                        ? properties[name]
                        : schema.value("additionalProperties", Json(properties.empty()));
    if (!IsOf(member, of, root)) return false;
  }
  return true;
}

const std::vector<std::string>& Schemas() {
  static const std::vector<std::string> schemas = {
      R"({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
          "required": ["city", "days"]})",
      R"({"type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "note": {"type": "string",
          "minLength": 2, "maxLength": 5}, "code": {"type": "string", "pattern": "^[a-z.]{2}.[^/]$"}},
          "required": ["unit", "note", "code"]})",
      R"({"type": "object", "properties": {"n": {"type": ["integer", "null"]},
          "s": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "b": {"type": "boolean"}}})",
      // Text beside what is not text, which is read by its looks.
      R"({"type": "object", "properties": {"x": {"type": ["string", "integer"]},
          "y": {"enum": ["5", 5, "true", "word", null]}, "z": {"anyOf": [{"type": "string"},
          {"type": "array", "items": {"type": "integer"}, "maxItems": 2}]}},
          "required": ["x", "y", "z"]})",
      R"({"type": "object", "properties": {"where": {"type": "object", "properties": {
          "name": {"type": "string"}, "tag": {"type": "string", "maxLength": 3}},
          "required": ["name", "tag"]}, "list": {"type": "array", "items": {"type": "string"}}},
          "required": ["where", "list"]})",
      R"({"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}, "b": {"type": "array",
          "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}, "required": ["a", "b"],
          "$defs": {"t": {"type": "number", "minimum": 2}}})",
      R"({"type": "object", "properties": {"any": {}}, "required": ["any"]})",
      R"({"type": "object", "additionalProperties": {"type": "integer"}})",
      R"({"type": "object", "properties": {}, "additionalProperties": false})"};
  return schemas;
}

TEST_P(CallGrammarTest, WhateverIsWrittenIsOfTheSchema) {
  std::mt19937 random(20261126);
  for (const std::string& text : Schemas()) {
    const Json schema = Json::parse(text);
    const ChatInput chat = Chat(Tools(text));
    const auto grammar = Forced(text);
    int whole = 0;
    for (int i = 0; i < 12; ++i) {
      const auto output = Walk(*grammar, random);
      if (!output) continue;
      const std::string arguments = Arguments(chat, *output);
      const Json value = Json::parse(arguments, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << arguments;
      EXPECT_TRUE(IsOf(value, schema, schema)) << arguments << " of " << text;
      ++whole;
    }
    EXPECT_GT(whole, 2) << text;
  }
}

TEST_P(CallGrammarTest, WhatCannotBeKeptIsRefused) {
  for (const char* parameters :
       {R"({"type": "object", "properties": {"a": {"not": {}}}})",
        R"({"type": "object", "properties": {"a": {"type": "string", "format": "email"}}})"}) {
    EXPECT_THROW(Forced(parameters), ApiError) << parameters;
  }
  const bool tags = format_->syntax.calls != nullptr &&
                    (format_->syntax.calls->body == CallSyntax::Body::kParameters ||
                     format_->syntax.calls->body == CallSyntax::Body::kPairs);
  if (!tags) return;
  for (const char* parameters :
       {R"({"type": "array", "items": {}})",
        R"({"type": "object", "properties": {"a": {"type": "string", "pattern": "<b>"}}})",
        R"({"type": "object", "properties": {"a": {"type": "string", "pattern": "[ -~]"}}})",
        R"({"type": "object", "properties": {"a\"b": {}}})",
        R"({"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"},
            {"type": "string", "maxLength": 3}]}}, "minProperties": 1})"}) {
    EXPECT_THROW(Forced(parameters), ApiError) << parameters;
  }
}

constexpr const char* kSyntaxes[] = {"hermes",      "qwen3_coder",  "minimax_m2",   "glm45",
                                     "deepseek_v3", "deepseek_v31", "deepseek_v32", "kimi_k2",
                                     "mistral",     "granite",      "openai"};
INSTANTIATE_TEST_SUITE_P(All, CallGrammarTest, testing::ValuesIn(kSyntaxes),
                         [](const auto& syntax) { return std::string(syntax.param); });

class TagGrammarTest : public CallGrammarTest {};

TEST_P(TagGrammarTest, Texts) {
  const std::string schema =
      R"({"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]},
          "days": {"type": "integer"}, "when": {"type": "string", "format": "date"}},
          "required": ["city"]})";
  const auto grammar = Forced(schema);
  const auto value = [&](const std::string& key, const std::string& text, const char* is_text) {
    const std::string syntax = GetParam();
    if (syntax == "glm45") {
      return "<arg_key>" + key + "</arg_key>\n<arg_value>" + text + "</arg_value>\n";
    }
    if (syntax == "qwen3_coder") return "<parameter=" + key + ">\n" + text + "\n</parameter>\n";
    if (syntax == "minimax_m2") return "<parameter name=\"" + key + "\">" + text + "</parameter>\n";
    return "<｜DSML｜parameter name=\"" + key + "\" string=\"" + is_text + "\">" + text +
           "</｜DSML｜parameter>\n";
  };
  const std::string end = std::string(GetParam()) == "glm45"         ? "</tool_call>"
                          : std::string(GetParam()) == "qwen3_coder" ? "</function>\n</tool_call>"
                          : std::string(GetParam()) == "minimax_m2"
                              ? "</invoke>\n</minimax:tool_call>"
                              : "</｜DSML｜invoke>\n</｜DSML｜function_calls>";
  const std::string city = value("city", "a <b> \"</para\n<</p\xC3\xA9", "true");
  EXPECT_TRUE(Accepts(*grammar, city + end));
  EXPECT_TRUE(Accepts(*grammar, city + value("unit", "F", "true") + value("days", "-3", "false") +
                                    value("when", "2026-11-30", "true") + end));
  EXPECT_FALSE(Accepts(*grammar, end));  // no city
  EXPECT_FALSE(Accepts(*grammar, city + value("unit", "K", "true") + end));
  EXPECT_FALSE(Accepts(*grammar, city + value("days", "3 or 4", "false") + end));
  EXPECT_FALSE(Accepts(*grammar, city + value("when", "2026-11-31", "true") + end));
  EXPECT_FALSE(Accepts(*grammar, city + city + end));
  EXPECT_FALSE(Accepts(*grammar, city + value("other", "x", "true") + end));
  // Tokens of control are no text.
  const auto match = grammar->Start();
  for (const int32_t token : Tokens(city.substr(0, city.find(" <b>")))) {
    ASSERT_TRUE(match->Accept(token));
  }
  const std::vector<int32_t> allowed = Allowed(*match);
  const int32_t dsml = *tokenizer_.TokenToId("｜DSML｜");
  EXPECT_EQ(std::count(allowed.begin(), allowed.end(), dsml), 0);
  EXPECT_EQ(std::count(allowed.begin(), allowed.end(), int32_t{'x'}), 1);
}

INSTANTIATE_TEST_SUITE_P(All, TagGrammarTest,
                         testing::Values("qwen3_coder", "minimax_m2", "glm45", "deepseek_v32"),
                         [](const auto& syntax) { return std::string(syntax.param); });

// Calls that a model begins by itself.
class OpenedCallTest : public CallGrammarTest {
 protected:
  static Json TwoTools(bool strict) {
    Json tools = Tools(R"({"type": "object", "properties": {"n": {"enum": [1, 2]}},
                           "required": ["n"]})",
                       strict);
    tools.push_back(Json::parse(R"({"type": "function", "function": {"name": "free"}})"));
    return tools;
  }
};

// Each has a call from behind its beginning, with %s where the number is.
struct OpenedCase {
  const char* begin;
  const char* text;  // of `f`
};
OpenedCase CaseOf(const std::string& syntax) {
  if (syntax == "hermes") {
    return {"<tool_call>", "\n{\"name\": \"f\", \"arguments\": {\"n\": %s}}\n</tool_call>"};
  }
  if (syntax == "qwen3_coder") {
    return {"<tool_call>",
            "\n<function=f>\n<parameter=n>\n%s\n</parameter>\n</function>\n</tool_call>"};
  }
  if (syntax == "minimax_m2") {
    return {"<invoke name=\"", "f\">\n<parameter name=\"n\">%s</parameter>\n</invoke>"};
  }
  if (syntax == "glm45") {
    return {"<tool_call>", "f\n<arg_key>n</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>"};
  }
  if (syntax == "deepseek_v3") {
    return {"<｜tool▁call▁begin｜>",
            "function<｜tool▁sep｜>f\n```json\n{\"n\": %s}\n```<｜tool▁call▁end｜>"};
  }
  if (syntax == "deepseek_v31") {
    return {"<｜tool▁call▁begin｜>", "f<｜tool▁sep｜>{\"n\": %s}<｜tool▁call▁end｜>"};
  }
  if (syntax == "deepseek_v32") {
    return {"<｜DSML｜invoke name=\"",
            "f\">\n<｜DSML｜parameter name=\"n\" string=\"false\">%s</｜DSML｜parameter>\n"
            "</｜DSML｜invoke>"};
  }
  if (syntax == "kimi_k2") {
    return {"<|tool_call_begin|>",
            "functions.f:3<|tool_call_argument_begin|>{\"n\": %s}<|tool_call_end|>"};
  }
  if (syntax == "mistral") return {"[TOOL_CALLS]", "f[ARGS]{\"n\": %s}"};
  if (syntax == "granite") {
    return {
        "<|tool_call|>",
        "[{\"name\": \"f\", \"arguments\": {\"n\": %s}}, {\"name\": \"free\", \"arguments\": {}}]"};
  }
  return {"<|channel|>commentary to=functions.", "f <|constrain|>json<|message|>{\"n\": %s}"};
}

TEST_P(OpenedCallTest, AreHeldWhereAToolIsStrict) {
  EXPECT_TRUE(OpenedCallGrammars(Writing(), Chat(TwoTools(false), false)).empty());
  const auto opened = OpenedCallGrammars(Writing(), Chat(TwoTools(true), false));
  const OpenedCase& of = CaseOf(GetParam());
  const auto found = std::find_if(opened.begin(), opened.end(), [&](const OpenedCallGrammar& one) {
    return one.begin == of.begin;
  });
  ASSERT_NE(found, opened.end());
  const bool control = tokenizer_.TokenToId(of.begin).has_value();
  EXPECT_EQ(found->is_control, control);
  const auto grammar = backend_->Compile(found->spec);
  const auto with = [&of](const char* number, const char* name) {
    std::string text = of.text;
    text.replace(text.find("%s"), 2, number);
    const size_t at = text.find('f', text.find("function<") == 0    ? 8
                                     : text.find("functions.") == 0 ? 10
                                     : text.find("<function=") == 1 ? 11
                                                                    : 0);
    return text.replace(at, 1, name);
  };
  EXPECT_TRUE(Accepts(*grammar, with("2", "f"))) << with("2", "f");
  EXPECT_FALSE(Accepts(*grammar, with("3", "f"))) << with("3", "f");
  EXPECT_FALSE(Accepts(*grammar, with("2", "g"))) << with("2", "g");
  EXPECT_TRUE(Accepts(*grammar, with("3", "free"))) << with("3", "free");
}

INSTANTIATE_TEST_SUITE_P(All, OpenedCallTest, testing::ValuesIn(kSyntaxes),
                         [](const auto& syntax) { return std::string(syntax.param); });

}  // namespace call_grammar_test
}  // namespace moesaic
