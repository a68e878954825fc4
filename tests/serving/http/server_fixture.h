// A running Server over a TestEngine, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "serving/http/server.h"
#include "tests/serving/api/test_engine.h"
#include "tests/serving/api/test_tokenizer.h"
#include "tests/serving/http/test_client.h"

namespace moesaic {

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    options_.port = 0;
    options_.access_log = false;
    engine_options_.vocab_size = 257;
  }

  void Start(bool with_model = true);
  void SetModel();
  uint16_t port() const { return server_->port(); }
  // The value of a series in /metrics; -1 when it is absent.
  double Metric(const std::string& series);
  // Waits until the series has the value, or is at least as great.
  void WaitForMetric(const std::string& series, double value);
  void WaitForMetricAtLeast(const std::string& series, double value);

  static std::string Completion(int max_tokens, const std::string& more = {});
  static std::string Chat(int max_tokens, const std::string& more = {});

  ServerOptions options_;
  std::string chat_template_;  // empty: the fixture's own
  TestEngine::Options engine_options_;
  ByteTokenizer tokenizer_;
  const Tokenizer* model_tokenizer_ = &tokenizer_;  // of the model; must outlive the server
  MetricsRegistry metrics_;
  std::shared_ptr<TestEngine> engine_;
  std::unique_ptr<Server> server_;  // goes first
};

}  // namespace moesaic
