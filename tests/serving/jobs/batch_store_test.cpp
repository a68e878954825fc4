#include "serving/jobs/batch_store.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/base/error.h"
#include "core/base/file.h"
#include "serving/api/api_error.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

template <typename Function>
int StatusOf(Function function) {
  try {
    function();
  } catch (const ApiError& error) {
    return error.status();
  }
  return 200;
}

class BatchStoreTest : public testing::Test {
 protected:
  BatchStoreOptions Options() {
    BatchStoreOptions options;
    options.directory = directory_.path() / "batches of clients";
    options.max_bytes = 100;
    options.max_batches = 3;
    options.max_age_s = 1000;
    options.now_s = [this] { return now_s_; };
    return options;
  }
  static StoredBatch Of(const std::string& input, const std::string& owner = "") {
    StoredBatch batch;
    batch.endpoint = "/v1/completions";
    batch.completion_window = "24h";
    batch.input_file_id = input;
    batch.model = "sample";
    batch.metadata = {{"of", "a \"test\""}};
    batch.owner = owner;
    return batch;
  }

  TempDir directory_;
  int64_t now_s_ = 10000;
};

TEST_F(BatchStoreTest, FilesAreThereAfterARestart) {
  std::string id;
  {
    BatchStore store(Options());
    const StoredFile file = store.AddFile("in.jsonl", "batch", "{}\n", "ann");
    id = file.id;
    EXPECT_EQ(FileJson(file)["bytes"], 3);
    EXPECT_EQ(StatusOf([&] { store.GetFile(id, "bob"); }), 404);  // it is not his
    EXPECT_EQ(StatusOf([&] { store.DeleteFile(id, "bob"); }), 404);
    EXPECT_TRUE(store.ListFiles("").empty());
  }
  BatchStore store(Options());
  EXPECT_EQ(store.GetFile(id, "ann").name, "in.jsonl");
  EXPECT_EQ(ReadTextFile(store.ContentOf(id), 100), "{}\n");
  store.DeleteFile(id, "ann");
  EXPECT_FALSE(fs::exists(store.ContentOf(id)));
  EXPECT_EQ(StatusOf([&] { store.GetFile(id, "ann"); }), 404);
  EXPECT_EQ(StatusOf([&] { store.GetFile("../../etc/passwd", "ann"); }), 404);
}

TEST_F(BatchStoreTest, ADirectoryHasABound) {
  BatchStore store(Options());
  const StoredFile first = store.AddFile("a", "batch", std::string(60, 'a'), "");
  EXPECT_EQ(StatusOf([&] { store.AddFile("b", "batch", std::string(41, 'b'), ""); }), 507);
  store.AddFile("c", "batch", std::string(40, 'c'), "");
  store.DeleteFile(first.id, "");
  store.AddFile("d", "batch", std::string(60, 'd'), "");
}

TEST_F(BatchStoreTest, OneProcessHasADirectory) {
  const BatchStore store(Options());
  try {
    const BatchStore other(Options());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  }
}

TEST_F(BatchStoreTest, BatchesAreThereAfterARestart) {
  StoredBatch batch;
  {
    BatchStore store(Options());
    const StoredFile input = store.AddFile("in.jsonl", "batch", "{}\n", "ann");
    EXPECT_EQ(StatusOf([&] { store.AddBatch(Of(input.id, "bob")); }), 404);
    batch = store.AddBatch(Of(input.id, "ann"));
    EXPECT_EQ(batch.expires_s, now_s_ + 86400);
    now_s_ += 5;
    store.UpdateBatch(batch.id, [](StoredBatch& changed) {
      changed.status = BatchStatus::kInProgress;
      changed.problems.push_back({"code", "message", 7});
    });
    EXPECT_EQ(StatusOf([&] { store.DeleteFile(input.id, "ann"); }), 409);
  }
  BatchStore store(Options());
  const StoredBatch read = store.GetBatch(batch.id, "ann");
  EXPECT_EQ(StatusOf([&] { store.GetBatch(batch.id, ""); }), 404);
  const Json json = BatchJson(read);
  EXPECT_EQ(json["status"], "in_progress");
  EXPECT_EQ(json["in_progress_at"], now_s_);
  EXPECT_EQ(json["completed_at"], nullptr);
  EXPECT_EQ(json["metadata"]["of"], "a \"test\"");
  EXPECT_EQ(json["errors"]["data"][0]["line"], 7);
  EXPECT_EQ(json["output_file_id"], nullptr);
  ASSERT_TRUE(store.NextBatch());
  EXPECT_EQ(store.NextBatch()->id, batch.id);
}

TEST_F(BatchStoreTest, TheOldestIsNextAndOneThatHasBegunGoesOn) {
  BatchStore store(Options());
  const StoredFile input = store.AddFile("in.jsonl", "batch", "{}\n", "");
  EXPECT_FALSE(store.NextBatch());
  const StoredBatch first = store.AddBatch(Of(input.id));
  now_s_ += 1;
  const StoredBatch second = store.AddBatch(Of(input.id));
  now_s_ += 1;
  store.AddBatch(Of(input.id));
  EXPECT_EQ(StatusOf([&] { store.AddBatch(Of(input.id)); }), 429);
  EXPECT_EQ(store.NextBatch()->id, first.id);
  EXPECT_EQ(store.ListBatches("").back().id, first.id);
  store.UpdateBatch(second.id,
                    [](StoredBatch& changed) { changed.status = BatchStatus::kInProgress; });
  EXPECT_EQ(store.NextBatch()->id, second.id);
}

TEST_F(BatchStoreTest, Cancelling) {
  BatchStore store(Options());
  const StoredFile input = store.AddFile("in.jsonl", "batch", "{}\n", "");
  const StoredBatch waits = store.AddBatch(Of(input.id));
  EXPECT_EQ(store.CancelBatch(waits.id, "").status, BatchStatus::kCancelled);
  EXPECT_EQ(StatusOf([&] { store.CancelBatch(waits.id, ""); }), 409);
  const StoredBatch runs = store.AddBatch(Of(input.id));
  store.UpdateBatch(runs.id,
                    [](StoredBatch& changed) { changed.status = BatchStatus::kInProgress; });
  EXPECT_EQ(StatusOf([&] { store.CancelBatch(runs.id, "bob"); }), 404);
  EXPECT_EQ(store.CancelBatch(runs.id, "").status, BatchStatus::kCancelling);
  EXPECT_EQ(store.CancelBatch(runs.id, "").status, BatchStatus::kCancelling);  // once more
  EXPECT_EQ(store.NextBatch()->id, runs.id);                                   // it is to be ended
}

TEST_F(BatchStoreTest, AnswersBecomeFilesWhateverTheProcessWasKilledAt) {
  StoredBatch batch;
  {
    BatchStore store(Options());
    const StoredFile input = store.AddFile("in.jsonl", "batch", "{}\n", "ann");
    batch = store.AddBatch(Of(input.id, "ann"));
    batch = store.UpdateBatch(batch.id, [](StoredBatch& changed) {
      changed.status = BatchStatus::kFinalizing;
      changed.output_file_id = "file-" + std::string(32, 'a');
      changed.error_file_id = "file-" + std::string(32, 'b');
    });
    std::ofstream(store.OutputOf(batch.id)) << "answers\n";
    std::ofstream(store.ErrorsOf(batch.id)) << "errors\n";
    // It was renamed, and nothing was written about it.
    fs::rename(store.OutputOf(batch.id), store.ContentOf(batch.output_file_id));
    std::ofstream(store.ContentOf("file-" + std::string(32, 'c'))) << "of an upload";
  }
  BatchStore store(Options());
  EXPECT_FALSE(fs::exists(store.ContentOf("file-" + std::string(32, 'c'))));
  ASSERT_EQ(store.NextBatch()->status, BatchStatus::kFinalizing);
  for (int time = 0; time < 2; ++time) {
    store.KeepAnswers(batch);
    EXPECT_EQ(store.GetFile(batch.output_file_id, "ann").bytes, 8u);
    EXPECT_EQ(ReadTextFile(store.ContentOf(batch.output_file_id), 100), "answers\n");
    EXPECT_EQ(ReadTextFile(store.ContentOf(batch.error_file_id), 100), "errors\n");
  }
  EXPECT_FALSE(fs::exists(store.ErrorsOf(batch.id)));
}

TEST_F(BatchStoreTest, OldOnesAreRemoved) {
  BatchStore store(Options());
  const StoredFile used = store.AddFile("used", "batch", "{}\n", "");
  const StoredFile unused = store.AddFile("unused", "batch", "{}\n", "");
  const StoredBatch open = store.AddBatch(Of(used.id));
  const StoredBatch ended = store.AddBatch(Of(used.id));
  store.CancelBatch(ended.id, "");
  now_s_ += 1001;
  const StoredFile young = store.AddFile("young", "batch", "{}\n", "");
  store.RemoveOld();
  EXPECT_EQ(store.GetFile(used.id, "").id, used.id);
  EXPECT_EQ(store.GetFile(young.id, "").id, young.id);
  EXPECT_EQ(store.GetBatch(open.id, "").id, open.id);
  EXPECT_EQ(StatusOf([&] { store.GetFile(unused.id, ""); }), 404);
  EXPECT_EQ(StatusOf([&] { store.GetBatch(ended.id, ""); }), 404);
}

TEST_F(BatchStoreTest, WhatCannotBeReadIsLeftAlone) {
  fs::path damaged;
  {
    BatchStore store(Options());
    damaged = Options().directory / "batches" / ("batch_" + std::string(32, '1') + ".json");
  }
  std::ofstream(damaged) << "{\"format\": \"moesaic-batch\"";
  BatchStore store(Options());
  EXPECT_FALSE(store.NextBatch());
  EXPECT_TRUE(fs::exists(damaged));
}

TEST(BatchRecordsTest, DamagedOnes) {
  StoredBatch batch;
  batch.id = "batch_" + std::string(32, '0');
  batch.input_file_id = "file-" + std::string(32, '0');
  const std::string packed = PackStoredBatch(batch);
  EXPECT_EQ(ParseStoredBatch(packed, "f").id, batch.id);
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string changed = packed;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    return changed;
  };
  for (const std::string& text :
       {with("validating", "waiting"), with("\"outcome\":\"completed\"", "\"outcome\":\"failing\""),
        with("\"outcome\":\"completed\"", "\"outcome\":\"in_progress\""),
        with("batch_0", "batch_/"), with("file-0", "file-."), with("\"total\":0", "\"total\":-1"),
        with("moesaic-batch", "moesaic-bat"), with("\"errors\":null", "\"errors\":{}"),
        with("\"metadata\":null", "\"metadata\":{\"a\":1}"), std::string("[]"), std::string()}) {
    EXPECT_THROW(ParseStoredBatch(text, "f"), Error) << text;
  }
}

}  // namespace
}  // namespace moesaic
