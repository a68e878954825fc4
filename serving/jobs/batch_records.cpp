#include "serving/jobs/batch_records.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/json_fields.h"
#include "serving/api/json_text.h"

namespace moesaic {
namespace {

constexpr int kVersion = 1;
constexpr const char* kFileFormat = "moesaic-file";
constexpr const char* kBatchFormat = "moesaic-batch";
constexpr const char* kAdvice = "a newer moesaic has written it; move it away";
constexpr int64_t kMost = int64_t{1} << 52;
constexpr size_t kIdDigits = 32;

constexpr std::pair<BatchStatus, const char*> kStatusNames[] = {
    {BatchStatus::kValidating, "validating"}, {BatchStatus::kInProgress, "in_progress"},
    {BatchStatus::kFinalizing, "finalizing"}, {BatchStatus::kCompleted, "completed"},
    {BatchStatus::kFailed, "failed"},         {BatchStatus::kExpired, "expired"},
    {BatchStatus::kCancelling, "cancelling"}, {BatchStatus::kCancelled, "cancelled"},
};

BatchStatus StatusOf(const JsonFields& fields, std::string_view key) {
  const std::string name = fields.String(key, "");
  const auto* const found = std::find_if(std::begin(kStatusNames), std::end(kStatusNames),
                                         [&](const auto& entry) { return name == entry.second; });
  if (found == std::end(kStatusNames)) fields.FailAt(key, "is no status of a batch");
  return found->first;
}

// Ids become names of files.
std::string IdOf(const JsonFields& fields, std::string_view key, std::string_view prefix,
                 bool may_be_empty = false) {
  std::string id = fields.String(key, "");
  if (!(may_be_empty && id.empty()) && !IsStoredId(id, prefix)) fields.FailAt(key, "is no id");
  return id;
}

// With what clients are not told.
std::string Pack(Json json, const char* format, const std::string& owner) {
  json["format"] = format;
  json["version"] = kVersion;
  json["owner"] = owner;
  return DumpJson(json) + "\n";
}

Json NullIfEmpty(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

const char* BatchStatusName(BatchStatus status) {
  return kStatusNames[static_cast<size_t>(status)].second;
}

bool HasEnded(BatchStatus status) {
  return status == BatchStatus::kCompleted || status == BatchStatus::kFailed ||
         status == BatchStatus::kExpired || status == BatchStatus::kCancelled;
}

bool IsStoredId(std::string_view id, std::string_view prefix) {
  if (!id.starts_with(prefix) || id.size() != prefix.size() + kIdDigits) return false;
  return id.substr(prefix.size()).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Json FileJson(const StoredFile& file) {
  Json json = Json::object();
  json["id"] = file.id;
  json["object"] = "file";
  json["bytes"] = file.bytes;
  json["created_at"] = file.created_s;
  json["filename"] = file.name;
  json["purpose"] = file.purpose;
  json["status"] = "processed";
  return json;
}

Json BatchJson(const StoredBatch& batch) {
  Json json = Json::object();
  json["id"] = batch.id;
  json["object"] = "batch";
  json["endpoint"] = batch.endpoint;
  json["model"] = batch.model;
  json["errors"] = nullptr;
  if (!batch.problems.empty()) {
    Json problems = Json::array();
    for (const StoredBatch::Problem& problem : batch.problems) {
      problems.push_back({{"code", problem.code},
                          {"message", problem.message},
                          {"param", nullptr},
                          {"line", problem.line ? Json(*problem.line) : Json(nullptr)}});
    }
    json["errors"] = {{"object", "list"}, {"data", std::move(problems)}};
  }
  json["input_file_id"] = batch.input_file_id;
  json["completion_window"] = batch.completion_window;
  json["status"] = BatchStatusName(batch.status);
  json["output_file_id"] = NullIfEmpty(batch.output_file_id);
  json["error_file_id"] = NullIfEmpty(batch.error_file_id);
  json["created_at"] = batch.created_s;
  for (const auto& [status, name] : kStatusNames) {
    if (status == BatchStatus::kValidating) continue;
    const auto at = batch.at.find(status);
    json[std::string(name) + "_at"] = at != batch.at.end() ? Json(at->second) : Json(nullptr);
  }
  json["expires_at"] = batch.expires_s;
  json["request_counts"] = {
      {"total", batch.total}, {"completed", batch.completed}, {"failed", batch.failed}};
  json["metadata"] = batch.metadata.empty() ? Json(nullptr) : Json(batch.metadata);
  return json;
}

std::string PackStoredFile(const StoredFile& file) {
  return Pack(FileJson(file), kFileFormat, file.owner);
}

std::string PackStoredBatch(const StoredBatch& batch) {
  Json json = BatchJson(batch);
  json["outcome"] = BatchStatusName(batch.outcome);
  return Pack(std::move(json), kBatchFormat, batch.owner);
}

StoredFile ParseStoredFile(std::string_view text, std::string_view name) {
  const nlohmann::json json = ParseJsonObject(text, name);
  const JsonFields fields(json, name);
  fields.RequireFormat(kFileFormat, kVersion, kAdvice);
  StoredFile file;
  file.id = IdOf(fields, "id", "file-");
  file.name = fields.String("filename", "");
  file.purpose = fields.String("purpose", "");
  file.bytes = static_cast<uint64_t>(fields.Int("bytes", 0, 0, kMost));
  file.created_s = fields.Int("created_at", 0, 0, kMost);
  file.owner = fields.String("owner", "");
  return file;
}

StoredBatch ParseStoredBatch(std::string_view text, std::string_view name) {
  const nlohmann::json json = ParseJsonObject(text, name);
  const JsonFields fields(json, name);
  fields.RequireFormat(kBatchFormat, kVersion, kAdvice);
  StoredBatch batch;
  batch.id = IdOf(fields, "id", "batch_");
  batch.endpoint = fields.String("endpoint", "");
  batch.input_file_id = IdOf(fields, "input_file_id", "file-");
  batch.completion_window = fields.String("completion_window", "");
  batch.model = fields.String("model", "");
  batch.status = StatusOf(fields, "status");
  batch.outcome = StatusOf(fields, "outcome");
  if (!HasEnded(batch.outcome)) fields.FailAt("outcome", "is nothing that a batch ends as");
  if (!fields.Absent("output_file_id")) {
    batch.output_file_id = IdOf(fields, "output_file_id", "file-", true);
  }
  if (!fields.Absent("error_file_id")) {
    batch.error_file_id = IdOf(fields, "error_file_id", "file-", true);
  }
  if (const auto errors = fields.Member("errors")) {
    for (const JsonFields& problem : errors->At("data").Elements(100)) {
      StoredBatch::Problem& read = batch.problems.emplace_back();
      read.code = problem.String("code", "");
      read.message = problem.String("message", "");
      read.line = problem.OptionalInt("line", std::nullopt, 0, kMost);
    }
  }
  const JsonFields counts = fields.At("request_counts");
  batch.total = counts.Int("total", 0, 0, kMost);
  batch.completed = counts.Int("completed", 0, 0, kMost);
  batch.failed = counts.Int("failed", 0, 0, kMost);
  batch.created_s = fields.Int("created_at", 0, 0, kMost);
  batch.expires_s = fields.Int("expires_at", 0, 0, kMost);
  for (const auto& [status, label] : kStatusNames) {
    if (status == BatchStatus::kValidating) continue;
    const auto at = fields.OptionalInt(std::string(label) + "_at", std::nullopt, 0, kMost);
    if (at) batch.at[status] = *at;
  }
  if (const auto metadata = fields.Member("metadata")) {
    for (const auto& [key, value] : metadata->value().items()) {
      if (!value.is_string()) metadata->FailAt(key, "is no text");
      batch.metadata[key] = value.get<std::string>();
    }
  }
  batch.owner = fields.String("owner", "");
  return batch;
}

}  // namespace moesaic
