#include "serving/online/model_files.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/thread_pool.h"
#include "core/io/expert_store.h"
#include "core/io/expert_wire.h"
#include "kernels/cpu/product_choice.h"
#include "serving/model/coded_weights.h"
#include "serving/model/expert_sources.h"
#include "serving/model/tied_head.h"

namespace moesaic {
namespace {

// Parts of a checkpoint that text does not pass through.
struct SkippedPart {
  std::string_view prefix;
  std::string_view what;
};
constexpr SkippedPart kSkippedParts[] = {
    {"model.visual.", "for images"},
    {"mtp.", "that predict further tokens"},
};

void LogSkipped(const Checkpoint& checkpoint) {
  for (const SkippedPart& part : kSkippedParts) {
    const auto& tensors = checkpoint.tensors();
    const auto count = std::count_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
      return tensor.first.starts_with(part.prefix);
    });
    if (count > 0) LogInfo("{} tensors {} ({}*) are skipped", count, part.what, part.prefix);
  }
}

// What of bf16 weights is coded in memory. Of experts a store says; all else has to be looked at,
// which a plan that nothing is loaded for does without.
void FindCoded(const EngineOptions& options, bool to_plan, ModelFiles& files) {
  const WeightType type = ChooseWeightType(options);
  if (SameBitsAs(type) != WeightType::kBf16) return;
  ModelConfig& config = files.config;
  const bool store = !options.expert_store.empty();
  if (store) config.coded_experts = StoreIsCoded(ExpertStoresOf(options.expert_store));
  if (type != WeightType::kBf16Coded) return;
  if (store && !*config.coded_experts) {
    LogInfo("experts are not coded: their store has them in bfloat16");
  }
  if (to_plan) return;
  const Stopwatch watch;
  ThreadPool pool(options.threads, options.thread_layout);
  FindUncodedTensors(*files.tensors, *files.kernels, pool, config);
  for (const std::string& name : config.uncoded_tensors) {
    LogInfo("{} stays in bfloat16: it has too many exponents for 12 bits a weight", name);
  }
  if (!store && files.checkpoint != nullptr) {
    config.coded_experts = ExpertsCanBeCoded(config, *files.tensors, *files.kernels, pool);
    LogInfo(
        "weights were looked at in {:.1f} s: experts {}; `moesaic pack --weight-coding lossless` "
        "and --expert-store spare the next start that",
        watch.seconds(), *config.coded_experts ? "are coded" : "stay in bfloat16");
  }
}

// The key that servers of experts share with this process, where some are named.
std::string KeyFor(std::span<const std::filesystem::path> stores, const EngineOptions& options) {
  if (CountLocalStores(stores) == stores.size()) return {};
  return ExpertKeyOf(options.expert_store_key, options.expert_store_key_file);
}

ModelFiles Open(const EngineOptions& options, bool to_plan) {
  ModelFiles files;
  files.config = LoadModelConfig(options.model_dir);
  if (files.config.prediction_layers > 0) {
    LogInfo("layers that predict further tokens (num_nextn_predict_layers: {}) are not read",
            files.config.prediction_layers);
  }
  const WeightType type = ChooseWeightType(options);
  files.kernels =
      std::make_unique<const CpuKernels>(WithChoices(SelectKernels(type), options.kernel_choices));
  if (options.load_format == LoadFormat::kDummy ||
      (to_plan && !Checkpoint::IsThere(options.model_dir))) {
    files.tensors = MakeDummyTensorSource(options.seed);
  } else {
    files.checkpoint = std::make_unique<Checkpoint>(Checkpoint::Open(options.model_dir));
    UntieOtherHead(*files.checkpoint, files.config);
    LogSkipped(*files.checkpoint);
    files.tensors = MakeCheckpointTensorSource(*files.checkpoint);
  }
  FindCoded(options, to_plan, files);
  if (!options.expert_store.empty()) {
    const std::vector<std::filesystem::path> stores = ExpertStoresOf(options.expert_store);
    files.experts = MakeStoreExpertSource(files.config, type, files.tensors->Fingerprint(), stores,
                                          KeyFor(stores, options));
  } else if (files.checkpoint != nullptr) {
    files.experts =
        MakeCheckpointExpertSource(files.config, type, *files.checkpoint, *files.kernels);
  } else if (to_plan) {
    files.experts = MakeAbsentExpertSource(files.config, type);
  } else {
    Fail(ErrorKind::kInvalidArgument,
         "--load-format dummy: random experts need a place on disk; write them with `moesaic pack "
         "--load-format dummy MODEL -o DIR` and give --expert-store DIR");
  }
  return files;
}

}  // namespace

ModelFiles OpenModelFiles(const EngineOptions& options) { return Open(options, false); }
ModelFiles OpenModelFilesToPlan(const EngineOptions& options) { return Open(options, true); }

}  // namespace moesaic
