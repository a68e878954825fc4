// ModelHarness: a Model with everything it needs, from a model directory, driven by hand: no
// engine, no scheduler. For tests of the forward pass.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/thread_pool.h"
#include "core/device/emulated_device.h"
#include "core/io/checkpoint.h"
#include "kernels/cuda/kernels.h"
#include "prefetch/link/device_experts.h"
#include "prefetch/link/expert_loader.h"
#include "serving/model/model.h"
#include "serving/model/tensor_source.h"

namespace moesaic {

struct HarnessOptions {
  Isa isa = Isa::kScalar;
  WeightType weight_type = WeightType::kBf16;
  WeightType kv_type = WeightType::kBf16;
  int64_t expert_slots = 0;  // 0: all
  int threads = 1;
  ThreadLayout thread_layout;
  int64_t max_batch_tokens = 128;
  int64_t max_logit_rows = 0;  // 0: max_batch_tokens
  int64_t max_context_tokens = 256;
  int64_t kv_blocks = 256;             // of each group of layers
  std::filesystem::path expert_store;  // empty: the checkpoint
  int64_t defer_experts = 0;

  // Of what the model's directory says: what is made of config.json, and in place of its tensors
  // (all but experts). May be empty.
  std::function<void(ModelConfig&)> change_config;
  std::function<std::unique_ptr<TensorSource>(const TensorSource& base)> wrap_tensors;

  // Makes what serves the experts, in place of an ExpertLoader with expert_slots. May be empty.
  std::function<std::unique_ptr<ExpertProvider>(const ExpertSource&, const ModelConfig&)>
      make_experts;

  int devices = 0;           // 0: experts come from disk
  int64_t device_slots = 1;  // on each
  MissMode miss = MissMode::kFetch;
  bool preload = false;  // devices with experts of each layer, as many as they hold
  EmulatedLink link;
  std::vector<EmulatedFaults> faults;  // of device d

  // Devices compute their experts with these; null: the host does.
  const cuda::Kernels* kernels = nullptr;
  bool dense_on_device = false;        // the first one's
  bool capture_dense = true;           // its decode steps
  bool capture_steps = true;           // as a whole
  bool dense_sharded = false;          // over all given_devices, instead
  std::vector<Device*> given_devices;  // in place of emulated ones; as many as `devices`
};

// The routing of every sparse layer, in call order: [layer][rows * top_k].
class RoutingLog : public RoutingHook {
 public:
  void OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                 std::span<float> weights) override;
  bool OnlyWatches() const override { return true; }
  std::vector<std::vector<int32_t>> experts;  // [num_layers], appended over the calls
  std::vector<std::vector<float>> weights;
};

class ModelHarness {
 public:
  ModelHarness(const std::filesystem::path& model_dir, const HarnessOptions& options);
  ~ModelHarness();

  // A sequence whose KV blocks are the harness's next free ones.
  struct Sequence {
    std::vector<int32_t> blocks;
    int32_t state = 0;  // slot of recurrent state
    int64_t length = 0;
    int64_t decode_from = std::numeric_limits<int64_t>::max();  // as SequenceSlice's
  };
  Sequence NewSequence(int64_t max_tokens);

  struct Piece {
    Sequence* sequence;
    std::vector<int32_t> tokens;
  };
  // One forward pass over the pieces; logits of all rows, [rows, vocab].
  std::vector<float> Run(std::span<const Piece> pieces, RoutingHook* hook = nullptr);
  // Prefill in chunks of `chunk` tokens; logits of all positions.
  std::vector<float> Prefill(Sequence& sequence, std::span<const int32_t> tokens, int64_t chunk,
                             RoutingHook* hook = nullptr);

  // The pieces through one layer after another (LayerPass); logits of the last row of each.
  // `between` is called behind each block, and may run others.
  std::vector<float> RunByLayers(std::span<const Piece> pieces,
                                 const std::function<void()>& between);

  const ModelConfig& config() const { return config_; }
  Model& model() { return *model_; }
  ThreadPool& pool() { return pool_; }
  const TensorSource& tensors() const { return tensors_ ? *tensors_ : *checkpoint_tensors_; }
  const StepStats& stats() const { return stats_; }
  EmulatedDevice& device(int index) { return *devices_[static_cast<size_t>(index)]; }
  std::span<const DeviceStatus> device_status() { return provider_->devices(); }
  const ExpertProvider& experts() const { return *provider_; }
  const SlotTable* slot_table() const { return slot_table_; }  // null: steps look nothing up

 private:
  void MakeDevices(const HarnessOptions& options);
  Device& MakeEmulated(const HarnessOptions& options, size_t index);

  ModelConfig config_;
  ThreadPool pool_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<TensorSource> checkpoint_tensors_;
  std::unique_ptr<TensorSource> tensors_;  // null: those
  std::unique_ptr<ExpertSource> experts_;
  std::unique_ptr<EmulatedSystem> system_;
  std::vector<std::unique_ptr<EmulatedDevice>> devices_;
  std::unique_ptr<ExpertPlacement> placement_;
  std::unique_ptr<HostExperts> home_;
  std::unique_ptr<ExpertProvider> provider_;
  SlotTable* slot_table_ = nullptr;
  DeviceOperators operators_;  // until the model has them
  std::unique_ptr<Model> model_;
  StepStats stats_;
  int32_t next_block_ = 0;
};

// The reference beside a model: tensors of reference/logits.safetensors by name.
class Reference {
 public:
  explicit Reference(const std::filesystem::path& model_dir);
  bool Has(const std::string& name) const { return checkpoint_.Find(name) != nullptr; }
  std::vector<float> Floats(const std::string& name) const;
  std::vector<int32_t> Ints(const std::string& name) const;
  std::vector<int64_t> Shape(const std::string& name) const;

  struct Prompt {
    std::vector<int32_t> tokens;
    std::vector<int32_t> greedy;
    std::vector<float> margins;
  };
  const std::vector<Prompt>& prompts() const { return prompts_; }

 private:
  Checkpoint checkpoint_;
  std::vector<Prompt> prompts_;
};

// Narrowest first.
std::vector<Isa> SupportedIsas();

// Of tests/data/models.
std::string FixtureModel(const char* name);

// Made-up token ids, the same for the same seed.
std::vector<int32_t> PromptOf(int seed, int length, int vocab);

}  // namespace moesaic
