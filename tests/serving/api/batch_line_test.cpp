#include "serving/api/batch_line.h"

#include <gtest/gtest.h>

#include <string>

#include "serving/api/json_text.h"

namespace moesaic {
namespace {

constexpr size_t operator""_sz(const char*, size_t bytes) { return bytes; }

std::string Refusal(const std::string& line) {
  try {
    ParseBatchLine(line, 1, {});
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param();
  }
  return "accepted";
}

TEST(BatchLineTest, OpenAiLines) {
  const BatchLine line = ParseBatchLine(
      R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"n":2},"more":1})",
      3, {});
  EXPECT_EQ(line.custom_id, "a");
  EXPECT_TRUE(line.chat);
  EXPECT_EQ(line.body, R"({"n":2})");
  EXPECT_FALSE(
      ParseBatchLine(R"({"custom_id":"a","url":"/v1/completions","body":{}})", 1, {}).chat);
}

TEST(BatchLineTest, PromptsBecomeRequests) {
  PromptDefaults defaults;
  defaults.max_tokens = 7;
  EXPECT_EQ(PromptBatchLine("say \"hi\"", 4, defaults).body,
            R"({"prompt":"say \"hi\"","max_tokens":7})");
  EXPECT_EQ(PromptBatchLine("x", 4, defaults).custom_id, "line-4");
  EXPECT_EQ(ParseBatchLine(R"({"prompt":"x","custom_id":"p","max_tokens":3})", 1, defaults).body,
            R"({"prompt":"x","max_tokens":3})");
  defaults.chat = true;
  defaults.temperature = 0;
  const BatchLine chat = ParseBatchLine(R"({"prompt":"x"})", 9, defaults);
  EXPECT_EQ(chat.custom_id, "line-9");
  EXPECT_EQ(chat.body, PromptBatchLine("x", 9, defaults).body);
  EXPECT_EQ(ParseJson(chat.body)["messages"][0]["content"], "x");
  EXPECT_FALSE(ParseBatchLine(R"({"prompt":[1,2]})", 9, defaults).chat);
}

// Of lines that are refused, and of those that are no JSON.
TEST(BatchLineTest, FindsTheIdOfABadLine) {
  const std::string whole = R"({"custom_id":"a","url":"/v1/completions","body":{"x":"}"}})";
  for (size_t bytes = R"({"custom_id":"a")"_sz; bytes <= whole.size(); ++bytes) {
    EXPECT_EQ(FindCustomId(whole.substr(0, bytes)), "a") << bytes;
  }
  for (size_t bytes = 0; bytes < R"({"custom_id":"a")"_sz; ++bytes) {
    EXPECT_EQ(FindCustomId(whole.substr(0, bytes)), "") << bytes;
  }
  EXPECT_EQ(FindCustomId(R"({"method": POST, "custom_id" : "b" broken)"), "b");
  EXPECT_EQ(FindCustomId(R"({"body":{"custom_id":"inner","y":[1]},"custom_id":"outer"})"), "outer");
  EXPECT_EQ(FindCustomId(R"({"a":"\",\"custom_id\":\"no\"","custom_id":"\u00e9\"\n"})"),
            "\u00e9\"\n");
  for (const char* none :
       {"", "{", "custom_id", R"({"custom_id":5})", R"({"custom_id":""})", R"(["custom_id","a"])",
        R"([{"custom_id":"a"}])", R"({"a":"custom_id","b":"c"})", R"({"body":{"custom_id":"a"}})",
        "{\"custom_id\":\"\xff\"}", R"({"custom_id":"\q"})", R"({"custom_id")", R"({"custom_id": )",
        R"({"custom_id":"\)"}) {
    EXPECT_EQ(FindCustomId(none), "") << none;
  }
  EXPECT_EQ(FindCustomId("{\"custom_id\":\"" + std::string(4096, 'x') + "\"}"),
            std::string(4096, 'x'));
  EXPECT_EQ(FindCustomId("{\"custom_id\":\"" + std::string(4097, 'x') + "\"}"), "");
}

TEST(BatchLineTest, KnowsItsOwnLines) {
  const std::string bad = BatchErrorLine(3, "a", BadParam("url", "url is missing."));
  const std::string good = BatchOutputLine("a", "req-1", "{}");
  EXPECT_TRUE(IsBatchErrorLine(bad));
  EXPECT_TRUE(bad.starts_with(kBatchLineStart));
  EXPECT_TRUE(good.starts_with(kBatchLineStart));
  for (const std::string& other : {good, bad.substr(0, bad.size() - 1), std::string("{}"),
                                   std::string("[]"), std::string("text"), std::string()}) {
    EXPECT_FALSE(IsBatchErrorLine(other)) << other;
  }
}

TEST(BatchLineTest, RefusesWhatIsWrong) {
  EXPECT_EQ(Refusal(R"({"url":"/v1/completions","body":{}})"), "custom_id");
  EXPECT_EQ(Refusal(R"({"custom_id":"a","body":{}})"), "url");
  EXPECT_EQ(Refusal(R"({"custom_id":"a","url":"/v1/completions"})"), "body");
  EXPECT_EQ(Refusal(R"({"custom_id":"a","url":"/v1/completions","body":{},"method":"GET"})"),
            "method");
  EXPECT_EQ(Refusal(R"({"custom_id":5,"url":"/v1/completions","body":{}})"), "custom_id");
  EXPECT_NE(Refusal("5"), "accepted");
  EXPECT_NE(Refusal("{"), "accepted");
}

TEST(BatchLineTest, OutputNamesItsRequest) {
  const std::string line = BatchOutputLine("a \"b\"", "req-1", R"({"choices":[]})");
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(CustomIdOfOutput(line), "a \"b\"");
  const Json json = ParseJson(line);
  EXPECT_EQ(json["response"]["body"]["choices"], Json::array());
  EXPECT_TRUE(json["error"].is_null());
  EXPECT_THROW(CustomIdOfOutput(R"({"custom_id":"a"})"), ApiError);
  EXPECT_THROW(CustomIdOfOutput("{"), ApiError);
}

TEST(BatchLineTest, ErrorsNameTheirLine) {
  const Json json = ParseJson(BatchErrorLine(12, "", BadParam("url", "wrong\n\"url\"")));
  EXPECT_EQ(json["line"], 12);
  EXPECT_TRUE(json["custom_id"].is_null());
  EXPECT_EQ(json["error"]["code"], "invalid_value");
  EXPECT_EQ(json["response"]["status_code"], 400);
  EXPECT_EQ(json["response"]["body"]["error"]["param"], "url");
}

}  // namespace
}  // namespace moesaic
