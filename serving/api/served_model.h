// ServedModel: a model behind the API, with the names that clients may use; ModelTable finds it by
// name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serving/api/api_error.h"
#include "serving/api/model_state.h"
#include "serving/engine/engine.h"

namespace moesaic {

struct ChatFormat;
class ChatTemplate;
class GrammarCompiler;
class ReplayStore;

struct ServedModel {
  std::vector<std::string> names;  // the first is the one that responses list; at least one
  // Shared: requests that are being answered keep the engine while the server goes down, or while
  // the model is unloaded. Null while the model is not loaded.
  std::shared_ptr<Engine> engine;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: no chat completions; shared likewise
  int64_t created_unix_s = 0;
  std::shared_ptr<const ChatFormat> chat_format = nullptr;  // null: answers are only text
  std::shared_ptr<ReplayStore> replay = nullptr;  // null: nothing is kept; shared likewise
  // Null: there is no structured output; shared likewise.
  std::shared_ptr<GrammarCompiler> grammars = nullptr;
  ModelState state = ModelState::kResident;
  double load_progress = 0;   // while it is loaded: how much has been read, from 0 to 1
  uint64_t memory_bytes = 0;  // that it was given; 0: not told
  std::string why_failed = {};
  bool shrunk = false;  // others have most of its experts' memory
};

// A request's model is there, but not loaded. Who can wait has it loaded (ModelManager) and tries
// again; to others it is an answer: 503 with Retry-After.
class ModelNotLoaded : public ApiError {
 public:
  explicit ModelNotLoaded(const ServedModel& model);
  const std::string& model() const { return model_; }  // its first name
  // Loading it has failed: it is not tried again for a request.
  bool failed() const { return failed_; }
  // Of the request, where it is known: its answer is a stream.
  bool stream() const { return stream_; }
  void SetStream(bool stream) { stream_ = stream; }

 private:
  std::string model_;
  bool failed_;
  bool stream_ = false;
};

// For ServedModel::grammars, of an engine whose model is loaded, with so much memory. Null where
// the build has none.
std::shared_ptr<GrammarCompiler> MakeGrammars(std::shared_ptr<Engine> engine,
                                              uint64_t memory_bytes);

// Immutable once made; shared by all connections.
class ModelTable {
 public:
  // Throws Error(kInvalidArgument) when two models have the same name or one has none.
  explicit ModelTable(std::vector<ServedModel> models);

  const std::vector<ServedModel>& models() const { return models_; }
  // nullptr: unknown. An empty name means the only model, when there is only one. It may not be
  // loaded.
  const ServedModel* Find(std::string_view name) const;
  // One with an engine. Throws ApiError (404) for an unknown one, and ModelNotLoaded.
  const ServedModel& Get(std::string_view name) const;
  // What to answer for a name that Find does not know.
  ApiError NotFound(std::string_view name) const;
  // The models that have one of the names.
  std::shared_ptr<const ModelTable> Only(const std::vector<std::string>& names) const;

 private:
  std::vector<ServedModel> models_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace moesaic
