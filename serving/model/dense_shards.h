// DenseShards: the dense part of a model over several devices (tensor parallelism). What it does is
// dense_part.h's.
//
// A device computes the queries, keys, values and attention of its KV heads, whose part of the
// cache it has, and of every other product the outputs of its slice (dense_slices.h). Pieces are
// brought together behind attention, the output projection, the activation of an MLP and its last
// product (Collective): nothing is summed across devices, so that every sum is the one that one
// device would make, and logits have the bits of DenseOperator's for any number of devices.
// Residual stream and norms are everybody's; embedding, routers, shared experts' gates, the sum of
// routed experts, and what comes of the logits are the first device's, which sends the others the
// residual stream when it has changed there.
//
// Kernels are queued one by one: graphs are for one device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "core/config/model_config.h"
#include "core/device/collective.h"
#include "core/device/device.h"
#include "core/device/pinned_host_pool.h"
#include "kernels/cuda/kernels.h"
#include "serving/model/dense_part.h"
#include "serving/model/dense_slices.h"
#include "serving/model/step_tables.h"
#include "serving/model/weights.h"

namespace moesaic {

class DenseShards : public DensePart {
 public:
  using MakeCollective = std::unique_ptr<Collective> (*)(std::span<Stream* const> streams);

  // Throws Error(kUnsupported) for what no kernel does or cannot be cut, naming it.
  static void CheckSupported(const ModelConfig& config, WeightType type, WeightType kv_type,
                             int devices);

  // What it takes of device `device` of `devices`, and of the host (pinned).
  static uint64_t WeightBytes(const ModelConfig& config, WeightType type, int devices, int device);
  static uint64_t KvBytes(const ModelConfig& config, const ModelLimits& limits, int devices,
                          int device);
  static uint64_t WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits, int devices,
                                 int device);
  static uint64_t HostBytes(const ModelConfig& config, const ModelLimits& limits);

  // Copies slices of `weights`, which are of this type. The devices can reach each other. Throws
  // Error(kUnsupported / kResourceExhausted), and a device's when a copy fails.
  DenseShards(std::span<Device* const> devices, const cuda::Kernels& kernels,
              const ModelConfig& config, WeightType type, const ModelWeights& weights,
              const ModelLimits& limits, MakeCollective make_collective = MakePeerCollective);
  ~DenseShards() override;

  void BeginStep(const ForwardBatch& batch) override;
  void Layer(int64_t layer) override;
  Routed AwaitRouting(int64_t layer) override;
  const float* hidden() const override;
  void AddExperts(const DeviceOperator& experts, int64_t others, std::span<const int32_t> pair_rows,
                  const float* weights) override;
  void EndStep() override;
  void AbandonStep() override;
  void Head(std::span<const int32_t> rows, float* logits) override;
  void Greedy(std::span<const int32_t> rows, int32_t* tokens) override;

 private:
  struct Sizes;
  struct Shard;
  // Columns of rows that devices have pieces of: device d has [bounds[d], bounds[d + 1]).
  struct Columns;
  enum class Wants { kAll, kFirst };  // which devices want what is gathered

  int devices() const { return static_cast<int>(shards_.size()); }
  Columns OutputColumns(int64_t n) const;
  Columns HeadColumns(int64_t values_of_kv_head) const;
  Columns AttendedColumns(const GroupedQuerySpec& attention) const;
  DeviceSpan PieceOf(size_t shard, const Columns& columns, int64_t rows, Wants wants) const;
  void Gather(const Columns& columns, int64_t rows, Wants wants);
  void GatherInto(const Columns& columns, int64_t rows, Wants wants, DeviceBuffer Shard::*out,
                  int64_t out_stride, int64_t first_column, bool accumulate);
  void SendHidden();

  template <typename Args>
  static void Queue(Shard& shard, LaunchResult (*run)(const Args& args, cuda::StreamHandle stream),
                    const std::type_identity_t<Args>& args);
  void Norm(int64_t layer, Shard& shard, const float* weight, float* out);
  void Product(Shard& shard, const PackedMatrix& w, const DeviceBuffer& x, int64_t rows, float* y);
  void RowLogits(Shard& shard, const PackedMatrix& w);
  void NormHeads(const NormSpec& norm, Shard& shard, float* first, int64_t heads, int64_t n,
                 int64_t stride, const float* weight);

  void UploadTables();
  void Attention(int64_t layer);
  void ProjectWhole(int64_t layer);
  void Attend(size_t index, int64_t layer);
  void Route(int64_t layer);
  void Mlp(int64_t layer);
  void QueueHead(std::span<const int32_t> rows);
  template <typename T>
  void Fetch(const DeviceBuffer& from, int64_t count, T* out);

  const cuda::Kernels& kernels_;
  const ModelConfig& config_;
  const ModelLimits limits_;
  std::vector<DeviceSpan> there_;  // [devices] rows of experts

  // Of the host, pinned.
  std::unique_ptr<PinnedHostPool> pool_;
  HostBuffer host_hidden_;
  HostBuffer host_normed_;
  HostBuffer host_routing_;
  HostBuffer host_sum_;
  HostBuffer host_chosen_;
  HostBuffer host_out_;
  HostBuffer host_tables_;

  // The step.
  int64_t rows_ = 0;
  StepTables step_tables_;
  struct {
    uint64_t tokens = 0;
    uint64_t positions = 0;
    uint64_t slots = 0;
    uint64_t sequences = 0;
    uint64_t blocks = 0;
  } at_;  // offsets in the tables

  std::unique_ptr<Event> routed_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::unique_ptr<Collective> collective_;  // goes before the streams
};

}  // namespace moesaic
