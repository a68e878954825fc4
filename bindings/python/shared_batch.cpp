#include "bindings/python/shared_batch.h"

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"
#include "core/config/model_path.h"
#include "serving/api/api_error.h"
#include "serving/api/batch_line.h"
#include "serving/api/json_text.h"
#include "serving/batch/line_file.h"
#include "serving/cli/job_files.h"
#include "serving/jobs/batch_job.h"
#include "serving/text/tokenizer.h"

namespace moesaic::python {
namespace {

// Where there is no tokenizer to count with; bytes of English text per token.
constexpr int64_t kBytesPerToken = 4;

// No file of the job is another one of it.
const BatchPaths& Checked(const BatchPaths& paths) {
  JobFiles files;
  files.Reads("-i", paths.input);
  files.Replaces("-o", paths.output);
  files.Replaces("--errors", paths.errors);
  files.Replaces("the record of the input", paths.record());
  files.Check();
  return paths;
}

// Null: the model is not on this machine.
std::unique_ptr<Tokenizer> TokenizerOf(const std::string& model) {
  try {
    return LoadTokenizer(ResolveModelPath(model));
  } catch (const Error&) {
    return nullptr;
  }
}

[[noreturn]] void FailForeign(const std::string& line, const char* why) {
  Fail(ErrorKind::kCorrupt, "an answer came that is {}: {}", why, Excerpt(line, 200));
}

}  // namespace

SharedBatch::SharedBatch(const BatchPaths& paths, BatchInputForm form, const std::string& model,
                         int64_t max_tokens)
    : paths_(Checked(paths)), files_(paths_, form) {
  FindOpenLines(model, max_tokens);
}

void SharedBatch::FindOpenLines(const std::string& model, int64_t max_tokens) {
  BatchJobOptions job;
  job.files = paths_;
  job.form = form();
  job.prompts.max_tokens = max_tokens;
  const std::unique_ptr<Tokenizer> tokenizer = TokenizerOf(model);
  const auto count = [&](std::string_view text, bool) {
    if (tokenizer != nullptr) return static_cast<int64_t>(std::ssize(tokenizer->Encode(text)));
    return (static_cast<int64_t>(text.size()) + kBytesPerToken - 1) / kBytesPerToken;
  };
  const std::vector<RequestLengths> lengths = ReadBatchWorkload(job, count, 0).requests;

  LineReader reader(paths_.input);
  std::string text;
  size_t request = 0;
  while (reader.line_number() < std::ssize(files_.input().lines) && reader.Next(&text)) {
    if (IsBlankLine(text)) continue;
    const int64_t number = reader.line_number();
    Line line{number, 1, max_tokens};
    if (request < lengths.size()) {
      line.prompt_tokens = lengths[request].prompt_tokens;
      line.output_tokens = lengths[request].generated_tokens;
    }
    ++request;
    try {
      const std::string id = form() == BatchInputForm::kText
                                 ? DefaultCustomId(number)
                                 : ParseBatchLine(text, number, job.prompts).custom_id;
      if (!numbers_.emplace(id, number).second) {
        // As BatchJob says it. No part of the job knows all lines before.
        files_.errors().Append(BatchErrorLine(
            number, id, BadParam("custom_id", "custom_id is that of an earlier line.")));
        ++refused_;
        continue;
      }
      if (files_.Answered(id)) {
        ++resumed_;
        continue;
      }
    } catch (const ApiError&) {
      // Whoever gets it says what is wrong with it.
    }
    open_.emplace(number, line);
  }
}

std::vector<SharedBatch::Line> SharedBatch::Open() const {
  std::vector<Line> lines;
  lines.reserve(open_.size());
  for (const auto& [number, line] : open_) lines.push_back(line);
  return lines;
}

std::string SharedBatch::Part(std::vector<int64_t> numbers) const {
  std::sort(numbers.begin(), numbers.end());
  const std::vector<uint64_t>& hashes = files_.input().lines;
  LineReader reader(paths_.input);
  std::string part;
  std::string text;
  for (const int64_t number : numbers) {
    bool there = true;
    while (there && reader.line_number() < number) {
      there = reader.Next(&text);
      if (reader.line_number() < number) part += '\n';
    }
    if (!there || number > std::ssize(hashes) ||
        HashOfInputLine(text) != hashes[static_cast<size_t>(number - 1)]) {
      Fail(ErrorKind::kCorrupt,
           "{}:{}: the line has changed since the job began; the answers up to there are whole: "
           "put it back, and the same command with --resume goes on",
           paths_.input.string(), number);
    }
    part += text + '\n';
  }
  return part;
}

bool SharedBatch::EndLine(int64_t number) { return open_.erase(number) > 0; }

std::optional<int64_t> SharedBatch::Answer(std::string_view line) {
  std::string id;
  try {
    id = CustomIdOfOutput(line);
  } catch (const ApiError& refused) {
    FailForeign(std::string(line), refused.what());
  }
  const auto number = numbers_.find(id);
  if (number == numbers_.end()) FailForeign(std::string(line), "to no line of this job");
  if (!EndLine(number->second)) return std::nullopt;
  files_.output().Append(line);
  return number->second;
}

std::optional<int64_t> SharedBatch::Refuse(std::string_view line) {
  int64_t number = 0;
  try {
    if (IsBatchErrorLine(line)) number = ParseJson(line)["line"].get<int64_t>();
  } catch (const std::exception&) {
    // No number, or one that is none of a line.
  }
  if (number < 1 || number > std::ssize(files_.input().lines)) {
    FailForeign(std::string(line), "to no line of this job");
  }
  if (!EndLine(number)) return std::nullopt;
  files_.errors().Append(line);
  return number;
}

void SharedBatch::Sync() {
  files_.output().Sync();
  files_.errors().Sync();
}

}  // namespace moesaic::python
