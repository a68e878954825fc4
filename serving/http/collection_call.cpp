#include "serving/http/collection_call.h"

#include <span>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "serving/api/api_error.h"
#include "serving/api/json_text.h"
#include "serving/http/error_response.h"

namespace moesaic {
namespace {

// Of a body that is a collection: its parts are copied out of it, and checked.
constexpr uint64_t kBytesPerBodyByte = 4;

ApiError NoCollection(const ServedModel& model) {
  return ApiError(404, "NotFoundError",
                  fmt::format("The predictor of the model `{}` keeps no collection; a server with "
                              "--predictor eamc does.",
                              model.names.front()),
                  {}, "no_collection");
}

// What is wrong with a body that is no collection, or not this model's.
ApiError BadCollection(const Error& error) {
  return ApiError(400, "invalid_request_error", error.what(), {}, "bad_collection");
}

HttpResponse UpdateAnswer(CollectionSize size, CollectionUpdate update) {
  Json json = Json::object();
  json["entries"] = size.entries;
  json["capacity"] = size.capacity;
  json["mode"] = update == CollectionUpdate::kMerge ? "merge" : "replace";
  HttpResponse response;
  response.body = DumpJson(json);
  return response;
}

}  // namespace

class CollectionCall::WayBack {
 public:
  using Answer = std::function<void(std::function<HttpResponse()>)>;

  void Open(Answer answer) {
    MutexLock lock(mutex_);
    answer_ = std::move(answer);
  }
  void Close() {
    Answer last;  // holds the call, which must not end under the lock
    MutexLock lock(mutex_);
    std::swap(last, answer_);
  }
  void Go(std::function<HttpResponse()> make) {
    MutexLock lock(mutex_);
    if (answer_) answer_(std::move(make));
  }

 private:
  Mutex mutex_;
  Answer answer_ GUARDED_BY(mutex_);
};

CollectionCall::CollectionCall(CallContext& context, std::shared_ptr<const ModelTable> models,
                               std::shared_ptr<Exchange> exchange)
    : context_(context),
      models_(std::move(models)),
      exchange_(std::move(exchange)),
      path_(exchange_->request().path),
      way_back_(std::make_shared<WayBack>()) {}

void CollectionCall::Start() {
  way_back_->Open([self = shared_from_this()](std::function<HttpResponse()> make) {
    self->Answer(std::move(make));
  });
  HttpRequest& request = exchange_->request();
  try {
    model_ = &models_->Get(QueryValue(request.target, "model").value_or(""));
    const std::string mode = QueryValue(request.target, "mode").value_or("replace");
    if (mode != "replace" && mode != "merge") {
      throw BadParam("mode", "mode must be replace or merge, got \"{}\".", Excerpt(mode));
    }
    if (mode == "merge") update_ = CollectionUpdate::kMerge;
  } catch (...) {
    return Respond(ErrorResponse(CurrentApiError(path_), path_));
  }
  if (request.method != "PUT") return Get();
  context_.run_on_worker([self = shared_from_this(), body = std::move(request.body)] {
    if (!self->gone_.load()) self->Put(body);
  });
}

void CollectionCall::Get() {
  model_->engine->WithCollection([back = way_back_, model = model_](EamCollection* collection) {
    if (collection == nullptr) {
      return back->Go([model]() -> HttpResponse { throw NoCollection(*model); });
    }
    back->Go([model, copy = CopyCollection(*collection)] {
      const std::vector<std::byte> packed = PackCollection(copy, model->engine->config());
      HttpResponse response;
      response.content_type = "application/octet-stream";
      response.headers.emplace_back("Content-Disposition", "attachment; filename=\"eamc.state\"");
      response.body.assign(reinterpret_cast<const char*>(packed.data()), packed.size());
      return response;
    });
  });
}

void CollectionCall::Put(const std::string& body) {
  try {
    const RequestMemory::Lease lease =
        context_.request_memory.Reserve(body.size(), kBytesPerBodyByte);
    const ServedModel& model = *model_;
    auto section = std::make_shared<const CollectionSection>(
        UnpackCollection(std::as_bytes(std::span(body)), model.engine->config()));
    model.engine->WithCollection(
        [back = way_back_, served = &model, section, update = update_](EamCollection* collection) {
          if (collection == nullptr) {
            return back->Go([served]() -> HttpResponse { throw NoCollection(*served); });
          }
          try {
            const CollectionSize size = UpdateCollection(*collection, *section, update);
            back->Go([size, update] { return UpdateAnswer(size, update); });
          } catch (const Error& error) {
            back->Go([error]() -> HttpResponse { throw BadCollection(error); });
          }
        });
  } catch (const Error& error) {
    Respond(ErrorResponse(BadCollection(error), path_));
  } catch (...) {
    Respond(ErrorResponse(CurrentApiError(path_), path_));
  }
}

void CollectionCall::Answer(std::function<HttpResponse()> make) {
  context_.run_on_worker([self = shared_from_this(), make = std::move(make)] {
    if (self->gone_.load()) return;
    try {
      self->Respond(make());
    } catch (...) {
      self->Respond(ErrorResponse(CurrentApiError(self->path_), self->path_));
    }
  });
}

void CollectionCall::Respond(HttpResponse response) {
  auto shared = std::make_shared<HttpResponse>(std::move(response));
  exchange_->Post([self = shared_from_this(), shared] {
    self->way_back_->Close();
    self->exchange_->Respond(std::move(*shared));
  });
}

void CollectionCall::OnShutdown() {
  Leave();
  exchange_->Respond(ErrorResponse(Stopping(), path_));
}

void CollectionCall::Leave() {
  gone_.store(true);
  way_back_->Close();
}

}  // namespace moesaic
