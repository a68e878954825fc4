#include "serving/model/expert_runner.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace moesaic {
namespace {

constexpr size_t kRowsOfCopy = 16;  // that are copied by one

}  // namespace

int64_t WidestActivationRow(const CpuKernels& kernels, int64_t n) {
  return std::max(ActivationRowBytes(ActivationTypeOf(kernels.numerics, WeightType::kBf16), n),
                  ActivationRowBytes(ActivationType::kInt8, n));
}

ExpertRunner::ExpertRunner(const ModelConfig& config, const ExpertLayout& layout,
                           ExpertPlaces places, const CpuKernels& kernels, int64_t max_tokens)
    : config_(config),
      layout_(layout),
      kernels_(kernels),
      grid_(static_cast<int>(config.num_layers), static_cast<int>(config.num_experts)),
      placement_(places.placement) {
  CHECK(placement_ != nullptr || places.places.size() == 1);
  const int64_t rows = max_tokens * config.top_k;
  const auto experts = static_cast<size_t>(config.num_experts);
  for (ExpertPlace& place : places.places) {
    Part& part = parts_.emplace_back();
    part.place = std::move(place);
    part.workspace.Reserve(ActivationTypeOf(kernels.numerics, Gate().type), rows,
                           config.moe_intermediate_size);
    part.needed.reserve(experts);
    part.ready.reserve(experts);
    part.of_device.reserve(experts);
    part.of_host.reserve(experts);
    part.work.reserve(experts);
  }
  if (parts_.size() > 1) fan_out_ = std::make_unique<ThreadPool>(static_cast<int>(parts_.size()));
  slot_out_ = AlignedBuffer(static_cast<size_t>(rows * config.hidden_size) * sizeof(float));
  first_row_.resize(experts + 1);
  next_row_.resize(experts);
  token_rows_.resize(static_cast<size_t>(rows));
  slot_rows_.resize(static_cast<size_t>(rows));
  pair_rows_.resize(static_cast<size_t>(rows));
}

int64_t ExpertRunner::WorkspaceBytes(const ModelConfig& config, const CpuKernels& kernels,
                                     int64_t max_tokens, int places) {
  const int64_t rows = max_tokens * config.top_k;
  return rows * (config.hidden_size * static_cast<int64_t>(sizeof(float)) +
                 places * WidestActivationRow(kernels, config.moe_intermediate_size) +
                 3 * static_cast<int64_t>(sizeof(int32_t)));
}

// Counting sort of the (token, slot) pairs by expert; within an expert they stay in token order.
void ExpertRunner::Group(int64_t layer, int64_t tokens, const int32_t* experts) {
  const int64_t pairs = tokens * config_.top_k;
  std::fill(first_row_.begin(), first_row_.end(), 0);
  for (int64_t p = 0; p < pairs; ++p) ++first_row_[static_cast<size_t>(experts[p]) + 1];
  for (Part& part : parts_) part.needed.clear();
  for (int64_t e = 0; e < config_.num_experts; ++e) {
    if (first_row_[static_cast<size_t>(e) + 1] > 0) {
      ExpertId id;
      id.layer = static_cast<uint16_t>(layer);
      id.index = static_cast<uint16_t>(e);
      const int place = placement_ == nullptr ? 0 : placement_->device(grid_.Index(id));
      parts_[static_cast<size_t>(place)].needed.push_back(id);
    }
    first_row_[static_cast<size_t>(e) + 1] += first_row_[static_cast<size_t>(e)];
    next_row_[static_cast<size_t>(e)] = first_row_[static_cast<size_t>(e)];
  }
  for (int64_t p = 0; p < pairs; ++p) {
    const auto row = static_cast<size_t>(next_row_[static_cast<size_t>(experts[p])]++);
    token_rows_[row] = static_cast<int32_t>(p / config_.top_k);
    slot_rows_[row] = static_cast<int32_t>(p);
  }
}

void ExpertRunner::Compute(Part& part, std::span<const PinnedExpert> ready, const Rows& rows) {
  part.work.clear();
  for (const PinnedExpert& expert : ready) {
    const auto first = static_cast<size_t>(first_row_[expert.id.index]);
    const auto last = static_cast<size_t>(first_row_[expert.id.index + 1u]);
    // The host cannot read the memory of devices that compute.
    const std::byte* const blob =
        expert.device >= 0 && !part.place.operators.empty() ? expert.home : expert.blob;
    ExpertWork work;
    work.gate = SectionMatrix(layout_.sections[0], blob);
    work.up = SectionMatrix(layout_.sections[1], blob);
    work.down = SectionMatrix(layout_.sections[2], blob);
    work.token_rows = token_rows_.data() + first;
    work.slot_rows = slot_rows_.data() + first;
    work.count = static_cast<int64_t>(last - first);
    part.work.push_back(work);
  }
  RunExperts(*part.place.pool, kernels_, rows.activations, rows.activations_stride_bytes, part.work,
             slot_out_.as<float>(), part.workspace);
}

// Hands `ready` to who computes it: first what devices do, because it goes on by itself.
void ExpertRunner::Hand(Part& part, const Rows& rows) {
  const DeviceOperators& operators = part.place.operators;
  part.of_host.clear();
  for (const PinnedExpert& expert : part.ready) {
    const bool on_device = expert.device >= 0 && !operators.empty() &&
                           operators[static_cast<size_t>(expert.device)]->usable();
    if (!on_device) part.of_host.push_back(expert);
  }
  for (size_t d = 0; d < operators.size(); ++d) {
    if (!operators[d]->usable()) continue;
    part.of_device.clear();
    for (const PinnedExpert& expert : part.ready) {
      if (expert.device == static_cast<int32_t>(d)) part.of_device.push_back(expert);
    }
    if (part.of_device.empty()) continue;
    if (operators[d].get() == onto_) GiveRows(part.of_device);
    operators[d]->Queue(*part.place.pool, part.of_device);
  }
  if (part.of_host.empty()) return;
  Compute(part, part.of_host, rows);
  for (const PinnedExpert& expert : part.of_host) part.place.experts->Release(expert);
}

// Where onto_ will have the outputs of these experts, which are queued next.
void ExpertRunner::GiveRows(std::span<const PinnedExpert> experts) {
  auto row = static_cast<int32_t>(onto_->queued_rows());
  for (const PinnedExpert& expert : experts) {
    for (int32_t i = first_row_[expert.id.index]; i < first_row_[expert.id.index + 1u]; ++i) {
      pair_rows_[static_cast<size_t>(slot_rows_[static_cast<size_t>(i)])] = row++;
    }
  }
}

// Puts a device's outputs where CombineSlots wants them.
void ExpertRunner::Place(Part& part, const DeviceOperator::Batch& batch) {
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const float* from = batch.out;
  for (const PinnedExpert& expert : batch.experts) {
    const auto first = static_cast<size_t>(first_row_[expert.id.index]);
    const auto rows = static_cast<size_t>(first_row_[expert.id.index + 1u]) - first;
    part.place.pool->ParallelFor(
        static_cast<int64_t>((rows + kRowsOfCopy - 1) / kRowsOfCopy), [&](int64_t task, int) {
          const size_t begin = static_cast<size_t>(task) * kRowsOfCopy;
          const size_t end = std::min(rows, begin + kRowsOfCopy);
          for (size_t row = begin; row < end; ++row) {
            const auto slot = static_cast<size_t>(slot_rows_[first + row]);
            std::copy_n(from + row * hidden, hidden, slot_out_.as<float>() + slot * hidden);
          }
        });
    from += rows * hidden;
  }
}

// Takes a batch of some device that is done or, if it may wait, of the first that computes. Whether
// it took one.
bool ExpertRunner::TakeBatch(Part& part, const Rows& rows, bool may_wait) {
  for (const std::unique_ptr<DeviceOperator>& device : part.place.operators) {
    if (device->batches() == 0 || !(may_wait || device->OldestDone())) continue;
    const DeviceOperator::Batch batch = device->TakeOldest();
    if (batch.failed && device.get() == onto_) throw *device->error();  // Close releases
    if (batch.failed) {
      Compute(part, batch.experts, rows);
    } else if (batch.out != nullptr) {
      Place(part, batch);
    }
    for (const PinnedExpert& expert : batch.experts) part.place.experts->Release(expert);
    return true;
  }
  return false;
}

// Whether a device has batches that were not taken; one of them does not count.
bool ExpertRunner::AnyComputes(const Part& part, const DeviceOperator* but) const {
  const DeviceOperators& operators = part.place.operators;
  return std::any_of(operators.begin(), operators.end(), [but](const auto& device) {
    return device.get() != but && device->batches() > 0;
  });
}

void ExpertRunner::RunAll(Part& part, const Rows& rows) {
  ExpertProvider& experts = *part.place.experts;
  for (;;) {
    while (TakeBatch(part, rows, false)) {
    }
    const bool computing = AnyComputes(part);
    part.ready.clear();
    const bool more = computing ? experts.TryNextReady(part.ready) : experts.NextReady(part.ready);
    if (!part.ready.empty()) {
      Hand(part, rows);
    } else if (!more && onto_ != nullptr && !AnyComputes(part, onto_)) {
      return;  // what is left need not be waited for
    } else if (computing) {
      // What is still to come may want the slots that are computed from.
      TakeBatch(part, rows, true);
    } else if (!more) {
      return;
    }
  }
}

void ExpertRunner::RunPart(Part& part, const Rows& rows) {
  part.stats = {};
  if (part.needed.empty()) return;
  for (const std::unique_ptr<DeviceOperator>& device : part.place.operators) {
    device->BeginLayer({rows.x, rows.x_stride, rows.tokens}, {first_row_, token_rows_});
  }
  ExpertProvider& experts = *part.place.experts;
  experts.BeginLayer(part.needed, rows.tokens * config_.top_k);
  try {
    RunAll(part, rows);
  } catch (...) {
    // Nobody reads the slots any more when their pins end.
    for (const std::unique_ptr<DeviceOperator>& device : part.place.operators) {
      while (device->batches() > 0) device->TakeOldest();
    }
    experts.EndLayer();
    throw;
  }
  part.stats = experts.EndLayer();
}

ExpertStats ExpertRunner::Run(int64_t layer, const Rows& rows, const int32_t* experts,
                              const float* weights, float* y, ThreadPool& pool) {
  Group(layer, rows.tokens, experts);
  if (fan_out_ == nullptr) {
    RunPart(parts_.front(), rows);
  } else {
    fan_out_->ParallelFor(std::ssize(parts_), [&](int64_t place, int) {
      RunPart(parts_[static_cast<size_t>(place)], rows);
    });
  }
  ExpertStats stats;
  for (const Part& part : parts_) stats += part.stats;
  CombineSlots(pool, kernels_, slot_out_.as<float>(), weights, rows.tokens, config_.top_k,
               config_.hidden_size, y);
  return stats;
}

// Gives what is in slot_out_ the rows behind the outputs that are on the device, and puts it where
// it is sent from.
void ExpertRunner::StageOthers(int64_t pairs) {
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const auto first = static_cast<int32_t>(onto_->queued_rows());
  int32_t row = first;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    int32_t& at = pair_rows_[static_cast<size_t>(pair)];
    if (at < 0) at = row++;
  }
  if (row == first) return;
  auto* const staging = reinterpret_cast<float*>(onto_->host_out().data());
  Part& part = parts_.front();
  const auto runs =
      static_cast<int64_t>((static_cast<size_t>(pairs) + kRowsOfCopy - 1) / kRowsOfCopy);
  part.place.pool->ParallelFor(runs, [&](int64_t task, int) {
    const auto end = std::min(pairs, (task + 1) * static_cast<int64_t>(kRowsOfCopy));
    for (int64_t pair = task * static_cast<int64_t>(kRowsOfCopy); pair < end; ++pair) {
      const int32_t at = pair_rows_[static_cast<size_t>(pair)];
      if (at < first) continue;
      std::copy_n(slot_out_.as<float>() + static_cast<size_t>(pair) * hidden, hidden,
                  staging + static_cast<size_t>(at) * hidden);
    }
  });
}

void ExpertRunner::RunOnto(DenseOperator& dense, const DeviceBuffer& there, int64_t layer,
                           const Rows& rows, const int32_t* experts, const float* weights) {
  CHECK(!open_);
  CHECK(parts_.size() == 1 && !parts_.front().place.operators.empty());
  Part& part = parts_.front();
  const DeviceOperators& operators = part.place.operators;
  const int64_t pairs = rows.tokens * config_.top_k;
  Group(layer, rows.tokens, experts);
  std::fill_n(pair_rows_.begin(), pairs, -1);
  onto_ = operators.front().get();
  const RowGroups groups = {first_row_, token_rows_};
  for (const std::unique_ptr<DeviceOperator>& device : operators) {
    if (device.get() == onto_) {
      device->BeginLayerThere(there, groups);
    } else {
      device->BeginLayer({rows.x, rows.x_stride, rows.tokens}, groups);
    }
  }
  part.place.experts->BeginLayer(part.needed, pairs);
  open_ = true;
  RunAll(part, rows);
  const int64_t queued = onto_->queued_rows();
  StageOthers(pairs);
  dense.AddExperts(*onto_, pairs - queued, std::span(pair_rows_).first(static_cast<size_t>(pairs)),
                   weights);
}

ExpertStats ExpertRunner::Close() {
  if (!open_) return {};
  open_ = false;
  onto_ = nullptr;
  Part& part = parts_.front();
  for (const std::unique_ptr<DeviceOperator>& device : part.place.operators) {
    while (device->batches() > 0) {
      const DeviceOperator::Batch batch = device->TakeOldest();
      for (const PinnedExpert& expert : batch.experts) part.place.experts->Release(expert);
    }
  }
  return part.place.experts->EndLayer();
}

}  // namespace moesaic
