// Calls of tools and reasoning over the wire.
#include <gtest/gtest.h>

#include "tests/serving/http/server_fixture.h"
#include "tests/serving/http/test_client.h"

namespace moesaic {
namespace {

constexpr const char* kTools =
    R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}])";

class ServerToolsTest : public ServerTest {
 protected:
  void SetUp() override {
    engine_options_.manual = true;
    chat_template_ = "{% for m in messages %}{{ m.content }}{% endfor %}<tool_call></think>";
    Start();
  }
  // The model says `text`, which ends or not.
  void Say(const std::string& text, std::optional<FinishReason> finish) {
    engine_->WaitForSubmitted(++requests_);
    const RequestId id = engine_->Running().front();
    engine_->EmitText(id, text);
    if (finish) engine_->Emit(id, 0, finish);
  }

  size_t requests_ = 0;
};

TEST_F(ServerToolsTest, Whole) {
  TestClient client(port());
  client.Send(TestClient::PostText("/v1/chat/completions", Chat(99, kTools)));
  Say("<think>a</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>",
      FinishReason::kStop);
  const Json choice = client.Receive().json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["reasoning"], "a");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"x": 1})");
}

TEST_F(ServerToolsTest, WithoutToolsATagIsText) {
  TestClient client(port());
  const std::string call = R"(<tool_call>{"name": "f"}</tool_call>)";
  client.Send(TestClient::PostText("/v1/chat/completions",
                                   Chat(99, std::string(kTools) + R"(,"tool_choice":"none")")));
  Say(call, FinishReason::kStop);
  const Json choice = client.Receive().json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["content"], call);
}

// With parallel_tool_calls false the engine is told to stop, and that is a good end.
TEST_F(ServerToolsTest, OneCallAtATime) {
  for (const bool stream : {false, true}) {
    TestClient client(port());
    client.Send(TestClient::PostText(
        "/v1/chat/completions", Chat(99, std::string(kTools) + R"(,"parallel_tool_calls":false)" +
                                             (stream ? R"(,"stream":true)" : ""))));
    Say(R"(<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>)",
        std::nullopt);
    const TestResponse response = client.Receive();
    EXPECT_EQ(response.status, 200);
    if (stream) {
      const std::vector<Json> events = SseEvents(response.body);
      EXPECT_EQ(events.back(), "[DONE]");
      EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "tool_calls");
      EXPECT_EQ(response.body.find("\"g\""), std::string::npos);
    } else {
      const Json choice = response.json()["choices"][0];
      EXPECT_EQ(choice["finish_reason"], "tool_calls");
      EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
    }
  }
  EXPECT_EQ(engine_->cancelled(), 2u);
}

// What stands in the prompt of a call is part of the answer, whoever wrote it.
TEST_F(ServerToolsTest, ForcedCallsBeginInThePrompt) {
  const std::string named = R"(,"tool_choice":{"type":"function","function":{"name":"f"}})";
  for (const bool stream : {false, true}) {
    TestClient client(port());
    client.Send(TestClient::PostText(
        "/v1/chat/completions", Chat(99, kTools + named + (stream ? R"(,"stream":true)" : ""))));
    Say("{\"x\": 1}}\n</tool_call>", FinishReason::kStop);
    const EngineRequest request = engine_->Request(requests_);
    const std::string prompt(request.prompt.begin(), request.prompt.end());
    EXPECT_TRUE(prompt.ends_with("</think><tool_call>\n{\"name\": \"f\", \"arguments\": "))
        << prompt;
    const TestResponse response = client.Receive();
    std::string arguments, name;
    if (stream) {
      for (const Json& event : SseEvents(response.body)) {
        if (!event.is_object() || !event["choices"][0]["delta"].contains("tool_calls")) continue;
        const Json& function = event["choices"][0]["delta"]["tool_calls"][0]["function"];
        name += function.value("name", "");
        arguments += function.value("arguments", "");
      }
    } else {
      const Json choice = response.json()["choices"][0];
      EXPECT_EQ(choice["finish_reason"], "tool_calls");
      name = choice["message"]["tool_calls"][0]["function"]["name"];
      arguments = choice["message"]["tool_calls"][0]["function"]["arguments"];
    }
    EXPECT_EQ(name, "f");
    EXPECT_EQ(arguments, R"({"x": 1})");
  }
}

TEST_F(ServerToolsTest, ACallThatIsNoneAfterAllIsContent) {
  TestClient client(port());
  client.Send(TestClient::PostText("/v1/chat/completions",
                                   Chat(99, std::string(kTools) + R"(,"tool_choice":"required")")));
  Say("", FinishReason::kStop);
  const Json choice = client.Receive().json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["content"], "<tool_call>\n{\"name\": \"");
}

TEST_F(ServerTest, CallsOfAnUnknownSyntaxCannotBeForced) {
  Start();
  TestClient client(port());
  const TestResponse response = client.Post(
      "/v1/chat/completions", Chat(9, std::string(kTools) + R"(,"tool_choice":"required")"));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.json()["error"]["param"], "tool_choice");
}

}  // namespace
}  // namespace moesaic
