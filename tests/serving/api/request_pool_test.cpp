#include "serving/api/request_pool.h"

#include <gtest/gtest.h>

#include "serving/api/json_text.h"
#include "tests/serving/api/test_engine.h"
#include "tests/serving/api/test_tokenizer.h"

namespace moesaic {
namespace {

class RequestPoolTest : public ::testing::Test {
 protected:
  void Start(TestEngine::Options options) {
    engine_ = std::make_shared<TestEngine>(tokenizer_, options);
    models_ = std::make_unique<ModelTable>(std::vector<ServedModel>{{{"m"}, engine_, nullptr, 0}});
    pool_ = std::make_unique<RequestPool>(*engine_);
  }
  std::pair<RequestPool::Key, PreparedRequest> Request(RequestPool::Key key,
                                                       const std::string& fields = "") {
    const std::string body = R"({"prompt":"x","max_tokens":3)" + fields + "}";
    return {key, PrepareRequest(body, *models_,
                                {ApiDialect::kCompletions, "r", 1024, std::nullopt, gone_})};
  }
  std::map<RequestPool::Key, RequestPool::Answer> WaitForAll() {
    std::map<RequestPool::Key, RequestPool::Answer> answers;
    while (!pool_->empty()) {
      for (RequestPool::Answer& answer : pool_->Wait()) answers[answer.key] = std::move(answer);
    }
    return answers;
  }

  const std::atomic<bool> gone_{false};
  ByteTokenizer tokenizer_;
  std::shared_ptr<TestEngine> engine_;
  std::unique_ptr<ModelTable> models_;
  std::unique_ptr<RequestPool> pool_;
};

TEST_F(RequestPoolTest, AnswersEachRequest) {
  Start({});
  std::vector<std::pair<RequestPool::Key, PreparedRequest>> requests;
  requests.push_back(Request(10));
  requests.push_back(Request(20, R"(,"n":2)"));
  EXPECT_TRUE(pool_->Submit(std::move(requests)).empty());
  EXPECT_EQ(pool_->sequences(), 3);
  const auto answers = WaitForAll();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(ParseJson(answers.at(10).body)["choices"][0]["text"], "w0 w1 w2");
  const Json two = ParseJson(answers.at(20).body);
  ASSERT_EQ(two["choices"].size(), 2u);
  EXPECT_EQ(two["choices"][1]["text"], "w0 w1 w2");
  EXPECT_EQ(answers.at(20).usage.completion_tokens, 6);
  EXPECT_EQ(pool_->sequences(), 0);
  EXPECT_EQ(pool_->output_tokens(), 9);
}

TEST_F(RequestPoolTest, OfManyOnlyThoseAreRefusedThatTheEngineDoesNotTake) {
  TestEngine::Options options;
  options.manual = true;
  options.max_queue = 0;
  Start(options);
  std::vector<std::pair<RequestPool::Key, PreparedRequest>> requests;
  requests.push_back(Request(1));
  requests.push_back(Request(2));
  const auto refused = pool_->Submit(std::move(requests));
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[0].key, 1);
  EXPECT_EQ(refused[1].key, 2);
  ASSERT_TRUE(refused[0].error.has_value());
  EXPECT_EQ(refused[0].error->status(), 503);
  EXPECT_TRUE(pool_->empty());
}

TEST_F(RequestPoolTest, AnErrorOfOneChoiceEndsTheOthers) {
  TestEngine::Options options;
  options.manual = true;
  Start(options);
  std::vector<std::pair<RequestPool::Key, PreparedRequest>> requests;
  requests.push_back(Request(1, R"(,"n":2)"));
  pool_->Submit(std::move(requests));
  engine_->FailRequest(engine_->Running().front(), Error(ErrorKind::kInternal, "NaN logits"));
  const auto answers = WaitForAll();
  ASSERT_TRUE(answers.at(1).error.has_value());
  EXPECT_STREQ(answers.at(1).error->what(), "NaN logits");
  EXPECT_FALSE(answers.at(1).cancelled);
  EXPECT_EQ(engine_->cancelled(), 1u);
}

TEST_F(RequestPoolTest, WhatHasBegunMayStay) {
  TestEngine::Options options;
  options.manual = true;
  Start(options);
  std::vector<std::pair<RequestPool::Key, PreparedRequest>> requests;
  requests.push_back(Request(1));
  requests.push_back(Request(2));
  pool_->Submit(std::move(requests));
  const std::vector<RequestId> ids = engine_->Running();
  engine_->Emit(ids[0], 1);
  EXPECT_TRUE(pool_->Wait().empty());
  pool_->Cancel(true);
  auto answers = pool_->Wait();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].key, 2);
  EXPECT_TRUE(answers[0].cancelled);
  EXPECT_TRUE(answers[0].body.empty());
  pool_->Cancel(false);
  answers = pool_->Wait();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].key, 1);
  EXPECT_TRUE(answers[0].cancelled);
}

TEST_F(RequestPoolTest, GoesWithItsRequests) {
  TestEngine::Options options;
  options.manual = true;
  Start(options);
  std::vector<std::pair<RequestPool::Key, PreparedRequest>> requests;
  requests.push_back(Request(1));
  pool_->Submit(std::move(requests));
  pool_.reset();
  EXPECT_EQ(engine_->cancelled(), 1u);
}

}  // namespace
}  // namespace moesaic
