// tiktoken.model against the library tiktoken (scripts/make_tokenizer_vectors.py), with the sample
// model's vocabulary as ranks.
#include "serving/text/tiktoken_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "serving/text/byte_level.h"
#include "tests/core/base/caught.h"
#include "tests/serving/text/tokenizer_test_data.h"

namespace moesaic {
namespace {

using nlohmann::json;

std::string ToBase64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = i; j < i + 3; ++j) {
      bits = bits << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      const bool padded = i + j > bytes.size();
      text.push_back(padded ? '=' : kDigits[bits >> (18 - 6 * j) & 63]);
    }
  }
  return text;
}

// The sample model's vocabulary, as a tiktoken.model has it.
std::string SampleRanks() {
  const std::string path = std::string(MOESAIC_SAMPLE_MODEL_DIR) + "/tokenizer.json";
  const json vocabulary = json::parse(ReadTextFile(std::filesystem::path(path)))["model"]["vocab"];
  std::string text;
  for (const auto& [token, id] : vocabulary.items()) {
    text += ToBase64(*DecodeByteLevel(token)) + " " + std::to_string(id.get<int>()) + "\n";
  }
  return text;
}

// What tokenizer_config.json of such a model says.
json ConfigWith(const json& special) {
  json added = json::object();
  for (const auto& [content, id] : special.items()) {
    added[std::to_string(id.get<int>())] = {{"content", content}, {"special", true}};
  }
  return {{"tokenizer_class", "TikTokenTokenizer"},
          {"added_tokens_decoder", added},
          {"eos_token", "<|im_end|>"}};
}

TEST(TiktokenTest, IdsAreThoseOfTiktoken) {
  const json expected = TokenizerJsonData("tiktoken/oracle.json");
  const TemporaryDirectory directory;
  directory.Write("tiktoken.model", SampleRanks());
  directory.Write("tokenizer_config.json", ConfigWith(expected["special"]).dump());
  const auto tokenizer = LoadTokenizer(directory.path());
  const json texts = TokenizerJsonData("oracle_texts.json");
  ASSERT_EQ(texts.size(), expected["ids"].size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const std::vector<int32_t> ids =
        tokenizer->Encode(text, {.add_special_tokens = true, .parse_special = false});
    ASSERT_EQ(ids, expected["ids"][i].get<std::vector<int32_t>>()) << i << ": " << text;
    ASSERT_EQ(tokenizer->Decode(ids, false), text) << i;
  }
  for (const json& more : expected["more"]) {
    const auto text = more[0].get<std::string>();
    const std::vector<int32_t> ids =
        tokenizer->Encode(text, {.add_special_tokens = true, .parse_special = true});
    EXPECT_EQ(ids, more[1].get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(tokenizer->Decode(ids, false), text);
  }
  EXPECT_EQ(tokenizer->special_ids().eos, expected["special"]["<|im_end|>"].get<int32_t>());
}

TEST(TiktokenTest, IdsBehindTheFilesAreReserved) {
  TokenizerSettings settings;
  settings.tokenizer_class = "TikTokenTokenizer";
  AddedToken named;
  named.id = 3;
  named.content = "[EOS]";
  named.special = true;
  settings.added_tokens.push_back(named);
  const auto tokenizer = LoadTiktoken("YQ== 0\r\nYg== 1\nYWI= 2", "m", settings);
  EXPECT_EQ(tokenizer->vocab_size(), 3 + 256);
  EXPECT_EQ(tokenizer->IdToToken(2), "ab");
  EXPECT_EQ(tokenizer->IdToToken(3), "[EOS]");
  EXPECT_EQ(tokenizer->IdToToken(4), "<|reserved_token_4|>");
  EXPECT_TRUE(tokenizer->IsSpecial(258));
  EXPECT_EQ(tokenizer->Encode("aab[EOS]b", {.add_special_tokens = false, .parse_special = true}),
            (std::vector<int32_t>{0, 2, 3, 1}));
}

// Of equal ranks the leftmost is merged first, whatever the parts are: "aaaa" with "aa" and "aaa".
TEST(TiktokenTest, EqualRanksAreMergedFromTheLeft) {
  TokenizerSettings settings;
  settings.tokenizer_class = "TikTokenTokenizer";
  const auto tokenizer = LoadTiktoken("YQ== 0\nYWE= 1\nYWFh 2\n", "m", settings);
  EXPECT_EQ(tokenizer->Encode("aaaaa", {}), (std::vector<int32_t>{1, 2}));
}

// A word that is a token is that token, also where no merges of tokens lead to it.
TEST(TiktokenTest, WholeWordsAreLookedUpFirst) {
  TokenizerSettings settings;
  settings.tokenizer_class = "TikTokenTokenizer";
  const auto tokenizer = LoadTiktoken("YQ== 0\nYg== 1\nYw== 2\nYWJj 3\n", "m", settings);
  EXPECT_EQ(tokenizer->Encode("abc", {}), (std::vector<int32_t>{3}));
  EXPECT_EQ(tokenizer->Encode("abcc", {}), (std::vector<int32_t>{0, 1, 2, 2}));
}

TEST(TiktokenTest, SaysWhatIsWrong) {
  struct Case {
    const char* text;
    const char* expected;
  };
  const std::string large = ToBase64(std::string(1025, 'a')) + " 0";
  const Case cases[] = {{"", "is empty"},
                        {"YQ== 0\nYg==", "line 2: it has no space"},
                        {"Y 0", "line 1: the token is not base64"},
                        {"Y=Q= 0", "not base64"},
                        {"Y*== 0", "not base64"},
                        {" 0", "not base64"},
                        {"YQ== x", "rank"},
                        {"YQ== 1 2", "rank"},
                        {"YQ== -1", "rank"},
                        {"YQ== 9999999999", "rank"},
                        {"YQ== 0\nYQ== 1", "line 2: the token occurs twice"},
                        {"YQ== 0\nYg== 0", "occurs twice"},
                        {large.c_str(), "1024 bytes"}};
  TokenizerSettings settings;
  settings.tokenizer_class = "TikTokenTokenizer";
  for (const Case& c : cases) {
    const Error error = Caught([&] { LoadTiktoken(c.text, "dir/tiktoken.model", settings); });
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << c.text;
    EXPECT_NE(std::string(error.what()).find(c.expected), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("dir/tiktoken.model"), std::string::npos);
  }
  settings.tokenizer_class = "QWenTokenizer";
  const Error error = Caught([&] { LoadTiktoken("YQ== 0", "dir/tiktoken.model", settings); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_NE(std::string(error.what()).find("QWenTokenizer"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
