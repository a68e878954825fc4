// BatchFiles: the files of a batch job. All of them are looked at before one is touched; what is
// not this job's is refused and stays as it is. Where a file is thrown away, a new one takes its
// name.
//
// Owned and used by the main thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <unordered_set>

#include "serving/batch/line_file.h"
#include "serving/jobs/input_record.h"

namespace moesaic {

struct BatchPaths {
  std::filesystem::path input;
  std::filesystem::path output;
  std::filesystem::path errors;
  bool resume = false;     // go on with what is in the output
  bool overwrite = false;  // throw away what is in the output and the error file

  std::filesystem::path record() const;  // OUTPUT.progress; empty: the output is no file
};

class BatchFiles {
 public:
  // Throws Error: kInvalidArgument, kNotFound, kUnavailable, kCorrupt, kUnsupported (files that
  // cannot be this job's), kIo.
  BatchFiles(const BatchPaths& paths, BatchInputForm form);

  const InputRecord& input() const { return input_; }
  LineFile& output() { return *output_; }
  LineFile& errors() { return *errors_; }
  // Whether the output that the job goes on with has an answer of this id.
  bool Answered(const std::string& custom_id) const { return answered_.contains(custom_id); }

 private:
  void ReadAnswers(bool begun);
  void CheckInput(const std::optional<InputRecord>& before);
  void CheckErrors() const;

  const BatchPaths paths_;
  InputRecord input_;
  std::unordered_set<std::string> answered_;
  uint64_t answers_bytes_ = 0;  // of whole lines
  std::unique_ptr<LineFile> output_;
  std::unique_ptr<LineFile> errors_;
};

}  // namespace moesaic
