// DeviceDense: the dense part of a model on one device, or sharded over several (tensor
// parallelism). What it does is dense_part.h's.
//
// A device computes the queries, keys, values and attention of its KV heads, whose part of the
// cache it has, and of every other product the outputs of its slice (dense_slices.h). Pieces are
// brought together behind attention, the output projection, the activation of an MLP and its last
// product (Collective): nothing is summed across devices, so that every sum is the one that one
// device would make, and logits have the same bits for any number of devices. Residual stream and
// norms are everybody's; embedding, routers, shared experts' gates, the sum of routed experts, and
// what comes of the logits are the first device's, which sends the others the residual stream when
// it has changed there. One device has everything, and pieces that are the whole.
//
// One device captures decode steps. With a slot table a step of few rows is one graph, which looks
// up its experts by itself (step_experts.h): the host follows, and is waited for where an expert is
// missing. Otherwise all that a layer queues at once is a graph, and the host goes ahead. Graphs
// are made at the first step of their kind and replayed from then on. Kinds differ in the number of
// rows and of the longest context's chunks, both rounded up to powers of two; rows that are only
// there to fill up have nothing to attend to and store nothing. What changes from step to step is
// read from tables on the device. Several devices queue kernels one by one.
//
// With limits.host_attention mixers and the state of sequences are the host's (split_dense.h), and
// there is one device: passes run in groups of rows, PreAttention leaves queries, keys and values,
// rotated, which are copied to the host, and attention outputs come back, both by the caller.
//
// Numerics: the class of kernels/cuda: inputs of products, queries, probabilities and hidden
// activations are rounded to bf16, sums, norms and routers are f32, a row's bits depend on no other
// row. With limits.gemm_library products of many rows are a library's: then a row's bits depend on
// how many there are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "core/config/kv_groups.h"
#include "core/config/model_config.h"
#include "core/device/collective.h"
#include "core/device/device.h"
#include "core/device/pinned_host_pool.h"
#include "core/io/expert_layout.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "serving/model/dense_graphs.h"
#include "serving/model/dense_part.h"
#include "serving/model/dense_slices.h"
#include "serving/model/step_experts.h"
#include "serving/model/step_tables.h"
#include "serving/model/weights.h"

namespace moesaic {

struct DeviceDenseOptions {
  bool capture = true;  // decode steps, where there is one device and it can
  std::unique_ptr<Collective> (*make_collective)(std::span<Stream* const> streams) =
      MakePeerCollective;
  // With limits.gemm_library: what multiplies cuda::Gemm::kLeastRows rows or more.
  std::unique_ptr<cuda::Gemm> (*make_gemm)(Stream& stream,
                                           const DeviceSpan& workspace) = cuda::MakeCublas;
};

class DeviceDense : public DensePart {
 public:
  // Throws Error(kUnsupported) for what no kernel does or cannot be cut, naming it.
  static void CheckSupported(const ModelConfig& config, WeightType type, WeightType kv_type,
                             int devices);

  // What it takes of device `device` of `devices`, and of the host (pinned).
  static uint64_t WeightBytes(const ModelConfig& config, WeightType type, int devices, int device);
  static uint64_t KvBytes(const ModelConfig& config, const ModelLimits& limits, int devices,
                          int device);
  static uint64_t WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits, int devices,
                                 int device);
  static uint64_t HostBytes(const ModelConfig& config, const ModelLimits& limits, int devices);

  // Copies `weights`, or slices of them, which are of this type. Several devices can reach each
  // other. All references must outlive it. Throws Error(kUnsupported / kResourceExhausted), and a
  // device's when a copy fails.
  DeviceDense(std::span<Device* const> devices, const cuda::Kernels& kernels,
              const ModelConfig& config, WeightType type, const ModelWeights& weights,
              const ModelLimits& limits, const DeviceDenseOptions& options = {});
  ~DeviceDense() override;

  // Decode steps that run as a whole, of experts of this layout, which this table has; both outlive
  // it. Nothing where steps are not captured.
  void CaptureSteps(const ExpertLayout& experts, SlotTable& table);

  void Begin(const ForwardBatch& batch, const DeviceOperator* experts) override;
  void PreAttention(int64_t layer, RowRange rows, ThreadPool& pool) override;
  void Attend(int64_t layer, SliceRange slices, ThreadPool& pool) override;
  void Project(int64_t layer, RowRange rows, ThreadPool& pool) override;
  void Route(int64_t layer, RowRange rows, int32_t* ids, float* weights, bool host_rows,
             ThreadPool& pool) override;
  ExpertInputs OpenExperts(RowRange rows) override;
  void AddMlp(int64_t layer, RowRange rows, const ExpertOutputs& experts,
              const ExpertOutputs& deferred, ThreadPool& pool) override;
  void End() override;
  void Abandon() override;
  void Head(std::span<const int32_t> rows, float* logits) override;
  bool has_greedy() const override { return true; }
  void Greedy(std::span<const int32_t> rows, int32_t* tokens) override;
  const float* hidden() const override { return seen_hidden_; }
  int64_t whole_steps() const override { return whole_steps_; }
  int64_t captured() const override { return graphs_ != nullptr ? graphs_->captured() : 0; }

  // With limits.host_attention. Instead of End: waits for all of it and brings the residual stream,
  // hidden [rows, hidden].
  void BringHidden(float* hidden);
  // On the device and, pinned, on the host: [rows, qkv_width] f32 queries, keys and values; [rows,
  // ActivationStride(heads * head_dim)] bf16 attention outputs.
  DeviceSpan qkv() const;
  DeviceSpan attention() const;
  const HostBuffer& host_qkv() const { return host_qkv_; }
  const HostBuffer& host_attention() const { return host_attention_; }

 private:
  struct Sizes;
  struct HostSizes;
  struct Shard;
  // Columns of rows that devices have pieces of: device d has [bounds[d], bounds[d + 1]).
  struct Columns;
  // What a device has of queries, keys and values, of all heads or its own.
  struct QkvRows;
  enum class Wants { kAll, kFirst };  // which devices want what is gathered
  enum class Ahead {
    kNot,
    kLayer,
    kStep
  };  // what was queued with the layer's graph, or the step's

  int devices() const { return static_cast<int>(shards_.size()); }
  bool whole() const { return shards_.size() == 1; }
  bool mixes() const { return !limits_.host_attention; }
  Columns OutputColumns(int64_t n) const;
  Columns HeadColumns(int64_t values_of_kv_head) const;
  Columns AttendedColumns(const GroupedQuerySpec& attention) const;
  DeviceSpan PieceOf(size_t shard, const Columns& columns, int64_t rows, Wants wants) const;
  std::byte* TargetOf(size_t shard, const Columns& columns, int64_t rows, Wants wants,
                      DeviceBuffer Shard::*out) const;
  void Gather(const Columns& columns, int64_t rows, Wants wants);
  void Join(const Columns& columns, int64_t rows, Wants wants, DeviceBuffer Shard::*out,
            int64_t out_stride, int64_t first_column, bool accumulate);
  void SendHidden();

  template <typename Args>
  static void Queue(Shard& shard, LaunchResult (*run)(const Args& args, cuda::StreamHandle stream),
                    const std::type_identity_t<Args>& args);
  struct Onto {
    bool accumulate = false;
    const float* bias = nullptr;  // [w.n], of the device; not with the other
  };
  void Product(Shard& shard, const PackedMatrix& w, const DeviceBuffer& x, int64_t rows, float* y,
               const Onto& onto);
  // The product of all devices' slices, joined in `out`.
  void WholeProduct(const PackedMatrix& (*slice)(const Shard& shard, int64_t layer), int64_t layer,
                    int64_t n, DeviceBuffer Shard::*x, int64_t rows, Wants wants,
                    DeviceBuffer Shard::*out, bool accumulate);
  void Norm(int64_t layer, Shard& shard, const float* weight, bool normed);
  void RowLogits(const PackedMatrix& w);
  void NormHeads(const NormSpec& norm, Shard& shard, float* first, int64_t heads, int64_t n,
                 int64_t stride, const float* weight);
  const LayerWeights& Weights(const Shard& shard, int64_t layer) const;

  void SetRows(RowRange rows);
  void PadDecodeStep();
  void UploadTables();
  void Embed();
  bool RunStep(const DeviceOperator& experts);
  void QueueStep(const DeviceOperator& experts);

  void QueueProjection(int64_t layer);
  void ProjectWhole(int64_t layer);
  QkvRows QkvOf(Shard& shard, const GroupedQuerySpec& spec) const;
  void QueueMixing(int64_t layer);
  void MixOn(size_t index, int64_t layer);
  void QueueOutput(int64_t layer);
  void QueueLayer(int64_t layer);
  void QueueNormAndRouting(int64_t layer);
  // A step of more rows that is no decode step does not send them to the host in advance. Of up to
  // kFewSequences the rows that predictors look at are copied one by one.
  static constexpr int64_t kFewRows = 64;
  static constexpr int64_t kFewSequences = 16;
  bool few_rows() const { return decode_ || run_rows_ <= kFewRows; }
  void BringRouting(bool normed);
  void Bring(const DeviceBuffer& from, int64_t first, int64_t count, const HostBuffer& to);
  void QueueMlp(int64_t layer);
  void AddExperts(const ExpertOutputs& experts);
  void QueueHead(std::span<const int32_t> rows);
  template <typename T>
  void Fetch(const DeviceBuffer& from, int64_t count, T* out);

  const cuda::Kernels& kernels_;
  const ModelConfig& config_;
  const ModelLimits limits_;
  const KvGroups groups_;

  // Of the host, pinned.
  std::unique_ptr<PinnedHostPool> pool_;
  HostBuffer host_hidden_;  // without host_attention
  HostBuffer host_normed_;
  HostBuffer host_routing_;
  HostBuffer host_sum_;
  HostBuffer host_chosen_;
  HostBuffer host_out_;
  HostBuffer host_tables_;
  HostBuffer host_qkv_;        // with host_attention
  HostBuffer host_attention_;  // likewise

  // The step.
  int64_t first_row_ = 0;  // of the rows that a module runs
  int64_t rows_ = 0;       // of the step, or of the module
  int64_t run_rows_ = 0;   // with those that fill up
  int64_t max_context_ = 0;
  bool decode_ = false;  // one row of each sequence
  StepTables step_tables_;
  std::vector<int32_t> count_;  // [1] rows_
  struct {
    uint64_t positions = 0;
    uint64_t tokens = 0;
    uint64_t sequences = 0;
    uint64_t count = 0;
    std::vector<uint64_t> slots;   // [groups of layers]
    std::vector<uint64_t> blocks;  // likewise
  } at_;                           // offsets in the tables
  const float* seen_hidden_ = nullptr;
  const float* seen_normed_ = nullptr;
  std::span<const int32_t> missed_;
  std::vector<DeviceSpan> x_rows_;  // [devices] rows of experts
  std::vector<DeviceSpan> there_;   // [devices] of these, those of OpenExperts

  Ahead ahead_ = Ahead::kNot;
  std::unique_ptr<StepExperts> step_;  // null: no whole steps
  int64_t whole_steps_ = 0;

  // Of one device; null: nothing is captured. Part 2 l of layer l ends with its routing, part 2 l +
  // 1 is what follows; the last is all layers.
  std::unique_ptr<DenseGraphs> graphs_;
  std::unique_ptr<Event> routed_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::unique_ptr<Collective> collective_;  // of several devices; goes before the streams
};

}  // namespace moesaic
