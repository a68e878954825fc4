#include "serving/api/served_model.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/api/api_error.h"
#include "serving/grammar/grammar_backend.h"
#include "serving/grammar/grammar_compiler.h"

namespace moesaic {

std::shared_ptr<GrammarCompiler> MakeGrammars(std::shared_ptr<Engine> engine,
                                              uint64_t memory_bytes) {
  if (std::string_view(GrammarBackendName()).empty()) return nullptr;
  GrammarCompilerOptions options;
  options.memory_bytes = memory_bytes;
  const auto make = [engine = std::move(engine)] {
    const std::vector<int32_t>& own = engine->generation_defaults().eos_token_ids;
    return MakeGrammarBackend(VocabularyOf(engine->tokenizer(), engine->config().vocab_size,
                                           own.empty() ? engine->config().eos_token_ids : own));
  };
  return std::make_shared<GrammarCompiler>(make, options);
}

ModelTable::ModelTable(std::vector<ServedModel> models) : models_(std::move(models)) {
  for (size_t i = 0; i < models_.size(); ++i) {
    const ModelState state = models_[i].state;
    CHECK((models_[i].engine != nullptr) == (state == ModelState::kResident));
    if (models_[i].names.empty()) {
      Fail(ErrorKind::kInvalidArgument, "model {} of this server has no name to be served under",
           i);
    }
    for (const std::string& name : models_[i].names) {
      if (name.empty() || !by_name_.emplace(name, i).second) {
        Fail(ErrorKind::kInvalidArgument,
             "--served-model-name: '{}' is empty or given to two models", name);
      }
    }
  }
}

const ServedModel* ModelTable::Find(std::string_view name) const {
  if (name.empty()) return models_.size() == 1 ? &models_.front() : nullptr;
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &models_[found->second];
}

const ServedModel& ModelTable::Get(std::string_view name) const {
  const ServedModel* model = Find(name);
  if (model == nullptr) throw NotFound(name);
  if (model->engine == nullptr) throw ModelNotLoaded(*model);
  return *model;
}

ApiError ModelTable::NotFound(std::string_view name) const {
  std::vector<std::string> served;
  if (models_.size() > 1) {
    for (const ServedModel& model : models_) {
      served.insert(served.end(), model.names.begin(), model.names.end());
    }
  }
  return ModelNotFound(name, served);
}

ModelNotLoaded::ModelNotLoaded(const ServedModel& model)
    : ApiError(Unavailable(
          model.state == ModelState::kFailed
              ? fmt::format("The model `{}` could not be loaded: {}", model.names.front(),
                            model.why_failed)
              : fmt::format(
                    "The model `{}` is {}; try again later.", model.names.front(),
                    model.state == ModelState::kLoading ? "still being loaded" : "not loaded"),
          model.state == ModelState::kFailed    ? "model_failed"
          : model.state == ModelState::kLoading ? "loading"
                                                : "model_not_loaded",
          model.state == ModelState::kFailed ? 60 : 5)),
      model_(model.names.front()),
      failed_(model.state == ModelState::kFailed) {}

std::shared_ptr<const ModelTable> ModelTable::Only(const std::vector<std::string>& names) const {
  std::vector<ServedModel> some;
  for (const ServedModel& model : models_) {
    if (std::find_first_of(model.names.begin(), model.names.end(), names.begin(), names.end()) !=
        model.names.end()) {
      some.push_back(model);
    }
  }
  return std::make_shared<const ModelTable>(std::move(some));
}

}  // namespace moesaic
