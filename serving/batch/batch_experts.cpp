#include "serving/batch/batch_experts.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "prefetch/link/device_reader.h"
#include "serving/batch/plan_devices.h"
#include "serving/model/experts_of_model.h"
#include "serving/model/numa_slices.h"

namespace moesaic {
namespace {

// A GPU's copy engine may take what is queued in order, whatever the stream: where hidden states
// are copied, two packets of half the size are queued, so that these wait for one packet's bytes at
// most. Not measured.
constexpr int kSharedLinkDepth = 2;
constexpr uint32_t kSharedLinkPacketBytes = uint32_t{4} << 20;

}  // namespace

int DeviceThreads(const EngineOptions& options) {
  return std::max(1, options.threads / std::max(1, options.devices.count));
}

BatchExperts::BatchExperts(const EngineOptions& options, const BatchPlan& plan,
                           const ModelFiles& files, ThreadPool& pool, Timeline& timeline)
    : pool_(pool) {
  StreamingOptions streaming;
  streaming.slots = plan.sizes.expert_slots;
  streaming.buffers = plan.sizes.buffers;
  streaming.backend = options.io_backend;
  streaming.packet_bytes = options.packet_bytes;
  streaming.depth = options.io_depth;
  streaming.link_bytes_per_s = options.link_bytes_per_s;
  streaming.timeline = &timeline;
  if (options.devices.count > 0) {
    MakeDevicePlaces(options, plan, files, streaming);
    if (KernelsOf(options.devices) == nullptr) MakeThreadsDevice(plan, files.config);
  } else {
    const std::vector<NodeStretch> stretches =
        SlotStretches(files.experts->layout(), pool.node_ids());
    streaming.slot_stretches = stretches;
    places_.emplace_back().experts = std::make_unique<StreamingExperts>(
        *files.experts, static_cast<int>(files.config.num_layers()),
        static_cast<int>(files.config.num_experts()), streaming);
  }
  for (const Place& place : places_) streams_.push_back(place.experts.get());
}

void BatchExperts::MakeDevicePlaces(const EngineOptions& options, const BatchPlan& plan,
                                    const ModelFiles& files, StreamingOptions streaming) {
  const ExpertGrid grid = GridOf(files.config);
  devices_ = BackendOf(options.devices.kind).Make(options.devices, plan.devices);
  const std::vector<Device*> devices = devices_.pointers();
  placement_ = std::make_unique<ExpertPlacement>(PlaceExperts(options.devices, files.config, {}));
  home_ = MakeHome(options, files, *placement_, devices_);
  const std::vector<std::span<const std::byte>> files_of_home = home_->memory();
  const bool computes = KernelsOf(options.devices) != nullptr;
  operators_ =
      MakeOperators(WithRows(options, plan.sizes), devices_, files.experts->layout(), files.config);
  for (size_t d = 0; d < devices.size(); ++d) {
    Place& place = places_.emplace_back();
    streaming.slots = plan.devices[d].slots;
    streaming.buffers = std::clamp<int64_t>(plan.sizes.buffers, 1, streaming.slots);
    streaming.lane = static_cast<int16_t>(d + 1);
    streaming.depth = kLinkDepth;
    streaming.packet_bytes = PacketBytesOf(options, plan.sizes);
    if (d == 0 && plan.dense_on_device && !BackendOf(options.devices.kind).in_host_memory()) {
      streaming.depth = kSharedLinkDepth;
      streaming.packet_bytes =
          std::max(streaming.packet_bytes, kSharedLinkPacketBytes) / kSharedLinkDepth;
    }
    streaming.experts = placement_->experts(static_cast<int>(d));
    place.pool = std::make_unique<ThreadPool>(DeviceThreads(options));
    place.memory = AllocateOrThrow(
        *devices[d], static_cast<uint64_t>(streaming.slots) * plan.slot_bytes, "expert slots");
    streaming.slot_memory = {place.memory.data(), place.memory.bytes()};
    place.experts = std::make_unique<StreamingExperts>(
        *home_, grid.num_layers(), grid.num_experts(), streaming,
        std::make_unique<DeviceReader>(files_of_home, place.memory.span(), streaming.depth));
    place.device = std::make_unique<DevicePlace>(*place.experts, *home_, grid, computes);
  }
}

void BatchExperts::MakeThreadsDevice(const BatchPlan& plan, const ModelConfig& config) {
  Device& device = *devices_.devices.front();
  const int64_t rows = plan.sizes.max_batch_tokens;
  qkv_ = AllocateOrThrow(device, FloatRowBytes(rows, HostDense::ProjectedStride(config)),
                         "hidden states");
  attention_ =
      AllocateOrThrow(device, FloatRowBytes(rows, HostDense::MixedStride(config)), "hidden states");
  // Rows end in padding that products read and nobody writes.
  std::fill_n(qkv_.data(), qkv_.bytes(), std::byte{0});
  std::fill_n(attention_.data(), attention_.bytes(), std::byte{0});
  MakeDenseDevice(qkv_.span(), attention_.span());
}

void BatchExperts::MakeDenseDevice(DeviceSpan qkv, DeviceSpan attention) {
  Device& device = *devices_.devices.front();
  in_ = device.CreateStream();
  out_ = device.CreateStream();
  dense_ = DenseDevice{places_.front().pool.get(), qkv, attention, in_.get(), out_.get()};
}

std::unique_ptr<DensePart> BatchExperts::MakeDense(const EngineOptions& options,
                                                   const BatchPlan& plan, const ModelConfig& config,
                                                   ModelWeights weights,
                                                   const CpuKernels& kernels) {
  if (!plan.why_dense_on_host.empty()) {
    LogInfo("all that is dense stays on the CPU: {}", plan.why_dense_on_host);
  }
  const ModelLimits limits = LimitsOf(options, plan);
  if (!plan.dense_on_device) {
    auto dense = std::make_unique<HostDense>(config, std::move(weights), kernels, pool_, limits);
    if (dense_) {
      host_ = dense.get();
      host_->WorkIn(reinterpret_cast<float*>(qkv_.data()),
                    reinterpret_cast<float*>(attention_.data()));
    }
    return dense;
  }
  auto dense = std::make_unique<SplitDense>(*devices_.devices.front(), *KernelsOf(options.devices),
                                            config, ChooseWeightType(options), std::move(weights),
                                            kernels, pool_, limits);
  split_ = dense.get();
  MakeDenseDevice(split_->projected_on_device(), split_->mixed_on_device());
  return dense;
}

ExpertPlaces BatchExperts::TakePlaces() {
  ExpertPlaces all;
  for (size_t p = 0; p < places_.size(); ++p) {
    const Place& place = places_[p];
    if (place.device) {
      all.places.push_back({place.device.get(), place.pool.get(), {}});
      if (!operators_.empty()) {
        all.places.back().operators.push_back(std::move(operators_[p]));
      }
    } else {
      all.places.push_back({place.experts.get(), &pool_, {}});
    }
  }
  operators_.clear();
  all.placement = placement_.get();
  return all;
}

bool BatchExperts::NoteLostDevices() {
  bool any = false;
  for (size_t d = 0; d < devices_.devices.size(); ++d) {
    const std::optional<Error> lost = devices_.devices[d]->lost();
    if (!lost || places_[d].device->lost()) continue;
    LogWarn("{}; until then its experts are computed on the host", lost->what());
    places_[d].device->Lose();
    if (d == 0 && dense_) dense_->lost = true;
    if (d == 0 && host_ != nullptr) host_->WorkIn(nullptr, nullptr);
    if (d == 0 && split_ != nullptr) split_->Lose();
    any = true;
  }
  return any;
}

void BatchExperts::StopPrefetching() {
  for (StreamingExperts* experts : streams_) experts->StopPrefetching();
}

int64_t BatchExperts::slots() const {
  int64_t slots = 0;
  for (const StreamingExperts* experts : streams_) slots += experts->slots();
  return slots;
}

int64_t BatchExperts::resident() const {
  int64_t resident = 0;
  for (const StreamingExperts* experts : streams_) resident += experts->resident();
  return resident;
}

std::vector<DeviceStatus> BatchExperts::devices() const {
  std::vector<DeviceStatus> all;
  for (size_t d = 0; d < devices_.devices.size(); ++d) {
    const Device& device = *devices_.devices[d];
    const ExpertStats& totals = streams_[d]->totals();
    DeviceStatus& status = all.emplace_back();
    status.name = device.name();
    status.lost = device.lost().has_value();
    status.slots = streams_[d]->slots();
    status.resident = streams_[d]->resident();
    status.hits = totals.hits;
    status.late_hits = totals.late_hits;
    status.misses = totals.misses;
    status.bytes_copied = totals.bytes_read;
    status.on_host = places_[d].device->on_host();
  }
  return all;
}

}  // namespace moesaic
