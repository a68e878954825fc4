// Whole tokenizers against ids that others computed: llama.cpp's published vectors, what Hugging
// Face's tokenizers gives for many texts (scripts/make_tokenizer_vectors.py), and the sample
// model's reference prompts.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "serving/text/detokenizer.h"
#include "serving/text/tokenizer.h"
#include "tests/serving/text/tokenizer_test_data.h"

namespace moesaic {
namespace {

std::vector<std::string> SplitBy(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  size_t end;
  while ((end = text.find(separator, begin)) != std::string::npos) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

struct Vectors {
  const char* vocabulary;
  const char* source;  // the folder with the vectors
};
void PrintTo(const Vectors& vectors, std::ostream* out) { *out << vectors.vocabulary; }

class TokenizerVectorsTest : public testing::TestWithParam<Vectors> {};

TEST_P(TokenizerVectorsTest, AllPublishedVectorsMatch) {
  const std::string source = GetParam().source;
  const std::vector<std::string> texts =
      SplitBy(TokenizerTextData(source + "/vectors.inp"), "\n__ggml_vocab_test__\n");
  const std::vector<std::string> lines = SplitBy(TokenizerTextData(source + "/vectors.out"), "\n");
  ASSERT_EQ(texts.size(), 47u);
  ASSERT_GE(lines.size(), texts.size());
  const Tokenizer& tokenizer = TestTokenizer(GetParam().vocabulary);
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<int32_t> expected;
    std::istringstream line(lines[i]);
    for (int32_t id; line >> id;) expected.push_back(id);
    const EncodeOptions options{.add_special_tokens = false, .parse_special = false};
    EXPECT_EQ(tokenizer.Encode(texts[i], options), expected) << "text " << i << ": " << texts[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenizerVectorsTest,
                         testing::Values(Vectors{"gpt2", "gpt2"}, Vectors{"starcoder", "starcoder"},
                                         Vectors{"deepseek_llm", "deepseek_llm"},
                                         Vectors{"qwen2", "qwen2"},
                                         Vectors{"llama_spm", "llama_spm"},
                                         Vectors{"mixtral_style", "llama_spm"}),
                         [](const auto& test) { return std::string(test.param.vocabulary); });

class TokenizerOracleTest : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerOracleTest, SameIdsAndTextAsTheReference) {
  const std::string name = GetParam();
  const nlohmann::json texts = TokenizerJsonData("oracle_texts.json");
  const nlohmann::json oracle = TokenizerJsonData(name + "/oracle.json");
  const Tokenizer& tokenizer = TestTokenizer(name);
  ASSERT_GT(texts.size(), 500u);

  std::vector<std::vector<int32_t>> ids(texts.size());
  std::vector<std::vector<int32_t>> plain_ids;
  if (!oracle["ids"].is_null()) oracle["ids"].get_to(ids);
  plain_ids = ids;
  for (const auto& entry : oracle["plain_ids"]) entry[1].get_to(plain_ids[entry[0]]);
  std::vector<std::string> decoded = texts;
  for (const auto& entry : oracle["decoded"]) entry[1].get_to(decoded[entry[0]]);

  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i];
    SCOPED_TRACE(text);
    const std::vector<int32_t> plain =
        tokenizer.Encode(text, {.add_special_tokens = false, .parse_special = false});
    EXPECT_EQ(plain, plain_ids[i]);
    std::vector<int32_t> parsed = plain;
    if (!oracle["ids"].is_null()) {
      parsed = tokenizer.Encode(text, {.add_special_tokens = false});
      EXPECT_EQ(parsed, ids[i]);
      std::vector<int32_t> whole = oracle["around"];
      whole.insert(whole.end(), ids[i].begin(), ids[i].end());
      EXPECT_EQ(tokenizer.Encode(text), whole);
    }
    // The reference reads DeepSeek's added tokens ("ö") as bytes and loses them; we do not.
    const std::string expected = name == "deepseek_llm" ? text : decoded[i];
    EXPECT_EQ(tokenizer.Decode(parsed, false), expected);
    Detokenizer detokenizer(tokenizer, {.skip_special = false});
    std::string streamed;
    for (const int32_t id : parsed) {
      detokenizer.Add(id, &streamed);
      ASSERT_TRUE(nlohmann::json(streamed).dump().size() > 1);  // throws on half a character
    }
    detokenizer.Finish(&streamed);
    EXPECT_EQ(streamed, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenizerOracleTest,
                         testing::Values("gpt2", "starcoder", "deepseek_llm", "qwen2", "olmoe",
                                         "llama_spm", "mixtral_style", "sample"),
                         [](const auto& test) { return std::string(test.param); });

TEST(TokenizerSampleTest, ReferencePromptsHaveTheirIds) {
  std::ifstream file(std::string(MOESAIC_SAMPLE_MODEL_DIR) + "/reference/prompts.json");
  const nlohmann::json prompts = nlohmann::json::parse(file);
  const Tokenizer& tokenizer = TestTokenizer("sample");
  ASSERT_GE(prompts.size(), 12u);
  for (const auto& prompt : prompts) {
    const std::string text = prompt["prompt"];
    const std::vector<int32_t> ids = prompt["prompt_ids"];
    EXPECT_EQ(tokenizer.Encode(text), ids) << text;
    EXPECT_EQ(tokenizer.Decode(ids, false), text);
  }
}

TEST(TokenizerSampleTest, NamesItsSpecialTokens) {
  const Tokenizer& tokenizer = TestTokenizer("sample");
  EXPECT_EQ(tokenizer.vocab_size(), 4096);
  EXPECT_EQ(tokenizer.special_ids().eos, 4095);
  EXPECT_FALSE(tokenizer.special_ids().bos.has_value());
  EXPECT_EQ(tokenizer.special_ids().pad, 4093);
  EXPECT_EQ(tokenizer.TokenToId("<|im_start|>"), 4094);
  EXPECT_EQ(tokenizer.IdToToken(4094), "<|im_start|>");
  EXPECT_TRUE(tokenizer.IsSpecial(4094));
  EXPECT_FALSE(tokenizer.IsSpecial(100));
  EXPECT_FALSE(tokenizer.TokenToId("no such token").has_value());
}

}  // namespace
}  // namespace moesaic
