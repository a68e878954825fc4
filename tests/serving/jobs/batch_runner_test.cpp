#include "serving/jobs/batch_runner.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "core/base/file.h"
#include "serving/api/api_error.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

// Batches whose models are not there; those that run are tests/e2e/test_batches.py's.
class BatchRunnerTest : public testing::Test {
 protected:
  BatchRunnerTest() : store_({.directory = directory_.path()}), runner_(store_, 1) {
    input_ = store_.AddFile("in.jsonl", "batch", "{}\n", "").id;
  }
  StoredBatch Add(const std::string& model) {
    StoredBatch batch;
    batch.endpoint = "/v1/completions";
    batch.completion_window = "24h";
    batch.input_file_id = input_;
    batch.model = model;
    return store_.AddBatch(batch);
  }
  void Start() {
    runner_.Start([](const std::string& name) -> ServedModel {
      if (name == "gone") throw ApiError(404, "invalid_request_error", "No such model: gone");
      throw ApiError(503, "service_unavailable", "There is no memory for it now.");
    });
  }
  StoredBatch WhenEnded(const std::string& id) {
    for (int wait = 0; wait < 2000; ++wait) {
      const StoredBatch batch = store_.GetBatch(id, "");
      if (HasEnded(batch.status)) return batch;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "has not ended within 10 s";
    return store_.GetBatch(id, "");
  }

  TempDir directory_;
  BatchStore store_;
  BatchRunner runner_;
  std::string input_;
};

TEST_F(BatchRunnerTest, OneThatFailsKeepsItsAnswers) {
  const StoredBatch batch = Add("gone");
  store_.UpdateBatch(batch.id,
                     [](StoredBatch& changed) { changed.status = BatchStatus::kInProgress; });
  std::ofstream(store_.OutputOf(batch.id)) << "{\"custom_id\": \"a\"}\n";
  Start();
  const StoredBatch ended = WhenEnded(batch.id);
  EXPECT_EQ(ended.status, BatchStatus::kFailed);
  ASSERT_EQ(ended.problems.size(), 1u);
  EXPECT_EQ(ended.problems[0].code, "model_not_found");
  EXPECT_EQ(ReadTextFile(store_.ContentOf(ended.output_file_id), 100), "{\"custom_id\": \"a\"}\n");
  EXPECT_EQ(store_.GetFile(ended.output_file_id, "").purpose, "batch_output");
  EXPECT_EQ(ended.error_file_id, "");
}

TEST_F(BatchRunnerTest, OneThatWaitsForItsModelHoldsUpNoOther) {
  const StoredBatch waits = Add("large");
  const StoredBatch other = Add("gone");
  Start();
  EXPECT_EQ(WhenEnded(other.id).status, BatchStatus::kFailed);
  EXPECT_EQ(store_.GetBatch(waits.id, "").status, BatchStatus::kValidating);
}

TEST_F(BatchRunnerTest, OneThatHasBegunIsCancelledWithoutItsModel) {
  const StoredBatch batch = Add("large");
  store_.UpdateBatch(batch.id,
                     [](StoredBatch& changed) { changed.status = BatchStatus::kInProgress; });
  Start();
  EXPECT_EQ(store_.CancelBatch(batch.id, "").status, BatchStatus::kCancelling);
  runner_.Wake();
  EXPECT_EQ(WhenEnded(batch.id).status, BatchStatus::kCancelled);
}

}  // namespace
}  // namespace moesaic
