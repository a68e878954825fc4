// Files that are wrong, and the small files beside a tokenizer.
#include "serving/text/tokenizer_json.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/error.h"
#include "serving/text/sentencepiece_tokenizer.h"
#include "tests/serving/text/tokenizer_test_data.h"

namespace moesaic {
namespace {

std::string Load(const std::string& json) {
  try {
    LoadTokenizerJson(json, "dir/tokenizer.json");
  } catch (const Error& error) {
    EXPECT_TRUE(error.kind() == ErrorKind::kCorrupt || error.kind() == ErrorKind::kUnsupported);
    return error.what();
  }
  return "";
}

constexpr const char* kModel =
    R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]})";

TEST(TokenizerJsonTest, ErrorsNameFileAndPath) {
  const auto with = [](const std::string& members) { return "{" + members + "," + kModel + "}"; };
  const auto model = [](const std::string& members) {
    return R"({"model":{"type":"BPE",)" + members + "}}";
  };
  const struct {
    std::string json;
    const char* expected;
  } cases[] = {
      {"", "dir/tokenizer.json: is not valid JSON"},
      {"[1,2", "dir/tokenizer.json: is not valid JSON"},
      {"[]", "dir/tokenizer.json: is a list, expected an object"},
      {"{}", "dir/tokenizer.json: model: is missing"},
      {R"({"model":7})", "model: is 7, expected an object"},
      {R"({"model":{"type":"WordPiece"}})", "model: unknown model type \"WordPiece\""},
      {R"({"model":{"type":"BPE","merges":[]}})", "model.vocab: is missing"},
      {model(R"("vocab":[],"merges":[])"), "model.vocab: expected an object"},
      {model(R"("vocab":{},"merges":[])"), "the vocabulary is empty"},
      {model(R"("vocab":{"a":"x"},"merges":[])"), "model.vocab: the id of \"a\" is string"},
      {model(R"("vocab":{"a":-1},"merges":[])"), "the id of \"a\" is -1"},
      {model(R"("vocab":{"a":1.5},"merges":[])"), "the id of \"a\" is number"},
      {model(R"("vocab":{"a":4194304},"merges":[])"), "outside 0 to 4194303"},
      {model(R"("vocab":{"a":18446744073709551615},"merges":[])"), "outside 0 to"},
      {model(R"("vocab":{"a":0,"b":0},"merges":[])"), "occurs twice"},
      {model(R"("vocab":{"a":0},"merges":{})"), "model.merges: expected an array"},
      {model(R"("vocab":{"a":0},"merges":["a a"])"), "model.merges[0]: \"aa\" is not in"},
      {model(R"("vocab":{"a":0,"aa":1},"merges":["a a","a x"])"), "model.merges[1]: \"x\""},
      {model(R"("vocab":{"a":0},"merges":["a"])"), "model.merges[0]: expected two tokens"},
      {model(R"("vocab":{"a":0},"merges":["a a a"])"), "model.merges[0]: expected two tokens"},
      {model(R"("vocab":{"a":0},"merges":[["a"]])"), "model.merges[0]: expected"},
      {model(R"("vocab":{"a":0},"merges":[["a",1]])"), "model.merges[0]: expected"},
      {model(R"("vocab":{"a":0},"merges":[],"fuse_unk":1)"), "model.fuse_unk: is 1, expected true"},
      {with(R"("normalizer":{"type":"Nmt"})"), "normalizer: unknown normalizer type \"Nmt\""},
      {with(R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{}]})"),
       "normalizer.normalizers[1].type: is missing"},
      {with(R"("normalizer":{"type":"Replace","content":"x","pattern":{"Glob":"*"}})"),
       "normalizer.pattern: expected {\"String\""},
      {with(R"("normalizer":{"type":"Replace","content":"x","pattern":{"Regex":"(a"}})"),
       "normalizer.pattern.Regex: bad regular expression"},
      {with(R"("pre_tokenizer":{"type":"UnicodeScripts"})"),
       "pre_tokenizer: unknown pre_tokenizer type"},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Sliced"})"),
       "pre_tokenizer.behavior: unknown behavior \"Sliced\""},
      {with(R"("pre_tokenizer":{"type":"Metaspace","replacement":"ab"})"), "must be one character"},
      {with(R"("pre_tokenizer":{"type":"Metaspace","prepend_scheme":"last"})"),
       "unknown prepend_scheme \"last\""},
      {with(R"("decoder":{"type":"WordPiece"})"), "decoder: unknown decoder type"},
      {with(R"("decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteLevel"}]})"),
       "decoder.decoders[1]: \"ByteLevel\" behind Fuse"},
      {with(R"("decoder":{"type":"Strip","content":" ","start":-1,"stop":0})"),
       "decoder.start: is -1, expected an integer"},
      {with(R"("post_processor":{"type":"BertProcessing"})"),
       "post_processor: unknown post_processor type"},
      {with(R"("post_processor":{"type":"TemplateProcessing","special_tokens":{},
             "single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}]})"),
       "post_processor.special_tokens.<s>: is missing"},
      {with(R"("post_processor":{"type":"TemplateProcessing",
             "special_tokens":{"<s>":{"ids":[77]}},
             "single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}]})"),
       "post_processor.special_tokens.<s>.ids[0]: is 77, expected an integer from 0 to 2"},
      {with(R"("post_processor":{"type":"TemplateProcessing","special_tokens":{},"single":[]})"),
       "post_processor: \"single\" lacks sequence A"},
      {with(R"("added_tokens":{})"), "added_tokens: is an object, expected a list"},
      {with(R"("added_tokens":[{"content":"x"}])"), "added_tokens[0].id: is missing"},
      {with(R"("added_tokens":[{"content":"","id":5}])"),
       "added_tokens[0]: an added token without"},
      {with(R"("added_tokens":[{"content":"x","id":99999999}])"),
       "added_tokens[0].id: is 99999999, expected"},
      {with(R"("added_tokens":[{"content":"x","id":1}])"),
       "\"x\" has id 1, which is that of \"b\""},
      {with(R"("added_tokens":[{"content":"x","id":5},{"content":"y","id":5}])"), "share id 5"},
  };
  for (const auto& one : cases) {
    const std::string message = Load(one.json);
    EXPECT_NE(message.find("dir/tokenizer.json"), std::string::npos) << one.json;
    EXPECT_NE(message.find(one.expected), std::string::npos)
        << one.json << "\n  says: " << message << "\n  not:  " << one.expected;
  }
  EXPECT_EQ(Load(with(R"("added_tokens":[])")), "");
}

TEST(TokenizerJsonTest, EveryTruncationIsAnError) {
  const std::string json = std::string("{") + kModel + "}";
  ASSERT_EQ(Load(json), "");
  for (size_t length = 0; length < json.size(); ++length) {
    EXPECT_NE(Load(json.substr(0, length)), "") << length;
  }
}

TEST(TokenizerJsonTest, DeepNestingIsNoCrash) {
  std::string json = R"({"normalizer":)";
  constexpr int kDepth = 2000;
  for (int i = 0; i < kDepth; ++i) json += R"({"type":"Sequence","normalizers":[)";
  for (int i = 0; i < kDepth; ++i) json += "]}";
  json += std::string(",") + kModel + "}";
  const std::string message = Load(json);
  EXPECT_NE(message.find("nested"), std::string::npos) << message.substr(0, 200);
}

// Ids that tokenizers 0.23.3 gives.
TEST(TokenizerJsonTest, StrippedWhitespaceMayBeAToken) {
  const auto ids = [](const char* flags, const char* second, const char* text) {
    const std::string json = std::string(R"({"added_tokens":[
        {"id":4,"content":"<m>","rstrip":true,"normalized":false,"special":true},
        {"id":5,"content":")") +
                             second + R"(","normalized":false,"special":true)" + flags + R"(}],
        "model":{"type":"BPE","vocab":{"a":0,"b":1," ":2,"\n":3},"merges":[]}})";
    return LoadTokenizerJson(json, "t")->Encode(text, {.parse_special = true});
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(ids("", "  ", "a<m>  b"), (Ids{0, 4, 5, 1}));
  EXPECT_EQ(ids("", "  ", "a<m>   b"), (Ids{0, 4, 5, 2, 1}));
  EXPECT_EQ(ids("", "  ", "a<m>    b"), (Ids{0, 4, 5, 5, 1}));
  EXPECT_EQ(ids("", "  ", "a<m> b"), (Ids{0, 4, 1}));
  EXPECT_EQ(ids("", "  ", "<m>  <m>  b"), (Ids{4, 5, 4, 5, 1}));
  EXPECT_EQ(ids("", "  ", "a<m> \n b"), (Ids{0, 4, 1}));
  EXPECT_EQ(ids(R"(,"lstrip":true)", "  ", "a<m>  b"), (Ids{0, 4, 1}));
  EXPECT_EQ(ids(R"(,"lstrip":true)", "  ", "a<m>   b"), (Ids{0, 4, 1}));
}

TEST(TokenizerJsonTest, ACatastrophicPatternFailsTheText) {
  const auto tokenizer =
      LoadTokenizerJson(std::string(R"({"pre_tokenizer":{"type":"Split","behavior":"Isolated",
                      "pattern":{"Regex":"(a|aa)+$"}},)") +
                            kModel + "}",
                        "dir/tokenizer.json");
  try {
    (void)tokenizer->Encode(std::string(100, 'a') + "b");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("pre_tokenizer.pattern.Regex"), std::string::npos);
  }
  EXPECT_EQ(tokenizer->Encode("ab").size(), 1u);
}

// As tokenizers 0.23: such a file loads, and only a text that needs the token is refused.
TEST(TokenizerJsonTest, AnUnknownTokenOutsideTheVocabularyIsRefusedWhenATextNeedsIt) {
  for (const char* flags : {"", R"("fuse_unk":true,)", R"("byte_fallback":true,)"}) {
    const auto tokenizer =
        LoadTokenizerJson(std::string(R"({"model":{"type":"BPE","unk_token":"<u>",)") + flags +
                              R"("vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})",
                          "dir/tokenizer.json");
    EXPECT_FALSE(tokenizer->special_ids().unk.has_value());
    EXPECT_EQ(tokenizer->Encode("aab"), (std::vector<int32_t>{0, 2}));
    for (const char* text : {"x", "abxab", "axxb"}) {
      try {
        tokenizer->Encode(text);
        ADD_FAILURE() << text;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
        EXPECT_NE(std::string(error.what()).find("the token \"<u>\""), std::string::npos);
      }
    }
    EXPECT_EQ(tokenizer->Encode("ab"), (std::vector<int32_t>{2})) << "after a failure";
  }
}

TEST(TokenizerJsonTest, TheOldestFilesHaveNoModelType) {
  EXPECT_EQ(Load(R"({"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":["#version: 0.2","a b"]}})"),
            "");
}

class TokenizerDirectoryTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
};

TEST_F(TokenizerDirectoryTest, NoTokenizer) {
  try {
    LoadTokenizer(directory_.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    EXPECT_NE(std::string(error.what()).find("tokenizer.json"), std::string::npos);
  }
}

TEST_F(TokenizerDirectoryTest, ConfigurationNamesRolesAndAddsTokens) {
  directory_.Write("tokenizer.json", std::string("{") + kModel + "}");
  directory_.Write("tokenizer_config.json", R"({
      "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true, "add_eos_token": true,
      "bos_token": {"content": "<s>"}, "unk_token": "no such token",
      "added_tokens_decoder": {"7": {"content": "<s>", "special": true},
                               "8": {"content": "</s>", "special": true}}})");
  directory_.Write("special_tokens_map.json", R"({"eos_token": "</s>", "bos_token": "ignored"})");
  const auto tokenizer = LoadTokenizer(directory_.path());
  EXPECT_EQ(tokenizer->vocab_size(), 9);
  EXPECT_EQ(tokenizer->special_ids().bos, 7);
  EXPECT_EQ(tokenizer->special_ids().eos, 8);
  EXPECT_FALSE(tokenizer->special_ids().unk.has_value());
  EXPECT_EQ(tokenizer->Encode("ab"), (std::vector<int32_t>{7, 2, 8}));
  EXPECT_EQ(tokenizer->Encode("ab", {.add_special_tokens = false}), (std::vector<int32_t>{2}));
  EXPECT_EQ(tokenizer->Encode("<s>b"), (std::vector<int32_t>{7, 7, 1, 8}));
}

TEST_F(TokenizerDirectoryTest, BadConfigurationIsNamed) {
  directory_.Write("tokenizer.json", std::string("{") + kModel + "}");
  for (const char* config :
       {"[]", "{", R"({"bos_token": 7})", R"({"add_bos_token": "yes"})",
        R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
        R"({"added_tokens_decoder": {"-1": {"content": "a"}}})",
        R"({"added_tokens_decoder": {"99999999999": {"content": "a"}}})",
        R"({"added_tokens_decoder": {"3": {}}})", R"({"added_tokens_decoder": [1]})"}) {
    directory_.Write("tokenizer_config.json", config);
    try {
      LoadTokenizer(directory_.path());
      ADD_FAILURE() << config;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("tokenizer_config.json"), std::string::npos)
          << error.what();
    }
  }
}

TEST_F(TokenizerDirectoryTest, SentencePieceSettings) {
  directory_.Write("tokenizer.model", TokenizerTextData("llama_spm/tokenizer.model"));
  const auto encode = [&](const std::string& config, std::string_view text) {
    directory_.Write("tokenizer_config.json", config);
    return LoadTokenizer(directory_.path())->Encode(text);
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(encode("{}", "Hello"), (Ids{1, 15043}));
  EXPECT_EQ(encode(R"({"add_bos_token": false})", "Hello"), (Ids{15043}));
  EXPECT_EQ(encode(R"({"add_eos_token": true})", "Hello"), (Ids{1, 15043, 2}));
  // Behind a special token: with a space of its own, or (legacy false) without.
  EXPECT_EQ(encode("{}", "Hello</s>Hello"), (Ids{1, 15043, 2, 15043}));
  EXPECT_EQ(encode(R"({"legacy": false})", "Hello</s>Hello"), (Ids{1, 15043, 2, 10994}));
  // Tokens beyond the model.
  directory_.Write("added_tokens.json", R"({"<|tool|>": 32000})");
  EXPECT_EQ(encode("{}", "Hello<|tool|>"), (Ids{1, 15043, 32000}));
  EXPECT_EQ(LoadTokenizer(directory_.path())->vocab_size(), 32001);
  directory_.Write("added_tokens.json", R"({"<|tool|>": 5})");
  EXPECT_THROW(LoadTokenizer(directory_.path()), Error);
}

TEST_F(TokenizerDirectoryTest, BadSentencePieceModels) {
  const std::string model = TokenizerTextData("llama_spm/tokenizer.model");
  for (const std::string& bytes :
       {std::string(), std::string("not a model"), model.substr(0, model.size() / 2 - 3),
        std::string(1000, '\xFF')}) {
    try {
      LoadSentencePiece(bytes, "dir/tokenizer.model");
      ADD_FAILURE() << bytes.size();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
      EXPECT_NE(std::string(error.what()).find("dir/tokenizer.model"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace moesaic
