#include "serving/http/batch_call.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "serving/api/api_error.h"
#include "serving/api/batch_line.h"
#include "serving/api/json_text.h"
#include "serving/api/request_fields.h"
#include "serving/batch/line_file.h"
#include "serving/http/error_response.h"
#include "serving/http/multipart.h"
#include "serving/jobs/input_record.h"

namespace moesaic {
namespace {

constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kMaxLabelBytes = 255;
constexpr size_t kMaxMetadata = 16;
// A form is copied once, into the file.
constexpr uint64_t kBytesPerFormByte = 2;

int64_t IntQuery(const std::string& target, std::string_view name, int64_t fallback, int64_t most) {
  const auto text = QueryValue(target, name);
  if (!text) return fallback;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 1 || value > most) {
    throw BadParam(name, "{} must be a number from 1 to {}, got \"{}\".", name, most,
                   Excerpt(*text));
  }
  return value;
}

// A page of records: what follows `after`, at most `limit`.
template <typename Record, typename ToJson>
Json Page(const std::vector<Record>& records, const std::string& target, int64_t fallback,
          int64_t most, ToJson to_json) {
  const int64_t limit = IntQuery(target, "limit", fallback, most);
  auto from = records.begin();
  if (const auto after = QueryValue(target, "after"); after && !after->empty()) {
    from = std::find_if(records.begin(), records.end(),
                        [&](const Record& record) { return record.id == *after; });
    if (from == records.end()) {
      throw BadParam("after", "after is no id of the list: \"{}\".", Excerpt(*after));
    }
    ++from;
  }
  const auto to = from + std::min<int64_t>(limit, records.end() - from);
  Json data = Json::array();
  for (auto record = from; record != to; ++record) data.push_back(to_json(*record));
  Json json = Json::object();
  json["object"] = "list";
  json["first_id"] = data.empty() ? Json(nullptr) : data.front()["id"];
  json["last_id"] = data.empty() ? Json(nullptr) : data.back()["id"];
  json["has_more"] = to != records.end();
  json["data"] = std::move(data);
  return json;
}

std::string Text(RequestFields& fields, const char* name) {
  auto text = fields.String(name);
  if (!text) throw BadParam(name, "{} (a string) is missing.", name);
  return std::move(*text);
}

}  // namespace

BatchCall::BatchCall(CallContext& context, const BatchBackend& backend,
                     std::shared_ptr<const ModelTable> models, std::shared_ptr<Exchange> exchange,
                     RouteMatch match, std::string owner)
    : context_(context),
      backend_(backend),
      models_(std::move(models)),
      exchange_(std::move(exchange)),
      match_(std::move(match)),
      owner_(std::move(owner)) {}

void BatchCall::Start() {
  context_.run_on_worker([self = shared_from_this(), body = std::move(exchange_->request().body)] {
    if (self->gone_.load()) return;
    auto response = std::make_shared<HttpResponse>(self->Answer(body));
    self->exchange_->Post([self, response] {
      if (!self->content_) return self->exchange_->Respond(std::move(*response));
      self->exchange_->StartStream(std::move(*response));
      self->SendMore();
    });
  });
}

void BatchCall::OnShutdown() {
  gone_.store(true);
  if (content_) return exchange_->Abort();
  exchange_->Respond(ErrorResponse(Stopping(), exchange_->request().path));
}

HttpResponse BatchCall::Answer(const std::string& body) {
  const HttpRequest& request = exchange_->request();
  try {
    if (backend_.store == nullptr) {
      throw ApiError(404, "invalid_request_error",
                     "This server does no batches; one that is started with --batch-dir does.", {},
                     "no_batches");
    }
    BatchStore& store = *backend_.store;
    const RequestMemory::Lease lease =
        context_.request_memory.Reserve(body.size(), kBytesPerFormByte);
    HttpResponse response;
    switch (match_.route) {
      case Route::kFiles:
        response.body = DumpJson(request.method == "POST" ? Upload(body) : FileList());
        break;
      case Route::kFile:
        if (request.method == "DELETE") {
          store.DeleteFile(match_.id, owner_);
          response.body = DumpJson({{"id", match_.id}, {"object", "file"}, {"deleted", true}});
        } else {
          response.body = DumpJson(FileJson(store.GetFile(match_.id, owner_)));
        }
        break;
      case Route::kFileContent:
        store.GetFile(match_.id, owner_);
        content_.emplace(store.ContentOf(match_.id));
        response.content_type = "application/jsonl";
        break;
      case Route::kBatches:
        response.body = DumpJson(request.method == "POST" ? Create(body) : BatchList());
        break;
      case Route::kBatchCancel:
        response.body = DumpJson(BatchJson(store.CancelBatch(match_.id, owner_)));
        backend_.wake();
        break;
      default:
        response.body = DumpJson(BatchJson(store.GetBatch(match_.id, owner_)));
    }
    return response;
  } catch (...) {
    return ErrorResponse(CurrentApiError(request.path), request.path);
  }
}

Json BatchCall::Upload(std::string_view body) const {
  const FormPart* file = nullptr;
  std::string purpose;
  const std::vector<FormPart> parts =
      ParseMultipart(body, exchange_->request().Header("content-type"));
  for (const FormPart& part : parts) {
    if (part.name == "file") file = &part;
    if (part.name == "purpose") purpose = std::string(part.content.substr(0, kMaxLabelBytes));
  }
  if (file == nullptr) throw BadParam("file", "The form has no file.");
  if (purpose != "batch") {
    throw BadParam("purpose", "purpose must be \"batch\", got \"{}\".", Excerpt(purpose));
  }
  if (file->content.empty()) throw BadParam("file", "The file is empty.");
  return FileJson(backend_.store->AddFile(file->filename.substr(0, kMaxLabelBytes), purpose,
                                          file->content, owner_));
}

// That the first line names. The others have to name it, too: lines that do not are answered with
// an error.
std::string BatchCall::ModelOf(const std::string& file_id) const {
  LineReader reader(backend_.store->ContentOf(file_id));
  std::string text;
  while (reader.Next(&text)) {
    if (IsBlankLine(text)) continue;
    try {
      const BatchLine line = ParseBatchLine(text, reader.line_number(), {});
      const Json body = ParseJson(line.body);
      const std::string name = body.value("model", std::string());
      const ServedModel* const model = models_->Find(name);
      if (model == nullptr) throw models_->NotFound(name);
      return model->names.front();
    } catch (const Json::exception&) {
      throw BadParam("input_file_id", "{}: line {}: model is no text.", file_id,
                     reader.line_number());
    } catch (const ApiError& error) {
      throw BadParam("input_file_id", "{}: line {}: {}", file_id, reader.line_number(),
                     error.what());
    }
  }
  throw BadParam("input_file_id", "{} has no lines.", file_id);
}

Json BatchCall::Create(std::string_view body) const {
  const Json json = ParseJson(body);
  RequestFields fields(json);
  StoredBatch batch;
  batch.owner = owner_;
  batch.input_file_id = Text(fields, "input_file_id");
  batch.endpoint = Text(fields, "endpoint");
  batch.completion_window = Text(fields, "completion_window");
  if (batch.endpoint != "/v1/chat/completions" && batch.endpoint != "/v1/completions") {
    throw BadParam("endpoint",
                   "endpoint must be /v1/chat/completions or /v1/completions, got \"{}\".",
                   Excerpt(batch.endpoint));
  }
  if (batch.completion_window != "24h") {
    throw BadParam("completion_window", "completion_window must be \"24h\", got \"{}\".",
                   Excerpt(batch.completion_window));
  }
  if (const Json* const metadata = fields.Find("metadata");
      metadata != nullptr && !metadata->is_null()) {
    if (!metadata->is_object() || metadata->size() > kMaxMetadata) {
      throw BadParam("metadata", "metadata must be an object of at most {} texts.", kMaxMetadata);
    }
    for (const auto& [key, value] : metadata->items()) {
      if (!value.is_string() || value.get_ref<const std::string&>().size() > 512 ||
          key.size() > 64) {
        throw BadParam("metadata", "metadata has texts of at most 512 bytes, under names of 64.");
      }
      batch.metadata[key] = value.get<std::string>();
    }
  }
  const StoredFile input = backend_.store->GetFile(batch.input_file_id, owner_);
  if (input.purpose != "batch") {
    throw BadParam("input_file_id", "{} is the answer of a batch.", input.id);
  }
  batch.model = ModelOf(batch.input_file_id);
  batch = backend_.store->AddBatch(std::move(batch));
  backend_.wake();
  return BatchJson(batch);
}

Json BatchCall::FileList() const {
  const std::string& target = exchange_->request().target;
  std::vector<StoredFile> files = backend_.store->ListFiles(owner_);
  if (const auto purpose = QueryValue(target, "purpose")) {
    std::erase_if(files, [&](const StoredFile& file) { return file.purpose != *purpose; });
  }
  return Page(files, target, 10000, 10000, FileJson);
}

Json BatchCall::BatchList() const {
  return Page(backend_.store->ListBatches(owner_), exchange_->request().target, 20, 100, BatchJson);
}

void BatchCall::SendMore() {
  if (!content_ || reading_ || gone_.load() || !exchange_->writable()) return;
  reading_ = true;
  context_.run_on_worker([self = shared_from_this()] {
    auto piece = std::make_shared<std::string>(kPieceBytes, '\0');
    bool failed = false;
    try {
      piece->resize(self->content_->ReadAt(
          self->offset_, std::as_writable_bytes(std::span(piece->data(), piece->size()))));
    } catch (const Error&) {
      failed = true;  // its head has gone out: the client sees a body that does not end
    }
    self->exchange_->Post([self, piece, failed] {
      self->reading_ = false;
      if (self->gone_.load()) return;
      if (failed) return self->exchange_->Abort();
      if (piece->empty()) return self->exchange_->FinishStream();
      self->offset_ += piece->size();
      self->exchange_->Send(*piece);
      self->SendMore();
    });
  });
}

}  // namespace moesaic
