// Requests of coding agents: none of them is refused, and their conversations and tools arrive.
// tests/data/agent_recordings.json has what agents that ran have sent, agent_requests.json what
// others send after the public sources that each one names, where one was read. Texts are
// shortened; which members there are, and of which shape, is kept.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "serving/api/api_error.h"
#include "serving/api/json_text.h"
#include "serving/api/messages_request.h"
#include "serving/api/ollama_request.h"
#include "serving/api/responses_request.h"

namespace moesaic {
namespace agent_requests_test {

ChatRequest Parse(const std::string& route, const std::string& body) {
  if (route.starts_with("/v1/messages/count_tokens")) return ParseCountTokensRequest(body);
  if (route.starts_with("/v1/messages")) return ParseMessagesRequest(body);
  if (route == "/v1/responses") return ParseResponsesRequest(body);
  if (route == "/api/chat") return ParseOllamaChatRequest(body);
  EXPECT_EQ(route, "/v1/chat/completions");
  return ParseChatRequest(body);
}

std::vector<std::string> NamesOf(const Json& list, const char* name) {
  std::vector<std::string> names;
  for (const Json& item : list) names.push_back(item.at(name).get<std::string>());
  return names;
}

void ExpectTaken(const std::string& name) {
  std::ifstream file(std::string(MOESAIC_TEST_DATA_DIR) + "/" + name);
  ASSERT_TRUE(file.good());
  const Json requests = Json::parse(file);
  EXPECT_GE(requests.size(), 10u);
  for (const Json& request : requests) {
    SCOPED_TRACE(request.at("agent").get<std::string>());
    const Json& expected = request.at("expect");
    ChatRequest parsed;
    try {
      parsed = Parse(request.at("route"), request.at("body").dump());
    } catch (const ApiError& error) {
      ADD_FAILURE() << error.param() << ": " << error.what();
      continue;
    }
    EXPECT_EQ(NamesOf(parsed.chat.messages, "role"), expected.at("roles"));
    std::vector<std::string> tools;
    for (const Json& tool : parsed.chat.tools) tools.push_back(tool["function"]["name"]);
    EXPECT_EQ(tools, expected.at("tools"));
    EXPECT_EQ(parsed.unknown_fields, expected.at("unknown"));
    EXPECT_EQ(parsed.stream, expected.value("stream", false));
    EXPECT_EQ(parsed.max_tokens.value_or(0), expected.value("max_tokens", 0));
    EXPECT_FALSE(parsed.chat.force_call);
    // Every result belongs to a call before it.
    for (const Json& message : parsed.chat.messages) {
      if (message["role"] != "tool") continue;
      EXPECT_NE(DumpJson(parsed.chat.messages)
                    .find("\"id\":\"" + message["tool_call_id"].get<std::string>() + "\""),
                std::string::npos);
    }
    EXPECT_EQ(DumpJson(parsed.chat.messages).find("billing-header"), std::string::npos);
  }
}

TEST(AgentRequestsTest, AreTaken) { ExpectTaken("agent_requests.json"); }

TEST(AgentRequestsTest, RecordedOnesAreTaken) { ExpectTaken("agent_recordings.json"); }

}  // namespace agent_requests_test
}  // namespace moesaic
