// When a sequence ends and which text has come by then.

#include "serving/engine/output_processor.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/serving/api/test_tokenizer.h"

namespace moesaic {
namespace {

constexpr int32_t kEnd = ByteTokenizer::kEnd;

class OutputProcessorTest : public ::testing::Test {
 protected:
  OutputProcessor Make(int64_t max_output_tokens = 100) {
    return OutputProcessor(tokenizer_, request_, eos_, max_output_tokens);
  }
  // A token for each byte, up to the one that ends the sequence.
  static std::optional<FinishReason> Add(OutputProcessor& output, std::string_view text) {
    for (const char c : text) {
      if (const auto finish = AddToken(output, static_cast<unsigned char>(c))) return finish;
    }
    return std::nullopt;
  }
  static std::optional<FinishReason> AddToken(OutputProcessor& output, int32_t id) {
    GeneratedToken token;
    token.token = id;
    return output.Append(std::move(token));
  }
  static std::vector<int32_t> Forbidden(const OutputProcessor& output) {
    const auto tokens = output.ForbiddenTokens();
    return {tokens.begin(), tokens.end()};
  }

  const ByteTokenizer tokenizer_;
  const std::vector<int32_t> eos_ = {kEnd};
  EngineRequest request_;
};

TEST_F(OutputProcessorTest, EndTokensStopAndAreNoText) {
  request_.stop_token_ids = {'q'};
  for (const int32_t end : {kEnd, int32_t{'q'}}) {
    OutputProcessor output = Make();
    EXPECT_EQ(Add(output, "ab"), std::nullopt);
    EXPECT_EQ(AddToken(output, end), FinishReason::kStop);
    const OutputDelta delta = output.Take();
    EXPECT_EQ(delta.text, "ab");
    EXPECT_EQ(delta.tokens.size(), 3u);
    EXPECT_EQ(delta.stop_text, "");
  }
}

// The end of the model's own is ignored, the request's own is not.
TEST_F(OutputProcessorTest, IgnoredEosLeavesStopTokens) {
  request_.ignore_eos = true;
  request_.stop_token_ids = {'q'};
  request_.min_tokens = 1;
  OutputProcessor output = Make();
  EXPECT_EQ(Forbidden(output), (std::vector<int32_t>{'q'}));
  EXPECT_EQ(AddToken(output, 'a'), std::nullopt);
  EXPECT_EQ(AddToken(output, kEnd), std::nullopt);
  EXPECT_EQ(AddToken(output, 'q'), FinishReason::kStop);
  EXPECT_EQ(output.Take().text, "a");
}

TEST_F(OutputProcessorTest, SpecialTokensAreTextWhereAskedFor) {
  request_.ignore_eos = true;
  for (const bool skip : {true, false}) {
    request_.skip_special_tokens = skip;
    OutputProcessor output = Make();
    AddToken(output, kEnd);
    EXPECT_EQ(output.Take().text, skip ? "" : "<end>");
  }
}

// The token behind the first min_tokens is the first that may end the sequence, and the first that
// may be an end token.
TEST_F(OutputProcessorTest, MinTokens) {
  request_.min_tokens = 2;
  request_.stop_token_ids = {'q'};
  OutputProcessor output = Make();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Forbidden(output), (std::vector<int32_t>{kEnd, 'q'})) << i;
    EXPECT_EQ(AddToken(output, i == 0 ? 'q' : kEnd), std::nullopt) << i;
  }
  EXPECT_EQ(Forbidden(output), std::vector<int32_t>());
  EXPECT_EQ(AddToken(output, kEnd), FinishReason::kStop);
  EXPECT_EQ(output.Take().tokens.size(), 3u);
}

TEST_F(OutputProcessorTest, StopStringsCountBehindMinTokens) {
  request_.min_tokens = 3;
  request_.stop = {"b"};
  OutputProcessor output = Make();
  EXPECT_EQ(Add(output, "abb"), std::nullopt);
  EXPECT_EQ(output.Take().text, "abb");  // nothing of it is held back
  EXPECT_EQ(Add(output, "ab"), FinishReason::kStop);
  const OutputDelta delta = output.Take();
  EXPECT_EQ(delta.text, "a");
  EXPECT_EQ(delta.stop_text, "b");
}

TEST_F(OutputProcessorTest, EndsAtTheLength) {
  OutputProcessor output = Make(3);
  EXPECT_EQ(Add(output, "ab"), std::nullopt);
  EXPECT_EQ(AddToken(output, 'c'), FinishReason::kLength);
  EXPECT_EQ(output.Take().text, "abc");
  // A stop with the last token is a stop.
  OutputProcessor stopped = Make(1);
  EXPECT_EQ(AddToken(stopped, kEnd), FinishReason::kStop);
  request_.stop = {"c"};
  OutputProcessor matched = Make(1);
  EXPECT_EQ(AddToken(matched, 'c'), FinishReason::kStop);
}

TEST_F(OutputProcessorTest, WhatMayBeAStopStringIsHeld) {
  request_.stop = {"end!"};
  OutputProcessor output = Make();
  EXPECT_EQ(Add(output, "xen"), std::nullopt);
  OutputDelta delta = output.Take();
  EXPECT_EQ(delta.text, "x");
  EXPECT_EQ(delta.tokens.size(), 3u);  // tokens are not held
  EXPECT_EQ(Add(output, "ds"), std::nullopt);
  EXPECT_EQ(output.Take().text, "ends");
  // Held at the end of all: it was none.
  EXPECT_EQ(Add(output, "end"), std::nullopt);
  EXPECT_EQ(output.Take().text, "");
  output.Finish();
  delta = output.Take();
  EXPECT_EQ(delta.text, "end");
  EXPECT_EQ(delta.stop_text, "");
  EXPECT_TRUE(delta.tokens.empty());
}

TEST_F(OutputProcessorTest, AStopStringEndsTheText) {
  request_.stop = {"zz", "end!"};
  for (const bool include : {false, true}) {
    request_.include_stop_in_output = include;
    OutputProcessor output = Make();
    EXPECT_EQ(Add(output, "an end!"), FinishReason::kStop);
    OutputDelta delta = output.Take();
    EXPECT_EQ(delta.text, include ? "an end!" : "an ");
    EXPECT_EQ(delta.stop_text, "end!");
    output.Finish();
    delta = output.Take();
    EXPECT_EQ(delta.text, "");
    EXPECT_EQ(delta.stop_text, "");
  }
}

// A character that never became whole is let go at the end, and may complete a stop string there.
TEST_F(OutputProcessorTest, HalfCharactersAreHeld) {
  OutputProcessor output = Make();
  EXPECT_EQ(Add(output, "a\xc3"), std::nullopt);
  EXPECT_EQ(output.Take().text, "a");
  EXPECT_EQ(Add(output, "\xa9\xe2\x82"), std::nullopt);
  EXPECT_EQ(output.Take().text, "\xc3\xa9");
  output.Finish();
  EXPECT_EQ(output.Take().text, "\xef\xbf\xbd");

  request_.stop = {"b\xef\xbf\xbd"};
  OutputProcessor stopped = Make();
  EXPECT_EQ(Add(stopped, "ab\xe2\x82"), std::nullopt);
  EXPECT_EQ(stopped.Take().text, "a");
  stopped.Finish();
  const OutputDelta delta = stopped.Take();
  EXPECT_EQ(delta.text, "");
  EXPECT_EQ(delta.stop_text, request_.stop[0]);
}

// Special tokens that are shown, and where, also behind text that is held back.
TEST_F(OutputProcessorTest, ShownSpecialTokensAreTold) {
  request_.ignore_eos = true;
  OutputProcessor hidden = Make();
  Add(hidden, "a");
  AddToken(hidden, kEnd);
  OutputDelta delta = hidden.Take();
  EXPECT_EQ(delta.text, "a");
  EXPECT_TRUE(delta.special_offsets.empty());

  request_.shown_special_tokens = {kEnd};
  request_.stop = {"b<end>!"};
  OutputProcessor output = Make();
  Add(output, "a\xC3\xA9");
  AddToken(output, kEnd);
  Add(output, "b");
  delta = output.Take();
  EXPECT_EQ(delta.text, "a\xC3\xA9<end>");
  EXPECT_EQ(delta.special_offsets, (std::vector<size_t>{3}));
  AddToken(output, kEnd);
  delta = output.Take();
  EXPECT_EQ(delta.text, "");
  EXPECT_EQ(delta.special_offsets, (std::vector<size_t>{9}));
  Add(output, "<end>");  // spelt out: text
  delta = output.Take();
  EXPECT_EQ(delta.text, "b<end><end>");
  EXPECT_TRUE(delta.special_offsets.empty());
}

}  // namespace
}  // namespace moesaic
