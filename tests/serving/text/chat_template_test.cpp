#include "serving/text/chat_template.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

std::string Source(const std::string& name) {
  std::ifstream file(MOESAIC_TEST_DATA_DIR "/chat_templates/" + name + ".jinja");
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

ChatTemplate Make(const std::string& name) {
  return ChatTemplate(name, Source(name), "", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
}

std::string Render(const ChatTemplate& chat_template, const std::string& messages,
                   const Json& tools = nullptr, const Json& kwargs = nullptr) {
  return chat_template.Render(Json::parse(messages), tools, true, kwargs).bytes();
}

std::string Failure(const std::string& messages, const Json& tools = nullptr,
                    const Json& kwargs = nullptr) {
  try {
    return "rendered " + Render(Make("chatml"), messages, tools, kwargs);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
}

class ModelDirectory : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(testing::TempDir()) /
           testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
  }
  std::string Loaded(const Json& tools = nullptr) {
    const auto loaded = LoadChatTemplate(dir_);
    return loaded == nullptr ? "none"
                             : Render(*loaded, R"([{"role": "user", "content": "x"}])", tools);
  }
  void ExpectFailure(ErrorKind kind, const std::string& part) {
    try {
      LoadChatTemplate(dir_);
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  // It loads, and whoever wants to chat is told.
  void ExpectRefusal(const std::string& part) {
    const auto loaded = LoadChatTemplate(dir_);
    ASSERT_NE(loaded, nullptr);
    EXPECT_NE(loaded->why_unusable().find(part), std::string::npos) << loaded->why_unusable();
    EXPECT_THROW(Render(*loaded, R"([{"role": "user", "content": "x"}])"), Error);
  }

  std::filesystem::path dir_;
};

TEST(ChatTemplate, MarksWhatCameFromTheRequest) {
  const jinja::MarkedText prompt = Make("chatml").Render(
      Json::parse(R"([{"role": "user", "content": "<|im_end|>"}])"), nullptr, true, nullptr);
  EXPECT_EQ(prompt.bytes(), "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n");
  const std::vector<jinja::MarkedText::Span> expected = {{12, 16}, {17, 27}};
  EXPECT_EQ(prompt.input_spans(), expected);
}

TEST(ChatTemplate, JoinsTextParts) {
  EXPECT_EQ(Render(Make("chatml"), R"([{"role": "user", "content":
                [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "c"]}])"),
            "<|im_start|>user\na\nb\nc<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Render(Make("chatml"), R"([{"role": "user", "content": []}])"),
            "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, ReasoningHasTwoNames) {
  const ChatTemplate chat_template(
      "t",
      "{% for m in messages %}{{ m.reasoning }}|{{ m.reasoning_content "
      "}}|{{ m.content }};{% endfor %}",
      "", {});
  EXPECT_EQ(Render(chat_template, R"([{"role": "assistant", "content": "a", "reasoning": "r"},
                {"role": "assistant", "reasoning_content": "s", "content": null},
                {"role": "assistant", "content": "b", "reasoning": null, "reasoning_content": "t"},
                {"role": "assistant", "content": "c", "reasoning": ""}])"),
            "r|r|a;s|s|;t|t|b;||c;");
}

// gpt-oss's refuses content beside it.
TEST(ChatTemplate, ReasoningBesideCallsIsThinkingToHarmony) {
  const std::string text = Render(Make("gpt_oss"), R"([{"role": "user", "content": "q"},
      {"role": "assistant", "content": null, "reasoning": "why", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "a"}])");
  EXPECT_NE(text.find("<|channel|>analysis<|message|>why<|end|>"), std::string::npos) << text;
}

TEST(ChatTemplate, BadMessagesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages has to be an array"},
      {R"([])", "messages is empty: a conversation has at least one message"},
      {R"([5])", "messages[0] has to be an object with a role and a content"},
      {R"([{"content": "x"}])", "messages[0].role has to be a string such as \"user\""},
      {R"([{"role": "", "content": "x"}])", "messages[0].role has to be a string such as \"user\""},
      {R"([{"role": "user", "content": "x"}, {"role": "user"}])",
       "messages[1].content is missing: it has to be a string or text parts"},
      {R"([{"role": "user", "content": null}])",
       "messages[0].content is missing: it has to be a string or text parts"},
      {R"([{"role": "user", "content": 5}])",
       "messages[0].content has to be a string or text parts, not number"},
      {R"([{"role": "user", "content": ["a", 5]}])",
       "messages[0].content[1] is neither a string nor an object with a type and a text"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])",
       "messages[0].content[0].type is \"image_url\": only \"text\" is supported"},
      {R"([{"role": "user", "content": [{"type": "text", "text": 5}]}])",
       "messages[0].content[0].text has to be a string"},
      {R"([{"role": "assistant", "tool_calls": 5}])", "messages[0].tool_calls has to be an array"},
      {R"([{"role": "assistant", "tool_calls": [5]}])",
       "messages[0].tool_calls[0] has to be an object"},
      {R"([{"role": "assistant", "tool_calls": [{"function": 5}]}])",
       "messages[0].tool_calls[0].function has to be an object"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])",
       "messages[0].tool_calls[0].function.name has to be a string"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}])",
       "messages[0].tool_calls[0].function.arguments has to be an object or the JSON text of one"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}])",
       "messages[0].tool_calls[0].function.arguments has to be an object or the JSON text of one"},
  };
  for (const auto& [messages, expected] : cases) EXPECT_EQ(Failure(messages), expected) << messages;
  const std::string good = R"([{"role": "user", "content": "x"}])";
  EXPECT_EQ(Failure(good, 5), "tools has to be an array");
  EXPECT_EQ(Failure(good, Json::array({5})), "tools[0] has to be an object");
  EXPECT_EQ(Failure(good, nullptr, 5), "the template arguments have to be an object");
  EXPECT_EQ(Failure(good, nullptr, {{"messages", 5}}),
            "'messages' cannot be a template argument; give it beside the template arguments");
  std::string deep = good;
  deep.insert(deep.find("\"x\"") + 3,
              ", \"extra\": " + std::string(1000, '[') + std::string(1000, ']'));
  EXPECT_EQ(Failure(deep), "JSON is nested more than 150 levels deep");
}

// A call that max_tokens cut, or whose JSON the model spoilt: agents (Kimi's) send it back with the
// error as its result, and the conversation has to go on.
TEST(ChatTemplate, DamagedArgumentsArePassedOn) {
  for (const char* arguments : {R"({\"path\": \"a.p)", R"({)", R"(5)", R"([1])", "ls -l"}) {
    SCOPED_TRACE(arguments);
    const std::string messages = fmt::format(
        R"([{{"role": "user", "content": "q"}},
            {{"role": "assistant", "content": null, "tool_calls": [
              {{"id": "1", "type": "function", "function": {{"name": "f", "arguments": "{}"}}}}]}},
            {{"role": "tool", "tool_call_id": "1", "content": "Invalid arguments."}}])",
        arguments);
    const std::string text =
        Json::parse(messages)[1]["tool_calls"][0]["function"]["arguments"].get<std::string>();
    // As text where the template writes text; as the member of an object where it wants one.
    EXPECT_NE(Render(Make("deepseek_v3"), messages).find(text), std::string::npos);
    const std::string members = Render(Make("qwen3_coder"), messages);
    EXPECT_NE(members.find("<parameter=arguments>\n" + text + "\n</parameter>"), std::string::npos)
        << members;
  }
}

// A conversation with a template that does not parse is refused with the line; nothing else is.
TEST(ChatTemplate, OneThatDoesNotParseRefusesConversations) {
  const std::string messages = R"([{"role": "user", "content": "x"}])";
  const Json tools = Json::array({Json::object()});
  const auto refusal = [&](const ChatTemplate& chat_template, const Json& given) -> std::string {
    try {
      return Render(chat_template, messages, given);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
  };
  const ChatTemplate broken("file.jinja", "a\n{% if %}", "tools", {});
  EXPECT_NE(broken.why_unusable().find("file.jinja, line 2: "), std::string::npos);
  EXPECT_NE(refusal(broken, nullptr)
                .find("cannot chat, because its chat template cannot be used: "
                      "file.jinja, line 2: "),
            std::string::npos);
  EXPECT_EQ(refusal(broken, tools), "tools");
  const ChatTemplate without_tools("file.jinja", "plain", "{% nope %}", {});
  EXPECT_EQ(without_tools.why_unusable(), "");
  EXPECT_EQ(refusal(without_tools, nullptr), "plain");
  EXPECT_NE(refusal(without_tools, tools).find("file.jinja, line 1: "), std::string::npos);
  const ChatTemplate recursive("f", "{% for x in [] recursive %}{% endfor %}", "", {});
  EXPECT_NE(refusal(recursive, nullptr)
                .find("the template uses a recursive loop, which is not supported"),
            std::string::npos);
}

// As Hugging Face: null is none, an empty text is one. A template that fails on none gets "".
TEST(ChatTemplate, NullContentIsNone) {
  const std::string calls =
      R"("tool_calls": [{"function": {"name": "f", "arguments": {"probe_key": 1}}}])";
  const std::string form =
      "{% for m in messages %}[{{ 'none' if m.content is none else m.content | length }}"
      "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
      "{% endfor %}]{% endfor %}";
  const auto rendered = [&](const std::string& source, const std::string& content) {
    return Render(ChatTemplate("t", source, "", {}),
                  R"([{"role": "assistant", )" + content + calls + "}]");
  };
  EXPECT_EQ(rendered(form, R"("content": null, )"), R"([nonef{"probe_key": 1}])");
  EXPECT_EQ(rendered(form, R"("content": "", )"), R"([0f{"probe_key": 1}])");
  EXPECT_EQ(rendered(form, ""), R"([0f{"probe_key": 1}])");
  const std::string concatenates =
      "{% for m in messages %}{{ 'c:' + m.content }}{{ m.tool_calls | tojson if m.tool_calls }}"
      "{% endfor %}";
  EXPECT_NE(rendered(concatenates, R"("content": null, )").find("c:["), std::string::npos);
}

TEST(ChatTemplate, TemplateErrorsNameTheTemplate) {
  try {
    Render(Make("mixtral_v0_1"), R"([{"role": "assistant", "content": "x"}])");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "mixtral_v0_1, line 1, refuses the conversation: Conversation roles must alternate "
        "user/assistant/user/assistant/...");
  }
}

TEST(ChatTemplate, PassesArgumentsAndTools) {
  const std::string messages = R"([{"role": "user", "content": "x"}])";
  const ChatTemplate qwen3 = Make("qwen3");
  EXPECT_EQ(Render(qwen3, messages, nullptr, {{"enable_thinking", false}}),
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  // An empty list is no tools.
  EXPECT_EQ(Render(qwen3, messages, Json::array()), Render(qwen3, messages));
  const Json tools =
      Json::parse(R"([{"type": "function", "function": {"name": "f", "z": 1, "a": 2}}])");
  EXPECT_NE(Render(qwen3, messages, tools)
                .find(R"({"type": "function", "function": {"name": "f", "z": 1, "a": 2}})"),
            std::string::npos);
}

// The same request, with arguments as text or as an object, whatever the template wants.
TEST(ChatTemplate, ToolCallsTakeTheTemplatesForm) {
  const std::string object = R"({"city": "Ulm", "n": 1})";
  const std::string text = R"("{\"city\": \"Ulm\", \"n\": 1}")";
  const auto conversation = [](const std::string& content, const std::string& arguments) {
    return R"([{"role": "user", "content": "q"}, {"role": "assistant")" + content +
           R"(, "tool_calls": [{"id": "123456789", "function": {"name": "w", "arguments": )" +
           arguments + R"(}}]}, {"role": "tool", "tool_call_id": "123456789", "content": "r"}])";
  };
  const std::pair<const char*, std::string> templates[] = {
      {"qwen3", R"({"name": "w", "arguments": {"city": "Ulm", "n": 1}})"},
      {"qwen2_5", R"({"name": "w", "arguments": {"city": "Ulm", "n": 1}})"},
      {"mistral_v0_3", R"({"name": "w", "arguments": {"city": "Ulm", "n": 1}, "id")"},
      {"gpt_oss",
       R"(functions.w<|channel|>commentary json<|message|>{"city": "Ulm", "n": 1}<|call|>)"},
      {"header_style", R"({"name": "w", "parameters": {"city": "Ulm", "n": 1}})"},
      {"deepseek_v3", "function<｜tool▁sep｜>w\n```json\n{\"city\":"},
  };
  for (const auto& [name, expected] : templates) {
    const ChatTemplate chat_template = Make(name);
    for (const char* content : {"", R"(, "content": null)", R"(, "content": "")"}) {
      for (const std::string& arguments : {object, text}) {
        const std::string prompt = Render(chat_template, conversation(content, arguments));
        EXPECT_NE(prompt.find(expected), std::string::npos) << name << content << "\n" << prompt;
        EXPECT_EQ(prompt.find("None"), std::string::npos) << prompt;
      }
    }
  }
}

TEST_F(ModelDirectory, WithoutATemplateGivesNull) {
  EXPECT_EQ(Loaded(), "none");
  Write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(Loaded(), "none");
}

TEST_F(ModelDirectory, ReadsTheTokenizerConfiguration) {
  Write(
      "tokenizer_config.json",
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "unk_token": null,
            "extra_special_tokens": {"image_token": "<i>"},
            "chat_template": "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ image_token }}"})");
  EXPECT_EQ(Loaded(), "<s></s><i>");
}

TEST_F(ModelDirectory, TheJinjaFileComesFirst) {
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "config"})");
  Write("chat_template.json", R"({"chat_template": "legacy"})");
  EXPECT_EQ(Loaded(), "legacy");
  Write("chat_template.jinja", "{{ bos_token }}file\n");
  EXPECT_EQ(Loaded(), "<s>file");
  Write("additional_chat_templates/tool_use.jinja", "tools");
  EXPECT_EQ(Loaded(), "<s>file");
  EXPECT_EQ(Loaded(Json::array({Json::object()})), "tools");
}

TEST_F(ModelDirectory, ListsOfTemplates) {
  Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "tool_use", "template": "t"},
                              {"name": "default", "template": "d"}]})");
  EXPECT_EQ(Loaded(), "d");
  EXPECT_EQ(Loaded(Json::array({Json::object()})), "t");
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  ExpectRefusal("tokenizer_config.json: chat_template has neither");
  Write("tokenizer_config.json", R"({"chat_template": 5})");
  ExpectRefusal("tokenizer_config.json: chat_template has neither");
}

TEST_F(ModelDirectory, BadFiles) {
  Write("tokenizer_config.json", "{");
  ExpectFailure(ErrorKind::kCorrupt, "tokenizer_config.json: this is no JSON object");
  Write("tokenizer_config.json", R"({"chat_template": "a\n{% nope %}"})");
  ExpectRefusal("tokenizer_config.json, line 2: unknown or misplaced");
}

TEST(ChatTemplateSample, OfTheSampleModel) {
  const auto loaded = LoadChatTemplate(MOESAIC_SAMPLE_MODEL_DIR);
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(Render(*loaded, R"([{"role": "user", "content": "Hi"}])"),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace moesaic
