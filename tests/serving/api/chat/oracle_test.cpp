// What others make of the same outputs (tests/data/chat_parsers,
// tests/reference/make_parser_vectors.py): openai-harmony of gpt-oss's messages, token by token,
// and texts out of the grammars that xgrammar has for the calls of each model.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "serving/api/chat/chat_parser.h"
#include "serving/api/chat/harmony_parser.h"
#include "tests/serving/api/chat/parse.h"

namespace moesaic {
namespace oracle_test {

Json ReadVectors(const std::string& name) {
  std::ifstream file(std::string(MOESAIC_TEST_DATA_DIR) + "/chat_parsers/" + name);
  EXPECT_TRUE(file.good()) << name;
  return Json::parse(file);
}

struct Call {
  std::string name;
  std::string id;
  std::string arguments;
  bool ended = false;

  bool operator==(const Call&) const = default;
};

struct Said {
  std::string thought;
  std::string content;
  std::vector<Call> calls;

  bool operator==(const Said&) const = default;
  void Add(const std::vector<ChatEvent>& events) {
    for (const ChatEvent& event : events) {
      switch (event.kind) {
        case ChatEvent::Kind::kReasoning:
          thought += event.text;
          break;
        case ChatEvent::Kind::kContent:
          content += event.text;
          break;
        case ChatEvent::Kind::kCallBegin:
          calls.push_back({event.text, event.id, {}, false});
          break;
        case ChatEvent::Kind::kArguments:
          calls.at(event.call).arguments += event.text;
          break;
        case ChatEvent::Kind::kCallEnd:
          calls.at(event.call).ended = true;
          break;
      }
    }
  }
};

void PrintTo(const Said& said, std::ostream* out) {
  *out << "thought \"" << said.thought << "\" content \"" << said.content << '"';
  for (const Call& call : said.calls) {
    *out << ' ' << call.name << '#' << call.id << call.arguments << (call.ended ? ";" : "");
  }
}

// Texts in pieces, with what has been said so far.
class Parsing {
 public:
  Parsing(const ChatParserOptions& options, std::string text, std::vector<size_t> control = {})
      : parser_(MakeChatParser(std::make_shared<ChatParserOptions>(options))),
        text_(std::move(text)),
        control_(std::move(control)) {}

  const Said& Feed(size_t end) {
    std::vector<size_t> control;
    std::copy_if(control_.begin(), control_.end(), std::back_inserter(control),
                 [&](size_t at) { return at >= begin_ && at < end; });
    parser_->Add(std::string_view(text_).substr(begin_, end - begin_), control, events_);
    begin_ = end;
    said_.Add(events_.Take());
    return said_;
  }
  const Said& Finish(bool complete) {
    Feed(text_.size());
    parser_->Finish(complete, events_);
    said_.Add(events_.Take());
    return said_;
  }

 private:
  const std::unique_ptr<ChatParser> parser_;
  const std::string text_;
  const std::vector<size_t> control_;
  ChatEvents events_;
  Said said_;
  size_t begin_ = 0;
};

// gpt-oss

ChatParserOptions HarmonyOptions() {
  ChatParserOptions options;
  options.syntax = FindChatSyntax("", "openai", "openai_gptoss");
  options.tools =
      ToolSchemas(Json::parse(R"([{"type": "function", "function": {"name": "weather"}}])"));
  options.calls = true;
  options.control_markers.assign(HarmonyParser::kMarkers.begin(), HarmonyParser::kMarkers.end());
  return options;
}

// Of the first `begun` messages as openai-harmony has them, the last of which has `bytes` of text.
Said OfMessages(const Json& messages, size_t begun, size_t bytes, bool ended) {
  constexpr std::string_view kFunctions = "functions.";
  Said said;
  for (size_t i = 0; i < begun; ++i) {
    const bool last = i + 1 == begun;
    std::string text = messages[i].at("text").get<std::string>();
    if (last) text.resize(bytes);
    std::string recipient = messages[i].at("recipient").get<std::string>();
    const bool function = recipient.starts_with(kFunctions);
    if (function) recipient.erase(0, kFunctions.size());
    if (function || recipient == "weather") {
      const bool whole = !last || ended;
      said.calls.push_back({recipient, "", whole && text.empty() ? "{}" : text, whole});
      continue;
    }
    const bool thought = messages[i].at("channel") == "analysis" || !recipient.empty();
    std::string& all = thought ? said.thought : said.content;
    if (!all.empty() && !text.empty()) all += "\n";
    all += text;
  }
  return said;
}

TEST(HarmonyOracleTest, EveryTokenMeansTheSame) {
  const ChatParserOptions options = HarmonyOptions();
  size_t whole_ones = 0;
  for (const Json& vector : ReadVectors("harmony.json")) {
    const auto text = vector.at("text").get<std::string>();
    const auto control = vector.at("control").get<std::vector<size_t>>();
    const Json& messages = vector.at("messages");
    SCOPED_TRACE(text);
    Parsing by_token(options, text, control);
    for (const Json& state : vector.at("states")) {
      const size_t end = state[0].get<size_t>();
      ASSERT_EQ(by_token.Feed(end), OfMessages(messages, state[1], state[2], state[3] == 1))
          << "after " << end << " bytes";
    }
    const Json& last = vector.at("states").back();
    const bool whole = vector.at("whole").get<bool>();
    whole_ones += whole ? 1 : 0;
    const Said said = OfMessages(messages, last[1], last[2], whole || last[3] == 1);
    EXPECT_EQ(by_token.Finish(whole), said);
    Parsing by_byte(options, text, control);
    for (size_t end = 1; end < text.size(); ++end) by_byte.Feed(end);
    EXPECT_EQ(by_byte.Finish(whole), said) << "byte by byte";
    EXPECT_EQ(Parsing(options, text, control).Finish(whole), said) << "in one piece";
  }
  EXPECT_GE(whole_ones, 40u);
}

// What openai-harmony refuses, or takes for text, where models forget a token.
TEST(HarmonyOracleTest, WhereOursGoesOn) {
  const auto parse = [](const std::string& text) {
    Parsing parsing(HarmonyOptions(), text, [&] {
      std::vector<size_t> control;
      for (const std::string_view marker : HarmonyParser::kMarkers) {
        for (size_t at = text.find(marker); at != text.npos; at = text.find(marker, at + 1)) {
          control.push_back(at);
        }
      }
      std::sort(control.begin(), control.end());
      return control;
    }());
    return parsing.Finish(true);
  };
  // "Unexpected EOS while waiting for message header to complete".
  EXPECT_EQ(parse("Hello"), (Said{"", "Hello", {}}));
  // The markers are text of the first message there (vLLM showed them to users).
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|channel|>final<|message|>b"),
            (Said{"a", "b", {}}));
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b"),
            (Said{"a", "b", {}}));
  // "Unexpected token 198 while expecting start token 200006".
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|end|>\n<|start|>assistant<|channel|>final"
                  "<|message|>b<|return|>"),
            (Said{"a", "b", {}}));
  // The recipient is "functions.weather<|channel|>commentary" there.
  EXPECT_EQ(parse("<|channel|>commentary to=functions.weather<|channel|>commentary "
                  "<|constrain|>json<|message|>{}<|call|>"),
            (Said{"", "", {{"weather", "", "{}", true}}}));
}

// The other models

std::string WithoutSpace(std::string text) {
  std::erase_if(text, [](char c) { return kSpaces.find(c) != std::string_view::npos; });
  return text;
}

TEST(ToolGrammarOracleTest, CallsAreReadAsTheyWereMeant) {
  const Json vectors = ReadVectors("tool_calls.json");
  std::set<std::string> syntaxes;
  for (const Json& vector : vectors.at("outputs")) {
    const auto text = vector.at("text").get<std::string>();
    const auto name = vector.at("calls").get<std::string>();
    SCOPED_TRACE(vector.at("model").get<std::string>() + ": " + text);
    syntaxes.insert(name);
    ChatParserOptions options;
    options.syntax = FindChatSyntax("", name, vector.at("reasoning").get<std::string>());
    options.tools = ToolSchemas(vectors.at("tools"));
    options.calls = true;
    options.begins_in_reasoning = vector.at("in_reasoning").get<bool>();
    const Said said = Parsing(options, text).Finish(true);
    EXPECT_EQ(WithoutSpace(said.thought), WithoutSpace(vector.at("thought").get<std::string>()));
    EXPECT_EQ(WithoutSpace(said.content), WithoutSpace(vector.at("content").get<std::string>()));
    const Json& calls = vector.at("said");
    ASSERT_EQ(said.calls.size(), calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(said.calls[i].name, calls[i].at("name"));
      EXPECT_EQ(said.calls[i].id, calls[i].at("id"));
      EXPECT_TRUE(said.calls[i].ended);
      EXPECT_EQ(Json::parse(said.calls[i].arguments, nullptr, false), calls[i].at("arguments"))
          << said.calls[i].arguments;
    }
    ParseAllCuts(options, {text});
  }
  EXPECT_EQ(syntaxes,
            (std::set<std::string>{"deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4",
                                   "glm47", "hermes", "kimi_k2", "minimax_m2", "qwen3_coder"}));
}

}  // namespace oracle_test
}  // namespace moesaic
