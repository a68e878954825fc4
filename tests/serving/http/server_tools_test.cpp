// Calls of tools and reasoning over the wire.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <map>
#include <memory>
#include <vector>

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

// All open at once, their calls said piece by piece and in turns: each client gets its own, those
// that leave are cancelled, and nothing is left behind.
TEST_F(ServerToolsTest, AThousandOpenStreams) {
  constexpr size_t kStreams = 1000;
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;  // two for each stream
  setrlimit(RLIMIT_NOFILE, &files);
  ASSERT_GE(files.rlim_max, 2 * kStreams + 100);
  std::vector<std::unique_ptr<TestClient>> clients;
  std::map<RequestId, size_t> stream_of;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients[i]->Send(
        TestClient::PostText("/v1/chat/completions",
                             Chat(99, fmt::format(R"({},"stream":true,"user":"{}")", kTools, i))));
    engine_->WaitForSubmitted(i + 1);
    stream_of[i + 1] = i;  // the engine numbers them as they come
  }
  WaitForMetric("moe_http_connections", kStreams);
  ASSERT_EQ(engine_->Running().size(), kStreams);
  const auto name = [](size_t stream) { return fmt::format("of stream {}", stream); };
  const std::vector<std::string> pieces = {"<think>",
                                           "I am ",
                                           "@",
                                           "</thi",
                                           "nk>Wait.<tool_",
                                           "call>\n{\"name\": \"f\", \"argu",
                                           "ments\": {\"x\": \"",
                                           "@",
                                           "\"}}\n</tool_",
                                           "call>"};
  for (const std::string& piece : pieces) {
    for (const auto& [id, stream] : stream_of) {
      engine_->EmitText(id, piece == "@" ? name(stream) : piece);
    }
  }
  size_t left = 0;
  for (const auto& [id, stream] : stream_of) {
    if (stream % 10 == 3) {
      clients[stream]->Reset();
      ++left;
    }
  }
  engine_->WaitForCancelled(left);
  for (const auto& [id, stream] : stream_of) engine_->Emit(id, 0, FinishReason::kStop);
  for (size_t i = 0; i < kStreams; ++i) {
    if (i % 10 == 3) continue;
    const TestResponse response = clients[i]->Receive();
    ASSERT_TRUE(response.complete) << i;
    std::string reasoning, content, arguments, finish;
    for (const Json& event : SseEvents(response.body)) {
      if (!event.is_object()) continue;
      const Json& choice = event["choices"][0];
      reasoning += choice["delta"].value("reasoning", "");
      content += choice["delta"].value("content", "");
      if (choice["delta"].contains("tool_calls")) {
        arguments += choice["delta"]["tool_calls"][0]["function"].value("arguments", "");
      }
      if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
    }
    ASSERT_EQ(reasoning, "I am " + name(i));
    ASSERT_EQ(content, "Wait.");
    ASSERT_EQ(arguments, fmt::format(R"({{"x": "{}"}})", name(i)));
    ASSERT_EQ(finish, "tool_calls");
  }
  clients.clear();
  WaitForMetric("moe_http_connections", 0);
  EXPECT_TRUE(engine_->Running().empty());
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
