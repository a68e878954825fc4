#include "serving/http/api_keys.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/base/error.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

std::string Refusal(const std::string& text) {
  try {
    ApiKeys keys(ParseApiKeyFile(text, "keys"));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(ApiKeysTest, FindsWholeKeysOnly) {
  const ApiKeys keys({{"first"}, {"second-key"}, {"third"}});
  EXPECT_EQ(keys.Find("first")->key, "first");
  EXPECT_EQ(keys.Find("second-key")->key, "second-key");
  EXPECT_EQ(keys.Find("third")->key, "third");
  for (const char* wrong : {"", "firs", "firstt", "FIRST", "firstfirst", "second", "key"}) {
    EXPECT_EQ(keys.Find(wrong), nullptr) << wrong;
  }
  EXPECT_TRUE(ApiKeys().empty());
  EXPECT_EQ(ApiKeys().Find("first"), nullptr);
}

TEST(ApiKeysTest, LinesAreKeys) {
  const auto keys = ParseApiKeyFile("# ours\none\n\n two words \r\n\tthree\n#four\nfive", "keys");
  EXPECT_EQ(keys, (std::vector<ApiKey>{{"one"}, {"two words"}, {"three"}, {"five"}}));
}

TEST(ApiKeysTest, LinesOfJsonHaveNamesAndRights) {
  const auto keys = ParseApiKeyFile(
      "plain\n"
      R"({"key": "k1", "name": "alice@site.org", "models": ["a", "org/b"]})"
      "\n"
      R"(  {"key": "k 2", "admin": true})"
      "\n"
      R"({"key": "k3", "admin": false, "name": ""})",
      "keys");
  ASSERT_EQ(keys.size(), 4u);
  EXPECT_EQ(keys[0], (ApiKey{"plain"}));
  EXPECT_EQ(keys[1], (ApiKey{"k1", "alice@site.org", {"a", "org/b"}, false}));
  EXPECT_EQ(keys[2], (ApiKey{"k 2", "", {}, true}));
  EXPECT_EQ(keys[3], (ApiKey{"k3"}));
  const auto limited = ParseApiKeyFile(
      R"({"key": "k", "requests_per_minute": 60, "tokens_per_minute": 1e5})", "keys");
  EXPECT_EQ(limited[0], (ApiKey{"k", "", {}, false, 60, 1e5}));
  const auto late = ParseApiKeyFile(
      "{\"key\": \"k\", \"priority\": 0}\n{\"key\": \"l\", \"priority\": -2147483648}", "keys");
  EXPECT_EQ(late[0].priority, 0);
  EXPECT_EQ(late[1].priority, INT32_MIN);
  EXPECT_EQ(limited[0].priority, std::nullopt);
}

// What is wrong is told with the line, and nothing that may be a key is.
TEST(ApiKeysTest, RefusesWithoutShowingKeys) {
  for (const char* line : {
           R"({"key": "sk-secret")",
           R"({"key": "sk-secret", "requests_per_minute": 0})",
           R"({"key": "sk-secret", "tokens_per_minute": "many"})",
           R"({"key": "sk-secret", "priority": 0.5})",
           R"({"key": "sk-secret", "priority": 2147483648})",
           R"({"key": "sk-secret", "priority": 18446744073709551615})",
           R"({"key": "sk-secret", "priority": -2147483649})",
           R"({"key": "sk-secret", "priority": null})",
           R"({"key": sk-secret})",
           R"({"key": "sk-secret", "key": "sk-secret"})",
           R"({"key": "sk-secret", "admin": "sk-secret"})",
           R"({"key": "sk-secret", "admin": 1})",
           R"({"key": "sk-secret", "name": 7})",
           R"({"key": "sk-secret", "name": "two words"})",
           R"({"key": "sk-secret", "name": "line\nbreak"})",
           R"({"key": "sk-secret", "models": []})",
           R"({"key": "sk-secret", "models": "sk-secret"})",
           R"({"key": "sk-secret", "models": {"a": "b"}})",
           R"({"key": "sk-secret", "models": ["a", 1]})",
           R"({"key": "sk-secret", "Admin": true})",
           R"({"key": " sk-secret"})",
           R"({"key": "sk-\nsecret"})",
           R"({"key": ""})",
           R"({"key": null})",
           R"({"name": "nobody"})",
           "{}",
       }) {
    const std::string message = Refusal(std::string("# a line before\n") + line + "\nother\n");
    EXPECT_NE(message.find("keys: line 2: "), std::string::npos) << line << ": " << message;
    EXPECT_EQ(message.find("secret"), std::string::npos) << message;
  }
  EXPECT_NE(Refusal(R"({"key": "k", "rights": 1})").find("\"rights\" is none of"),
            std::string::npos);
}

TEST(ApiKeysTest, ClientsAreNamesOrTellNoKey) {
  EXPECT_EQ(ClientOf({"sk-secret", "alice"}), "alice");
  const std::string client = ClientOf({"sk-secret"});
  EXPECT_EQ(client, ClientOf({"sk-secret"}));
  EXPECT_NE(client, ClientOf({"sk-secre"}));
  EXPECT_EQ(client[0], '#');
  EXPECT_EQ(client.find("secret"), std::string::npos);
}

TEST(ApiKeysTest, AKeyHasOneSetOfRights) {
  EXPECT_EQ(Refusal("one\none\n"), "");  // as an older file may have it
  const std::string message = Refusal(R"({"key": "sk-secret", "name": "bob", "admin": true})"
                                      "\nsk-secret\n");
  EXPECT_NE(message.find("the key of 'bob' is there twice"), std::string::npos) << message;
  EXPECT_EQ(message.find("secret"), std::string::npos);
}

TEST(ApiKeysTest, LoadsGivenKeysAndTheFile) {
  const TempDir directory;
  const auto file = directory.path() / "keys";
  std::ofstream(file) << "one\n"
                      << R"({"key": "two", "admin": true})"
                      << "\n";
  const ApiKeys keys = LoadApiKeys({"given"}, file);
  EXPECT_FALSE(keys.Find("given")->admin);
  EXPECT_FALSE(keys.Find("one")->admin);
  EXPECT_TRUE(keys.Find("two")->admin);
  EXPECT_EQ(LoadApiKeys({"given"}, "").Find("one"), nullptr);
  std::ofstream(file) << "# none\n";
  EXPECT_THROW(LoadApiKeys({"given"}, file), Error);
  EXPECT_THROW(LoadApiKeys({""}, ""), Error);
  EXPECT_THROW(LoadApiKeys({}, directory.path() / "missing"), Error);
}

}  // namespace
}  // namespace moesaic
