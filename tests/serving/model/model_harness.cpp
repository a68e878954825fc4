#include "tests/serving/model/model_harness.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/config/kv_groups.h"
#include "core/io/expert_store.h"
#include "kernels/cpu/isas.h"
#include "serving/model/coded_weights.h"
#include "serving/model/device_dense.h"
#include "serving/model/expert_sources.h"
#include "serving/model/host_dense.h"
#include "serving/model/layer_pass.h"
#include "serving/model/numa_slices.h"
#include "serving/model/tied_head.h"

namespace moesaic {

void RoutingLog::OnRouting(int64_t layer, const ForwardBatch&, std::span<int32_t> ids,
                           std::span<float> values) {
  const auto at = static_cast<size_t>(layer);
  if (experts.size() <= at) {
    experts.resize(at + 1);
    weights.resize(at + 1);
  }
  experts[at].insert(experts[at].end(), ids.begin(), ids.end());
  weights[at].insert(weights[at].end(), values.begin(), values.end());
}

ModelHarness::ModelHarness(const std::filesystem::path& model_dir, const HarnessOptions& options)
    : config_(LoadModelConfig(model_dir)), pool_(options.threads, options.thread_layout) {
  const CpuKernels& kernels = KernelsFor(options.isa);
  checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::Open(model_dir));
  UntieOtherHead(*checkpoint_, config_);
  checkpoint_tensors_ = MakeCheckpointTensorSource(*checkpoint_);
  if (options.change_config) options.change_config(config_);
  if (options.wrap_tensors) tensors_ = options.wrap_tensors(*checkpoint_tensors_);
  if (options.weight_type == WeightType::kBf16Coded) {
    FindUncodedTensors(tensors(), kernels, pool_, config_);
    config_.coded_experts = ExpertsCanBeCoded(config_, tensors(), kernels, pool_);
  }
  if (options.expert_store.empty()) {
    experts_ = MakeCheckpointExpertSource(config_, options.weight_type, *checkpoint_, kernels);
  } else {
    if (!ExpertStoreIsCurrent(config_, options.weight_type, tensors().Fingerprint(),
                              options.expert_store)) {
      WriteExpertStore(config_, options.weight_type, tensors(), kernels, pool_,
                       options.expert_store, [](int64_t, int64_t) {});
    }
    experts_ = MakeStoreExpertSource(config_, options.weight_type, tensors().Fingerprint(),
                                     ExpertStoresOf(options.expert_store));
  }
  const int64_t slots = options.expert_slots > 0
                            ? options.expert_slots
                            : config_.num_sparse_layers() * config_.num_experts();
  if (options.make_experts) {
    provider_ = options.make_experts(*experts_, config_);
  } else if (options.devices > 0) {
    MakeDevices(options);
  } else {
    ExpertLoaderOptions loader;
    loader.budget_bytes = static_cast<uint64_t>(slots) * experts_->layout().slot_bytes;
    const std::vector<NodeStretch> stretches = SlotStretches(experts_->layout(), pool_.node_ids());
    loader.slot_stretches = stretches;
    provider_ = std::make_unique<ExpertLoader>(
        *experts_, static_cast<int>(config_.num_layers()), static_cast<int>(config_.num_experts()),
        MakeLruPolicy(config_.num_layers() * config_.num_experts()), loader);
  }
  ModelLimits limits;
  limits.max_batch_tokens = options.max_batch_tokens;
  limits.max_context_tokens = options.max_context_tokens;
  limits.num_kv_blocks = options.kv_blocks * static_cast<int64_t>(KvGroupsOf(config_).count());
  limits.max_logit_rows =
      options.max_logit_rows > 0 ? options.max_logit_rows : options.max_batch_tokens;
  limits.kv_type = options.kv_type;
  limits.num_state_slots = options.kv_blocks;  // a sequence has a block at least
  limits.defer_experts = options.defer_experts;
  ModelWeights weights =
      ModelWeights::Load(config_, options.weight_type, tensors(), kernels, pool_);
  std::unique_ptr<DensePart> dense;
  if (options.dense_on_device || options.dense_sharded) {
    std::vector<Device*> devices = options.given_devices;
    if (devices.empty()) devices.push_back(devices_.front().get());
    if (!options.dense_sharded) devices.resize(1);
    auto on_devices = std::make_unique<DeviceDense>(
        devices, *options.kernels, config_, options.weight_type, weights, limits,
        DeviceDenseOptions{.capture = options.capture_dense && !options.dense_sharded});
    if (options.capture_steps && slot_table_ != nullptr) {
      on_devices->CaptureSteps(experts_->layout(), *slot_table_);
    }
    dense = std::move(on_devices);
  } else {
    dense = std::make_unique<HostDense>(config_, std::move(weights), kernels, pool_, limits);
  }
  model_ = std::make_unique<Model>(config_, std::move(dense), experts_->layout(), *provider_,
                                   kernels, pool_, limits, std::move(operators_));
}

ModelHarness::~ModelHarness() = default;

void ModelHarness::MakeDevices(const HarnessOptions& options) {
  const ExpertGrid grid(static_cast<int>(config_.num_layers()),
                        static_cast<int>(config_.num_experts()));
  placement_ = std::make_unique<ExpertPlacement>(
      grid, std::vector<int>(static_cast<size_t>(options.devices), -1));
  system_ = std::make_unique<EmulatedSystem>();
  std::vector<Device*> devices;
  DeviceExpertsOptions experts;
  experts.miss = options.miss;
  for (size_t d = 0; d < static_cast<size_t>(options.devices); ++d) {
    devices.push_back(options.given_devices.empty() ? &MakeEmulated(options, d)
                                                    : options.given_devices[d]);
    experts.slots.push_back(options.device_slots);
    if (options.kernels == nullptr) continue;
    operators_.push_back(std::make_unique<DeviceOperator>(
        *devices.back(), *options.kernels, experts_->layout(), config_, options.max_batch_tokens));
  }
  home_ =
      std::make_unique<HostExperts>(*experts_, grid, *placement_, devices, ExpertLoaderOptions{});
  experts.looked_up = options.dense_on_device;
  auto provider = std::make_unique<DeviceExperts>(*home_, grid, *placement_, devices, experts);
  slot_table_ = provider->slot_table();
  if (options.preload) {
    std::vector<ExpertId> all;
    for (int index = 0; index < grid.num_experts(); ++index) {
      for (int layer = 0; layer < grid.num_layers(); ++layer) {
        if (!config_.is_sparse(layer)) continue;
        all.push_back(grid.Id(layer * grid.num_experts() + index));
      }
    }
    provider->Preload(all, nullptr);
  }
  provider_ = std::move(provider);
}

Device& ModelHarness::MakeEmulated(const HarnessOptions& options, size_t index) {
  EmulatedDeviceOptions device;
  device.name = "emulated:" + std::to_string(index);
  device.capacity_bytes =
      static_cast<uint64_t>(options.device_slots) * experts_->layout().slot_bytes;
  if (options.kernels != nullptr) {
    device.capacity_bytes += DeviceOperator::DeviceBytes(config_, options.max_batch_tokens);
  }
  device.host_to_device = options.link;
  if (index < options.faults.size()) device.faults = options.faults[index];
  devices_.push_back(std::make_unique<EmulatedDevice>(*system_, device));
  return *devices_.back();
}

ModelHarness::Sequence ModelHarness::NewSequence(int64_t max_tokens) {
  Sequence sequence;
  for (int64_t covered = 0; covered < max_tokens; covered += kKvBlockTokens) {
    sequence.blocks.push_back(next_block_++);
  }
  sequence.state = sequence.blocks.front();
  return sequence;
}

std::vector<float> ModelHarness::Run(std::span<const Piece> pieces, RoutingHook* hook) {
  std::vector<int32_t> tokens;
  std::vector<SequenceSlice> slices;
  for (const Piece& piece : pieces) {
    SequenceSlice slice;
    slice.first_row = static_cast<int64_t>(tokens.size());
    slice.num_tokens = static_cast<int64_t>(piece.tokens.size());
    slice.start_position = piece.sequence->length;
    slice.blocks = piece.sequence->blocks;
    slice.decode_from = piece.sequence->decode_from;
    slice.state = {.slot = piece.sequence->state, .from = piece.sequence->state};
    slices.push_back(slice);
    tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
    piece.sequence->length += slice.num_tokens;
  }
  provider_->StepBegan();
  stats_ += model_->Forward({tokens, slices}, hook);
  std::vector<int32_t> rows(tokens.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
  std::vector<float> logits(rows.size() * static_cast<size_t>(config_.vocab_size));
  model_->Logits(rows, logits.data());
  return logits;
}

std::vector<float> ModelHarness::RunByLayers(std::span<const Piece> pieces,
                                             const std::function<void()>& between) {
  std::vector<int32_t> tokens;
  std::vector<SequenceSlice> slices;
  std::vector<int32_t> last_rows;
  for (const Piece& piece : pieces) {
    SequenceSlice slice;
    slice.first_row = std::ssize(tokens);
    slice.num_tokens = std::ssize(piece.tokens);
    slice.start_position = piece.sequence->length;
    slice.blocks = piece.sequence->blocks;
    slice.state = {.slot = piece.sequence->state, .from = piece.sequence->state};
    slices.push_back(slice);
    tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
    last_rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
    piece.sequence->length += slice.num_tokens;
  }
  LayerPass pass(*model_, std::ssize(tokens));
  pass.Begin(tokens, slices);
  while (!pass.done()) {
    stats_ += pass.RunBlock();
    between();
  }
  pass.Finish(last_rows);
  std::vector<int32_t> rows(last_rows.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
  std::vector<float> logits(rows.size() * static_cast<size_t>(config_.vocab_size));
  model_->Logits(rows, logits.data());
  return logits;
}

std::vector<float> ModelHarness::Prefill(Sequence& sequence, std::span<const int32_t> tokens,
                                         int64_t chunk, RoutingHook* hook) {
  std::vector<float> all;
  for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(chunk)) {
    const size_t count = std::min(static_cast<size_t>(chunk), tokens.size() - first);
    const Piece piece = {&sequence,
                         {tokens.begin() + static_cast<int64_t>(first),
                          tokens.begin() + static_cast<int64_t>(first + count)}};
    const std::vector<float> logits = Run({&piece, 1}, hook);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

Reference::Reference(const std::filesystem::path& model_dir)
    : checkpoint_(Checkpoint::Open(model_dir / "reference")) {
  std::ifstream file(model_dir / "reference" / "prompts.json");
  for (const auto& entry : nlohmann::json::parse(file)) {
    prompts_.push_back({entry.at("prompt_ids").get<std::vector<int32_t>>(),
                        entry.at("greedy_ids").get<std::vector<int32_t>>(),
                        entry.at("greedy_margin").get<std::vector<float>>()});
  }
}

std::vector<float> Reference::Floats(const std::string& name) const {
  const TensorInfo* tensor = checkpoint_.Find(name);
  if (tensor == nullptr) Fail(ErrorKind::kNotFound, "reference has no tensor {}", name);
  CHECK(tensor->dtype == DType::kF32);
  std::vector<float> values(tensor->extent.bytes / sizeof(float));
  checkpoint_.Read(*tensor, std::as_writable_bytes(std::span(values)));
  return values;
}

std::vector<int32_t> Reference::Ints(const std::string& name) const {
  const TensorInfo* tensor = checkpoint_.Find(name);
  if (tensor == nullptr) Fail(ErrorKind::kNotFound, "reference has no tensor {}", name);
  const auto element_bytes = static_cast<size_t>(DTypeBits(tensor->dtype)) / 8;
  std::vector<std::byte> raw(tensor->extent.bytes);
  checkpoint_.Read(*tensor, raw);
  std::vector<int32_t> values(raw.size() / element_bytes);
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t value = 0;
    std::copy_n(raw.data() + i * element_bytes, element_bytes,
                reinterpret_cast<std::byte*>(&value));
    values[i] = static_cast<int32_t>(value);
  }
  return values;
}

std::vector<int64_t> Reference::Shape(const std::string& name) const {
  const TensorInfo* tensor = checkpoint_.Find(name);
  if (tensor == nullptr) Fail(ErrorKind::kNotFound, "reference has no tensor {}", name);
  return tensor->shape;
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : AllIsas()) {
    if (IsaSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

std::string FixtureModel(const char* name) {
  return std::string(MOESAIC_TEST_DATA_DIR) + "/models/" + name;
}

std::vector<int32_t> PromptOf(int seed, int length, int vocab) {
  std::vector<int32_t> tokens;
  uint32_t x = static_cast<uint32_t>(seed) * 2654435761u + 1;
  for (int i = 0; i < length; ++i) {
    x = x * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>((x >> 8) % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

}  // namespace moesaic
