// Tokenizers of GGUF files against llama.cpp's published vectors, and against the same model's
// tokenizer.json.
#include "serving/text/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/io/gguf.h"
#include "tests/core/base/caught.h"
#include "tests/serving/text/tokenizer_test_data.h"

namespace moesaic {
namespace {

using nlohmann::json;

// The metadata of tests/data/tokenizers/NAME/vocab.gguf, a file of llama.cpp's.
json FileMetadata(const std::string& name) {
  const std::string text = TokenizerTextData(name + "/vocab.gguf");
  const auto read = [&](uint64_t offset, std::span<std::byte> to) {
    std::memcpy(to.data(), text.data() + offset, to.size());
    return to.size();
  };
  return ParseGgufHeader(read, text.size(), name).metadata;
}

// What llama.cpp's converter makes of a tokenizer.json.
json ConvertedMetadata(const std::string& name, const std::string& pre) {
  const json file = TokenizerJsonData(name + "/tokenizer.json");
  std::vector<std::string> tokens;
  std::vector<int> types;
  const auto set = [&](size_t id, const std::string& token, int type) {
    if (tokens.size() <= id) {
      tokens.resize(id + 1, "[PAD]");
      types.resize(id + 1, 5);
    }
    tokens[id] = token;
    types[id] = type;
  };
  for (const auto& [token, id] : file["model"]["vocab"].items()) set(id.get<size_t>(), token, 1);
  for (const json& token : file["added_tokens"]) {
    set(token["id"].get<size_t>(), token["content"], token["special"].get<bool>() ? 3 : 4);
  }
  json merges = json::array();
  for (const json& merge : file["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return {{"tokenizer.ggml.model", "gpt2"},
          {"tokenizer.ggml.pre", pre},
          {"tokenizer.ggml.tokens", tokens},
          {"tokenizer.ggml.token_type", types},
          {"tokenizer.ggml.merges", merges}};
}

std::unique_ptr<Tokenizer> LoadGguf(const json& metadata) {
  return LoadGgufTokenizer(JsonFields(metadata, "m.gguf"));
}

// Ids of many texts, with and without special tokens in them, and what ids decode to.
void ExpectSame(const Tokenizer& tokenizer, const Tokenizer& reference) {
  const json texts = TokenizerJsonData("oracle_texts.json");
  for (const std::string text : texts) {
    SCOPED_TRACE(text);
    for (const bool parse_special : {false, true}) {
      const EncodeOptions options{.add_special_tokens = true, .parse_special = parse_special};
      const std::vector<int32_t> ids = tokenizer.Encode(text, options);
      ASSERT_EQ(ids, reference.Encode(text, options));
      ASSERT_EQ(tokenizer.Decode(ids, false), reference.Decode(ids, false));
      ASSERT_EQ(tokenizer.Decode(ids, true), reference.Decode(ids, true));
    }
  }
}

TEST(GgufTokenizerTest, Gpt2) {
  ExpectSame(*LoadGguf(FileMetadata("gpt2")), TestTokenizer("gpt2"));
}
TEST(GgufTokenizerTest, DeepseekLlm) {
  ExpectSame(*LoadGguf(FileMetadata("deepseek_llm")), TestTokenizer("deepseek_llm"));
}
TEST(GgufTokenizerTest, SentencePiece) {
  ExpectSame(*LoadGguf(FileMetadata("llama_spm")), TestTokenizer("llama_spm"));
}
TEST(GgufTokenizerTest, Qwen2) {
  ExpectSame(*LoadGguf(ConvertedMetadata("qwen2", "qwen2")), TestTokenizer("qwen2"));
}
TEST(GgufTokenizerTest, Olmo) {
  ExpectSame(*LoadGguf(ConvertedMetadata("olmoe", "olmo")), TestTokenizer("olmoe"));
}
TEST(GgufTokenizerTest, Starcoder) {
  ExpectSame(*LoadGguf(ConvertedMetadata("starcoder", "starcoder")), TestTokenizer("starcoder"));
}

// The vectors that llama.cpp publishes beside its files.
TEST(GgufTokenizerTest, PublishedVectors) {
  for (const std::string name : {"gpt2", "deepseek_llm", "llama_spm"}) {
    const std::unique_ptr<Tokenizer> tokenizer = LoadGguf(FileMetadata(name));
    const std::string texts = TokenizerTextData(name + "/vectors.inp");
    std::istringstream lines(TokenizerTextData(name + "/vectors.out"));
    constexpr std::string_view kBorder = "\n__ggml_vocab_test__\n";
    int count = 0;
    for (size_t begin = 0; begin <= texts.size(); ++count) {
      const size_t end = std::min(texts.find(kBorder, begin), texts.size());
      std::string line;
      std::getline(lines, line);
      std::istringstream numbers(line);
      const std::vector<int32_t> expected((std::istream_iterator<int32_t>(numbers)), {});
      EXPECT_EQ(tokenizer->Encode(texts.substr(begin, end - begin),
                                  {.add_special_tokens = false, .parse_special = false}),
                expected)
          << name << ", text " << count;
      begin = end + kBorder.size();
    }
    EXPECT_EQ(count, 47);
  }
}

// A small vocabulary of single characters.
json Small() {
  return {{"tokenizer.ggml.model", "gpt2"},
          {"tokenizer.ggml.pre", "gpt-2"},
          {"tokenizer.ggml.tokens", {"a", "b", "ab", "<s>", "</s>", "<turn>", "<tool>", "[PAD7]"}},
          {"tokenizer.ggml.token_type", {1, 1, 1, 3, 3, 3, 4, 5}},
          {"tokenizer.ggml.merges", {"a b"}},
          {"tokenizer.ggml.bos_token_id", 3},
          {"tokenizer.ggml.eos_token_id", 4},
          {"tokenizer.ggml.eot_token_id", 5}};
}

TEST(GgufTokenizerTest, TokensAroundAText) {
  const auto encoded = [](const std::string& pre, json more) {
    json metadata = Small();
    metadata["tokenizer.ggml.pre"] = pre;
    metadata.update(more);
    return LoadGguf(metadata)->Encode("ab");
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(encoded("gpt-2", json::object()), (Ids{2}));
  EXPECT_EQ(encoded("llama-bpe", json::object()), (Ids{3, 2}));
  EXPECT_EQ(encoded("llama-bpe", {{"tokenizer.ggml.add_bos_token", false}}), (Ids{2}));
  EXPECT_EQ(encoded("gpt-2", {{"tokenizer.ggml.add_bos_token", true},
                              {"tokenizer.ggml.add_eos_token", true}}),
            (Ids{3, 2, 4}));
}

TEST(GgufTokenizerTest, KindsOfTokens) {
  const json metadata = Small();
  const std::unique_ptr<Tokenizer> tokenizer = LoadGguf(metadata);
  // Of the user's text only a user-defined token is one.
  EXPECT_EQ(tokenizer->Encode("<tool>", {.parse_special = false}), (std::vector<int32_t>{6}));
  EXPECT_FALSE(tokenizer->IsSpecial(6));
  EXPECT_EQ(tokenizer->Encode("<turn>a"), (std::vector<int32_t>{5, 0}));
  EXPECT_TRUE(tokenizer->IsSpecial(5));
  EXPECT_EQ(tokenizer->IdToToken(7), "");
  EXPECT_EQ(tokenizer->special_ids().bos, 3);
}

// With ignore_merges a word that is a token is that token, even where no merge makes it.
TEST(GgufTokenizerTest, WholeWords) {
  json metadata = Small();
  metadata["tokenizer.ggml.merges"] = json::array();
  EXPECT_EQ(LoadGguf(metadata)->Encode("ab"), (std::vector<int32_t>{0, 1}));
  metadata["tokenizer.ggml.pre"] = "llama-bpe";
  EXPECT_EQ(LoadGguf(metadata)->Encode("ab"), (std::vector<int32_t>{3, 2}));
}

void ExpectRefused(const json& change, const std::string& part, ErrorKind kind) {
  json metadata = Small();
  metadata.update(change);
  const Error error = Caught([&] { LoadGguf(metadata); });
  EXPECT_EQ(error.kind(), kind) << error.what();
  EXPECT_TRUE(Contains(error, "m.gguf: ") && Contains(error, part)) << error.what();
}

TEST(GgufTokenizerTest, WhatIsRefused) {
  ExpectRefused({{"tokenizer.ggml.pre", "new-words"}}, "new-words", ErrorKind::kUnsupported);
  ExpectRefused({{"tokenizer.ggml.pre", "new-words"}}, "--tokenizer", ErrorKind::kUnsupported);
  ExpectRefused({{"tokenizer.ggml.model", "t5"}}, "\"t5\"", ErrorKind::kUnsupported);
  ExpectRefused({{"tokenizer.ggml.model", "llama"}}, "tokenizer.ggml.scores", ErrorKind::kCorrupt);
  ExpectRefused({{"tokenizer.ggml.token_type", {1, 1}}}, "2 entries for 8", ErrorKind::kCorrupt);
  ExpectRefused({{"tokenizer.ggml.token_type", {1, 1, 1, 3, 3, 3, 4, 9}}}, "entry 7 is 9",
                ErrorKind::kCorrupt);
  ExpectRefused({{"tokenizer.ggml.tokens", json::array()}}, "is empty", ErrorKind::kCorrupt);
  ExpectRefused({{"tokenizer.ggml.tokens", {1, 2}}}, "expected strings", ErrorKind::kCorrupt);
  ExpectRefused({{"tokenizer.ggml.bos_token_id", 8}, {"tokenizer.ggml.add_bos_token", true}},
                "there are 8 tokens", ErrorKind::kCorrupt);
  ExpectRefused({{"tokenizer.ggml.merges", "a b"}}, "tokenizer.ggml.merges", ErrorKind::kCorrupt);
}

}  // namespace
}  // namespace moesaic
