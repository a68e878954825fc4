// Conversations that come back: the model's own turns are the tokens that it generated, whatever
// the client has made of their JSON.
#include "serving/api/replayed_prompt.h"

#include <gtest/gtest.h>

#include <atomic>

#include "serving/api/chat_format.h"
#include "serving/api/prepared_request.h"
#include "serving/api/replay_store.h"
#include "serving/text/chat_template.h"
#include "tests/serving/api/test_engine.h"
#include "tests/serving/api/test_tokenizer.h"

namespace moesaic {
namespace replay_test {

constexpr int32_t kEnd = ByteTokenizer::kEnd;
// Of no text: who finds them in a prompt knows that they were not made of one.
constexpr int32_t kOne = 1;
constexpr int32_t kTwo = 2;

// As Qwen3's template has it, in small: reasoning only of answers behind the last user's message.
constexpr const char* kTemplate =
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning and loop.index0 > ns.last %}<think>\n{{ m.reasoning }}\n</think>\n\n{% "
    "endif %}"
    "{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", "
    "\"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}"
    "<end>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

class ReplayTest : public ::testing::Test {
 protected:
  ReplayTest() {
    TestEngine::Options options;
    options.manual = true;
    options.vocab_size = 257;
    ServedModel model;
    model.names = {"m"};
    model.engine = std::make_shared<TestEngine>(tokenizer_, options);
    model.chat_template =
        std::make_shared<const ChatTemplate>("test", kTemplate, "", ChatTemplate::SpecialTokens());
    model.chat_format = MakeChatFormat(model.chat_template.get(), tokenizer_, "auto", "auto");
    model.replay = store_;
    models_ = std::make_unique<ModelTable>(std::vector<ServedModel>{model});
  }

  PreparedRequest Prepare(const std::string& messages, const std::string& more = {}) {
    const std::string body =
        R"({"tools":[{"type":"function","function":{"name":"f"}}],"messages":)" + messages + more +
        "}";
    return PrepareRequest(body, *models_, {ApiDialect::kChat, "r", 1024, std::nullopt, gone_});
  }
  std::vector<int32_t> Prompt(const std::string& messages) {
    return Prepare(messages).requests[0].prompt;
  }

  // The model answers with this text in tokens that no tokeniser would make of it. Returns the
  // message as a client gets it.
  Json Answer(PreparedRequest request, const std::string& text,
              FinishReason finish = FinishReason::kStop,
              std::vector<int32_t> tokens = {kOne, kTwo, kEnd}) {
    const auto output = MakeApiOutput(std::move(request.spec), std::move(request.spell));
    OutputDelta delta;
    delta.text = text;
    for (const int32_t token : tokens) delta.tokens.push_back(GeneratedToken{token, 0, {}});
    delta.finish = finish;
    output->Collect(0, delta);
    return ParseJson(output->FinalBody())["choices"][0]["message"];
  }

  static constexpr const char* kUser = R"({"role":"user","content":"hi"})";
  std::string Conversation(const Json& answer, const std::string& result = "R") const {
    return std::string("[") + kUser + "," + DumpJson(answer) + R"(,{"role":"tool","content":")" +
           result + R"("}])";
  }

  const ByteTokenizer tokenizer_;
  const std::shared_ptr<ReplayStore> store_ = std::make_shared<ReplayStore>(1 << 20);
  std::unique_ptr<ModelTable> models_;
  std::atomic<bool> gone_{false};
};

bool Has(const std::vector<int32_t>& tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

constexpr const char* kCall =
    "Well.<tool_call>\n{\"arguments\":{\"b\":1,\"a\":[2, 3]},   \"name\":\"f\"}\n</tool_call>";

TEST_F(ReplayTest, ATurnComesBackAsItsTokens) {
  const std::string first = std::string("[") + kUser + "]";
  const std::vector<int32_t> prompt = Prompt(first);
  Json answer = Answer(Prepare(first), kCall);
  // What a client makes of it: the same, written anew.
  ASSERT_EQ(answer["tool_calls"].size(), 1u);
  Json& arguments = answer["tool_calls"][0]["function"]["arguments"];
  arguments = DumpJson(ParseJson(arguments.get<std::string>()));
  std::vector<int32_t> want = prompt;
  want.insert(want.end(), {kOne, kTwo, kEnd});
  const std::string rest = "[tool]R<end>[assistant]";
  for (const auto& part :
       {std::string("[tool]R"), std::string("<end>"), std::string("[assistant]")}) {
    if (part == "<end>") {
      want.push_back(kEnd);
    } else {
      want.insert(want.end(), part.begin(), part.end());
    }
  }
  EXPECT_EQ(Prompt(Conversation(answer)), want);
}

TEST_F(ReplayTest, TurnsFollowEachOther) {
  const std::string first = std::string("[") + kUser + "]";
  const Json one = Answer(Prepare(first), kCall);
  const std::string second = Conversation(one);
  const std::vector<int32_t> prompt = Prompt(second);
  const Json two = Answer(Prepare(second), kCall, FinishReason::kStop, {3, 4, kEnd});
  ASSERT_NE(one["tool_calls"][0]["id"], two["tool_calls"][0]["id"]);
  const std::vector<int32_t> third =
      Prompt(second.substr(0, second.size() - 1) + "," + DumpJson(two) + "]");
  ASSERT_GT(third.size(), prompt.size());
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), third.begin()));
  EXPECT_EQ(third[prompt.size()], 3);
  EXPECT_TRUE(Has(third, kOne));
}

// A client that changes what was said gets what it says.
TEST_F(ReplayTest, AnotherMeaningIsAnotherPrompt) {
  const std::string first = std::string("[") + kUser + "]";
  const Json answer = Answer(Prepare(first), kCall);
  EXPECT_TRUE(Has(Prompt(Conversation(answer)), kOne));
  Json changed = answer;
  changed["content"] = "Well!";
  EXPECT_FALSE(Has(Prompt(Conversation(changed)), kOne));
  changed = answer;
  changed["tool_calls"][0]["function"]["arguments"] = R"({"b":1,"a":[3,2]})";
  EXPECT_FALSE(Has(Prompt(Conversation(changed)), kOne));
  changed = answer;
  changed["tool_calls"][0]["function"]["name"] = "g";
  EXPECT_FALSE(Has(Prompt(Conversation(changed)), kOne));
  changed = answer;
  changed["tool_calls"][0]["id"] = "call_other";
  EXPECT_FALSE(Has(Prompt(Conversation(changed)), kOne));
  // Another beginning.
  std::string other = Conversation(answer);
  other.replace(other.find("hi"), 2, "ho");
  EXPECT_FALSE(Has(Prompt(other), kOne));
}

// The template decides what becomes of reasoning, and the client whether it comes back.
TEST_F(ReplayTest, Reasoning) {
  const std::string first = std::string("[") + kUser + "]";
  const Json answer = Answer(Prepare(first), std::string("<think>\nhm\n</think>\n\n") + kCall);
  EXPECT_TRUE(Has(Prompt(Conversation(answer)), kOne));
  Json without = answer;
  without.erase("reasoning");
  without.erase("reasoning_content");
  EXPECT_FALSE(Has(Prompt(Conversation(without)), kOne));
  std::string later = Conversation(answer);
  later.insert(later.size() - 1, R"(,{"role":"user","content":"and?"})");
  EXPECT_FALSE(Has(Prompt(later), kOne));  // the template leaves the reasoning out
}

TEST_F(ReplayTest, WhatIsNotWholeIsNotKept) {
  const std::string first = std::string("[") + kUser + "]";
  Answer(Prepare(first), kCall, FinishReason::kLength);
  Answer(Prepare(first), kCall, FinishReason::kStop, {kOne, kTwo});  // by a stop string
  Answer(Prepare(first), "no call");
  Answer(Prepare(first, R"(,"include_reasoning":false)"), kCall);
  EXPECT_EQ(store_->bytes(), 0u);
  Answer(Prepare(first), kCall);
  EXPECT_GT(store_->bytes(), 0u);
}

// Ends that a client writes are text.
TEST_F(ReplayTest, TheTurnEndsWhereTheTemplateEndsIt) {
  const std::string first = std::string("[") + kUser + "]";
  const Json answer = Answer(
      Prepare(first), "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"x<end>y\"}}</tool_call>");
  const std::vector<int32_t> tokens = Prompt(Conversation(answer));
  EXPECT_TRUE(Has(tokens, kOne));
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), kEnd), 3);
}

GeneratedTurn Turn(const std::string& id, size_t tokens) {
  GeneratedTurn turn;
  turn.tokens.resize(tokens);
  turn.items = {{AnswerItem::Kind::kContent, "text", "", ""},
                {AnswerItem::Kind::kCall, "{}", id, "f"}};
  return turn;
}

TEST(ReplayStoreTest, TheOldestLeave) {
  ReplayStore store(10'000);
  for (const char* id : {"a", "b", "c"}) store.Put(Turn(id, 700));  // some 3 KB each
  EXPECT_NE(store.Find("a"), nullptr);  // now "b" is the one that was not used for longest
  store.Put(Turn("d", 700));
  EXPECT_EQ(store.Find("b"), nullptr);
  for (const char* id : {"a", "c", "d"}) EXPECT_NE(store.Find(id), nullptr) << id;
  EXPECT_LE(store.bytes(), 10'000u);
}

TEST(ReplayStoreTest, OneTurnForAnId) {
  ReplayStore store(10'000);
  store.Put(Turn("a", 10));
  const size_t bytes = store.bytes();
  store.Put(Turn("a", 11));
  EXPECT_EQ(store.Find("a")->tokens.size(), 11u);
  EXPECT_EQ(store.bytes(), bytes + 4);
  store.Put(Turn("a", 100'000));  // larger than all there is: what is there is not its anyway
  EXPECT_EQ(store.Find("a"), nullptr);
  EXPECT_EQ(store.bytes(), 0u);
  store.Put(Turn("", 10));
  store.Put({});
  EXPECT_EQ(store.bytes(), 0u);
}

}  // namespace replay_test
}  // namespace moesaic
