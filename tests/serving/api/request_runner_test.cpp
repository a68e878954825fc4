#include "serving/api/request_runner.h"

#include <gtest/gtest.h>

#include "tests/serving/api/test_engine.h"
#include "tests/serving/api/test_tokenizer.h"

namespace moesaic {
namespace {

class RequestRunnerTest : public ::testing::Test {
 protected:
  const RequestRunner& Start(TestEngine::Options options, int32_t max_tokens) {
    engine_ = std::make_shared<TestEngine>(tokenizer_, options);
    model_ = {{"m"}, engine_, nullptr, 0};
    ApiRequest request;
    request.max_tokens = max_tokens;
    return runner_.emplace(model_, request);
  }
  static bool Never() { return false; }

  ByteTokenizer tokenizer_;
  std::shared_ptr<TestEngine> engine_;
  ServedModel model_;
  std::optional<RequestRunner> runner_;
};

TEST_F(RequestRunnerTest, GivesOutTextAsItComes) {
  const RequestRunner& runner = Start({}, 3);
  std::string text;
  const RunResult result =
      runner.Run(runner.EncodeRaw("hi"), [&](std::string_view part, bool) { text += part; }, Never,
                 {"trace-1", "tests"});
  EXPECT_EQ(text, "w0 w1 w2");
  EXPECT_EQ(result.text, text);
  EXPECT_EQ(result.finish, FinishReason::kLength);
  EXPECT_EQ(result.usage.completion_tokens, 3);
  EXPECT_GT(result.prompt_s, 0);
  EXPECT_GE(result.output_s, 0);
  EXPECT_EQ(engine_->Request(1).id, "trace-1");
  EXPECT_EQ(engine_->Request(1).domain, "tests");
}

TEST_F(RequestRunnerTest, AnInterruptCancels) {
  TestEngine::Options options;
  options.manual = true;
  const RequestRunner& runner = Start(options, 3);
  const RunResult result = runner.Run(
      {{1}}, [](std::string_view, bool) {}, [] { return true; });
  EXPECT_EQ(result.finish, FinishReason::kCancelled);
  EXPECT_EQ(engine_->cancelled(), 1u);
}

TEST_F(RequestRunnerTest, WhatTheReaderThrowsCancels) {
  const RequestRunner& runner = Start({}, 1000);
  EXPECT_THROW(runner.Run(
                   {{1}}, [](std::string_view, bool) { throw std::string("closed"); }, Never),
               std::string);
  engine_->WaitForIdle();
}

TEST_F(RequestRunnerTest, RefusalsAreErrorsOfTheCommandLine) {
  const RequestRunner& runner = Start({}, 2000);
  try {
    runner.Run(
        {{1}}, [](std::string_view, bool) {}, Never);
    ADD_FAILURE() << "longer than the context";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  }
  try {
    runner.EncodeMessages(Json::array());
    ADD_FAILURE() << "no chat template";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  }
}

}  // namespace
}  // namespace moesaic
