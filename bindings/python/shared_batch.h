// SharedBatch: the files of a batch job whose lines are answered by several processes, each by a
// `moesaic batch` of its own on a part of the input (moesaic/ray/batch.py).
//
// They are the files of BatchJob, by the same code: either kind of job goes on with what the other
// one has begun. What comes in is checked: an answer must be one to a line that was open, and is
// appended once.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "serving/jobs/batch_files.h"
#include "serving/jobs/input_record.h"

namespace moesaic::python {

class SharedBatch {
 public:
  // A line that is to be answered. The tokens are what is expected of it: of the input's first
  // thousand lines the prompts are counted, later ones are taken to be like them; answers are as
  // long as they may be.
  struct Line {
    int64_t number = 0;  // from 1
    int64_t prompt_tokens = 0;
    int64_t output_tokens = 0;
  };

  // Opens and locks the files, and writes the error lines of custom_ids that were there before.
  // `model`: whose tokenizer counts; where it is not here, four bytes are a token. `max_tokens`: of
  // lines that set none. Throws Error as BatchFiles, and kInvalidArgument when two files are one.
  SharedBatch(const BatchPaths& paths, BatchInputForm form, const std::string& model,
              int64_t max_tokens);

  BatchInputForm form() const { return files_.input().form; }
  int64_t lines() const { return files_.input().requests(); }
  int64_t resumed() const { return resumed_; }  // answered before
  int64_t refused() const { return refused_; }  // duplicates

  std::vector<Line> Open() const;
  // The input with all lines but these left blank, so that numbers, ids and messages are the
  // input's. Throws Error(kCorrupt) when one of them has changed since the job began.
  std::string Part(std::vector<int64_t> numbers) const;

  // Appends a line that `moesaic batch` wrote. Returns the number of the line that it is to, which
  // is then no longer open; null: it was not open any more, and nothing was appended. Throws
  // Error(kCorrupt) when it is to no line of the job, or no such line at all, Error(kIo).
  std::optional<int64_t> Answer(std::string_view line);
  // The same of a line of an error file.
  std::optional<int64_t> Refuse(std::string_view line);
  void Sync();

 private:
  void FindOpenLines(const std::string& model, int64_t max_tokens);
  bool EndLine(int64_t number);

  const BatchPaths paths_;
  BatchFiles files_;
  int64_t resumed_ = 0;
  int64_t refused_ = 0;
  std::map<int64_t, Line> open_;
  std::unordered_map<std::string, int64_t> numbers_;  // of the job's lines by custom_id
};

}  // namespace moesaic::python
