#include "bindings/python/eam_archive.h"

#include <algorithm>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "kernels/cpu/kernels.h"
#include "tracer/compact_traces.h"
#include "tracer/eam_collection_section.h"
#include "tracer/state_checkpoint.h"
#include "tracer/state_fields.h"
#include "tracer/trace_ops.h"

namespace moesaic::python {
namespace {

constexpr int64_t kMostLayers = 1 << 16;
constexpr int64_t kMostEntries = 1 << 24;

// For as long as the process lives: collections refer to them.
const CpuKernels& Kernels() {
  static const CpuKernels kernels = SelectKernels();
  return kernels;
}

std::unique_ptr<EamCollection> MakeCollection(int64_t layers, int64_t experts, int64_t capacity) {
  if (layers < 1 || layers > kMostLayers || experts < 1 || experts > kMostLayers || capacity < 1 ||
      capacity > kMostEntries) {
    Fail(ErrorKind::kInvalidArgument,
         "a collection of {} matrices of {} layers of {} experts cannot be: each is at least 1",
         capacity, layers, experts);
  }
  return std::make_unique<EamCollection>(static_cast<int>(layers), static_cast<int>(experts),
                                         static_cast<int>(capacity), Kernels());
}

CollectionSection SectionOf(StoredState& state, const std::string& name) {
  for (StoredSection& section : state.sections) {
    if (section.name == EamCollectionSection::kName) {
      return {section.version, std::move(section.bytes)};
    }
  }
  Fail(ErrorKind::kCorrupt, "{}: the state file has no part {}", name, EamCollectionSection::kName);
}

// Runs `use` on the engine's thread and waits for what it returns or throws.
template <typename T>
T WithCollection(Engine& engine, std::function<T(EamCollection&)> use) {
  auto answer = std::make_shared<std::promise<T>>();
  std::future<T> result = answer->get_future();
  engine.WithCollection([answer, use = std::move(use)](EamCollection* collection) {
    try {
      if (collection == nullptr) {
        Fail(ErrorKind::kUnsupported,
             "the engine's predictor keeps no collection: make it with predictor=\"eamc\"");
      }
      answer->set_value(use(*collection));
    } catch (...) {
      answer->set_exception(std::current_exception());
    }
  });
  return result.get();
}

}  // namespace

EamArchive::EamArchive(int64_t num_layers, int64_t num_experts, int64_t capacity)
    : collection_(MakeCollection(num_layers, num_experts, capacity)) {
  model_.num_experts = num_experts;
}

EamArchive::EamArchive(ModelFingerprint model, const CollectionSection& section, int64_t capacity)
    : model_(std::move(model)) {
  const StateFields fields =
      StateFields::Unpack(section.bytes, std::string(EamCollectionSection::kName));
  const int64_t layers = fields.Int("num_layers", 1, kMostLayers);
  const int64_t experts = fields.Int("num_experts", 1, kMostLayers);
  const int64_t entries = fields.Int("entries", 0, kMostEntries);
  collection_ =
      MakeCollection(layers, experts, std::max<int64_t>({capacity, capacity > 0 ? 1 : entries, 1}));
  EamCollectionSection(*collection_).Load(section.version, section.bytes);
}

std::shared_ptr<EamArchive> EamArchive::Load(const std::filesystem::path& file, int64_t capacity) {
  StoredState state = ReadStateFile(file);
  const CollectionSection section = SectionOf(state, file.string());
  return std::shared_ptr<EamArchive>(new EamArchive(state.model, section, capacity));
}

std::shared_ptr<EamArchive> EamArchive::Compact(const RoutingTrace& trace, int64_t capacity,
                                                int64_t iterations, int64_t seed) {
  const std::vector<ExpertActivationMatrix> archive = RequestEams(trace);
  if (archive.empty()) Fail(ErrorKind::kInvalidArgument, "the trace has no tokens");
  if (capacity < 1 || capacity > kMostEntries) {
    Fail(ErrorKind::kInvalidArgument, "capacity: {} is not between 1 and {}", capacity,
         kMostEntries);
  }
  const CompactOptions options = {static_cast<int>(iterations), static_cast<int>(seed)};
  const std::vector<ExpertActivationMatrix> kept =
      CompactTraces(archive, static_cast<int>(capacity), options);
  auto result = std::make_shared<EamArchive>(kept.front().num_layers(), kept.front().num_experts(),
                                             std::ssize(kept));
  for (const ExpertActivationMatrix& eam : kept) result->collection_->Insert(eam);
  result->model_.moe_layers = trace.header.num_layers;
  result->model_.top_k = trace.header.top_k;
  return result;
}

std::shared_ptr<EamArchive> EamArchive::Of(EngineHandle& engine) {
  const EngineHandle::User use(engine);
  struct Copy {
    CollectionSection section;
    int capacity = 0;
  };
  const Copy copy = WithCollection<Copy>(use->engine(), [](EamCollection& collection) {
    return Copy{CopyCollection(collection), collection.capacity()};
  });
  return std::shared_ptr<EamArchive>(
      new EamArchive(FingerprintOf(use->engine().config()), copy.section, copy.capacity));
}

void EamArchive::PutInto(EngineHandle& engine, CollectionUpdate update) const {
  StoredState state;
  state.model = model_;
  CollectionSection own = CopyCollection(*collection_);
  state.sections.push_back(
      {std::string(EamCollectionSection::kName), own.version, std::move(own.bytes)});
  const std::vector<std::byte> packed = PackState(std::move(state));
  const EngineHandle::User use(engine);
  const CollectionSection section = UnpackCollection(packed, use->engine().config());
  WithCollection<CollectionSize>(use->engine(), [&section, update](EamCollection& collection) {
    return UpdateCollection(collection, section, update);
  });
}

void EamArchive::Save(const std::filesystem::path& file) const {
  EamCollectionSection section(*collection_);
  const std::filesystem::path aside = StateCheckpoint(file, model_, {&section}).Save().aside;
  if (!aside.empty()) {
    LogWarn("{} was not a state file of such a model; it is now {}", file.string(), aside.string());
  }
}

void EamArchive::Merge(const EamArchive& other) {
  const std::string difference = FingerprintDifference(other.model_, model_);
  if (!difference.empty()) {
    Fail(ErrorKind::kUnsupported, "the collections are of two models: {}", difference);
  }
  const CollectionSection section = CopyCollection(*other.collection_);
  UpdateCollection(*collection_, section, CollectionUpdate::kMerge);
}

}  // namespace moesaic::python
