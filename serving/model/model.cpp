#include "serving/model/model.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/config/kv_groups.h"
#include "serving/model/delta_net.h"
#include "serving/model/grouped_query.h"
#include "serving/model/host_dense.h"
#include "serving/model/latent.h"

namespace moesaic {
namespace {

// Experts of a token that are never deferred (KTransformers: at least two immediate).
constexpr int64_t kLeastImmediate = 2;

ExpertPlaces OnePlace(ExpertProvider& experts, ThreadPool& pool, DeviceOperators operators) {
  ExpertPlaces one;
  one.places.push_back({&experts, &pool, std::move(operators)});
  return one;
}

class StopWatch {
 public:
  int64_t Lap() {
    const auto now = std::chrono::steady_clock::now();
    const auto lap = std::chrono::duration_cast<std::chrono::microseconds>(now - last_).count();
    last_ = now;
    return lap;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

uint64_t Model::KvBlockBytes(const ModelConfig& config, WeightType kv_type) {
  const auto layers = static_cast<uint64_t>(KvGroupsOf(config).layers_of_block);
  return layers * GroupedQuery::LayerBlockBytes(config, kv_type) +
         Latent::BlockBytes(config, kv_type);
}

uint64_t Model::KvBytesOfAllLayers(const ModelConfig& config, WeightType kv_type) {
  return GroupedQuery::LayerBlockBytes(config, kv_type) *
             static_cast<uint64_t>(config.NumMixers<GroupedQuerySpec>()) +
         Latent::BytesOfAllLayers(config, kv_type);
}

uint64_t Model::CarriedBytes(const ModelConfig& config) { return Latent::CarriedBytes(config); }

uint64_t Model::StateSlotBytes(const ModelConfig& config) { return DeltaNet::SlotBytes(config); }

uint64_t Model::WorkspaceBytes(const ModelConfig& config, const CpuKernels& kernels,
                               const ModelLimits& limits, int threads, int places,
                               bool dense_elsewhere) {
  const auto experts = static_cast<uint64_t>(ExpertRunner::WorkspaceBytes(
      config, kernels, limits.max_batch_tokens, places, limits.defer_experts > 0));
  if (dense_elsewhere) return experts;
  return experts +
         HostDense::WorkspaceBytes(config, kernels, limits, threads, !limits.host_attention);
}

Model::Model(const ModelConfig& config, std::unique_ptr<DensePart> dense,
             const ExpertLayout& expert_layout, ExpertProvider& experts, const CpuKernels& kernels,
             ThreadPool& pool, const ModelLimits& limits, DeviceOperators operators)
    : Model(config, std::move(dense), expert_layout, OnePlace(experts, pool, std::move(operators)),
            kernels, pool, limits) {}

Model::Model(const ModelConfig& config, std::unique_ptr<DensePart> dense,
             const ExpertLayout& expert_layout, ExpertPlaces experts, const CpuKernels& kernels,
             ThreadPool& pool, const ModelLimits& limits)
    : config_(config),
      pool_(pool),
      limits_(limits),
      runner_(config_, expert_layout, std::move(experts), kernels, limits.max_batch_tokens,
              limits.defer_experts > 0, dense->host_layers()),
      dense_(std::move(dense)) {
  if (config.rope().kind == RopeKind::kDynamicNtk &&
      limits.max_context_tokens > config.max_position) {
    LogInfo(
        "dynamic rope: up to {} positions as the model was trained, beyond them the base grows "
        "with each position; more costs quality",
        config.max_position);
  }
  expert_ids_.resize(static_cast<size_t>(limits.max_batch_tokens * config.top_k()));
  expert_weights_.resize(expert_ids_.size());
  if (limits.defer_experts > 0) deferred_.resize(expert_ids_.size());
}

StepStats Model::Count(const ForwardBatch& batch) {
  CHECK_LE(std::ssize(batch.tokens), limits_.max_batch_tokens);
  batch_ = batch;
  StepStats stats;
  stats.steps = 1;
  for (const SequenceSlice& slice : batch.slices) {
    CHECK_LE(slice.start_position + slice.num_tokens, limits_.max_context_tokens);
    CHECK_LE(slice.start_position + slice.num_tokens,
             static_cast<int64_t>(slice.blocks.size()) * kKvBlockTokens);
    (slice.prefill ? stats.prefill_tokens : stats.decode_tokens) += slice.num_tokens;
  }
  runner_.BeginPass();
  return stats;
}

StepStats Model::BeginPass(const ForwardBatch& batch) {
  const StepStats stats = Count(batch);
  dense_->Begin(batch, nullptr);
  return stats;
}

StepStats Model::Forward(const ForwardBatch& batch, RoutingHook* hook, bool whole_layers) {
  CHECK(!whole_layers || runs_layers());
  const RowRange rows = {0, std::ssize(batch.tokens)};
  const SliceRange slices = {0, std::ssize(batch.slices)};
  StopWatch total;
  StopWatch watch;
  StepStats stats = Count(batch);
  const auto end = [&] {
    stats.experts += runner_.Close();
    if (whole_layers) runner_.EndBlocks();
    stats.attention_us += watch.Lap();
    stats.moe_us -= std::min(stats.moe_us, static_cast<int64_t>(stats.experts.blocked_us));
    stats.total_us = total.Lap();
  };
  try {
    const bool replaces = hook != nullptr && !hook->OnlyWatches();
    dense_->Begin(batch, replaces ? nullptr : runner_.first_device());
    for (int64_t layer = 0; layer < config_.num_layers(); ++layer) {
      BeginLayer(layer, rows, hook);
      Attend(layer, slices, pool_);
      Project(layer, rows, pool_);
      Route(layer, rows, pool_);
      // A device that knows this layer's routing is done with the experts of the layer before.
      stats.experts += runner_.Close();
      stats.attention_us += watch.Lap();
      if (hook != nullptr && !config_.layer(layer).routes_first()) ShowRouting(layer, rows, *hook);
      if (whole_layers && config_.is_sparse(layer)) runner_.BeginBlock({true, true});
      stats.experts += OpenMlp(layer, rows, pool_);
      stats.moe_us += watch.Lap();
    }
    dense_->End();
  } catch (...) {
    dense_->Abandon();
    end();
    stats.steps = stats.prefill_tokens = stats.decode_tokens = 0;
    unfinished_ = stats;
    throw;
  }
  end();
  return stats;
}

StepStats Model::RunLayer(int64_t layer, const ForwardBatch& batch, const LayerBlock& block) {
  CHECK(runs_layers());
  const RowRange rows = {0, std::ssize(batch.tokens)};
  StopWatch total;
  StopWatch watch;
  Count(batch);
  StepStats stats;
  try {
    if (layer == 0) {
      dense_->Begin(batch, nullptr);
    } else {
      dense_->Continue(batch);
    }
    BeginLayer(layer, rows, nullptr);
    Attend(layer, {0, std::ssize(batch.slices)}, pool_);
    Project(layer, rows, pool_);
    Route(layer, rows, pool_);
    stats.attention_us = watch.Lap();
    if (config_.is_sparse(layer)) runner_.BeginBlock(block);
    stats.experts = RunMlp(layer, rows, pool_);
    dense_->End();
  } catch (...) {
    dense_->Abandon();
    throw;
  }
  stats.moe_us = watch.Lap();
  stats.moe_us -= std::min(stats.moe_us, static_cast<int64_t>(stats.experts.blocked_us));
  stats.total_us = total.Lap();
  return stats;
}

void Model::Attend(int64_t layer, SliceRange slices, ThreadPool& pool) {
  if (slices.begin == slices.end) return;
  dense_->Attend(layer, slices, pool);
}

void Model::BeginLayer(int64_t layer, RowRange rows, RoutingHook* hook) {
  if (config_.layer(layer).routes_first()) {
    RouteRows(layer, rows, pool_);
    if (hook != nullptr) ShowRouting(layer, rows, *hook);
    const auto pairs = static_cast<size_t>(rows.count() * config_.top_k());
    runner_.Announce(layer, std::span(expert_ids_).first(pairs));
  }
  dense_->PreAttention(layer, rows, pool_);
}

void Model::PreAttention(int64_t layer, RowRange rows, ThreadPool& pool) {
  if (config_.layer(layer).routes_first()) RouteRows(layer, rows, pool);
  dense_->PreAttention(layer, rows, pool);
}

void Model::Route(int64_t layer, RowRange rows, ThreadPool& pool) {
  if (!config_.layer(layer).routes_first()) RouteRows(layer, rows, pool);
}

void Model::RouteRows(int64_t layer, RowRange rows, ThreadPool& pool) {
  const int64_t pair = rows.begin * config_.top_k();
  dense_->Route(layer, rows, expert_ids_.data() + pair, expert_weights_.data() + pair,
                runner_.NeedsHostRows(), pool);
}

void Model::ShowRouting(int64_t layer, RowRange rows, RoutingHook& hook) {
  if (!config_.is_sparse(layer)) return;
  const auto first = static_cast<size_t>(rows.begin * config_.top_k());
  const auto pairs = static_cast<size_t>(rows.count() * config_.top_k());
  hook.OnRouting(layer, batch_, std::span(expert_ids_).subspan(first, pairs),
                 std::span(expert_weights_).subspan(first, pairs));
}

bool Model::MarkDeferred(int64_t layer) {
  const int64_t k = config_.top_k();
  const int64_t defer = std::min(limits_.defer_experts, k - kLeastImmediate);
  if (defer <= 0 || layer + 1 == config_.num_layers()) return false;
  bool any = false;
  for (const SequenceSlice& slice : batch_.slices) {
    for (int64_t i = 0; i < slice.num_tokens; ++i) {
      const int64_t row = slice.first_row + i;
      const float* const weights = expert_weights_.data() + row * k;
      uint8_t* const deferred = deferred_.data() + row * k;
      std::fill_n(deferred, k, uint8_t{0});
      if (slice.start_position + i < slice.decode_from) continue;
      any = true;
      for (int64_t n = 0; n < defer; ++n) {
        // The lowest weight; of equal ones the last slot, whose expert was chosen last.
        int64_t lowest = -1;
        for (int64_t slot = 0; slot < k; ++slot) {
          if (deferred[slot] == 0 && (lowest < 0 || !(weights[slot] > weights[lowest]))) {
            lowest = slot;
          }
        }
        deferred[lowest] = 1;
      }
    }
  }
  return any;
}

ExpertStats Model::OpenMlp(int64_t layer, RowRange rows, ThreadPool& pool) {
  ExpertStats stats;
  ExpertOutputs experts;
  ExpertOutputs deferred;
  if (rows.count() > 0 && config_.is_sparse(layer)) {
    const int64_t pair = rows.begin * config_.top_k();
    stats = runner_.Run(layer, dense_->OpenExperts(rows),
                        {.ids = expert_ids_.data() + pair,
                         .weights = expert_weights_.data() + pair,
                         .deferred = MarkDeferred(layer) ? deferred_.data() : nullptr},
                        pool);
    experts = runner_.outputs();
  }
  if (limits_.defer_experts > 0) {
    CHECK_EQ(rows.count(), std::ssize(batch_.tokens));
    stats += runner_.RunDeferred();
    deferred = runner_.deferred();
  }
  dense_->AddMlp(layer, rows, experts, deferred, pool);
  return stats;
}

ExpertStats Model::RunMlp(int64_t layer, RowRange rows, ThreadPool& pool) {
  ExpertStats stats;
  try {
    stats = OpenMlp(layer, rows, pool);
  } catch (...) {
    runner_.Close();
    throw;
  }
  stats += runner_.Close();
  return stats;
}

void Model::Logits(std::span<const int32_t> rows, float* out) {
  CHECK_LE(std::ssize(rows), limits_.max_logit_rows);
  dense_->Head(rows, out);
}

void Model::GreedyTokens(std::span<const int32_t> rows, int32_t* tokens) {
  CHECK(has_greedy_tokens());
  dense_->Greedy(rows, tokens);
}

}  // namespace moesaic
