// Experts of a layer whose residual stream is on a device: outputs stay there or are sent there.
#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "serving/model/expert_runner.h"
#include "serving/model/step_experts.h"

namespace moesaic {

// Where onto_ will have the outputs of these experts, which are queued next.
void ExpertRunner::GiveRows(std::span<const PinnedExpert> experts) {
  auto row = static_cast<int32_t>(onto_->queued_rows());
  for (const PinnedExpert& expert : experts) {
    for (int32_t i = open_->first_row[expert.id.index]; i < open_->first_row[expert.id.index + 1u];
         ++i) {
      pair_rows_[static_cast<size_t>(open_->slot_rows[static_cast<size_t>(i)])] = row++;
    }
  }
}

// Ends the pins of what the step computes, when it has or, if it may wait, then. Whether there were
// any.
bool ExpertRunner::ReleaseFound(bool may_wait) {
  if (held_.empty() || !(may_wait || step_->ProductsDone(step_layer_))) return false;
  step_->AwaitProducts(step_layer_);
  for (const PinnedExpert& expert : held_) parts_.front().place.experts->Release(expert);
  held_.clear();
  return true;
}

// Gives what is in slot_out the rows behind the outputs that are on the device, and puts it where
// it is sent from. Returns how many.
int64_t ExpertRunner::StageOthers(int64_t pairs) {
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const auto first = static_cast<int32_t>(onto_->queued_rows());
  int32_t row = first;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    int32_t& at = pair_rows_[static_cast<size_t>(pair)];
    if (at == -1) at = row++;
  }
  if (row == first) return 0;
  auto* const staging = reinterpret_cast<float*>(onto_->host_out().data());
  Part& part = parts_.front();
  const auto runs =
      static_cast<int64_t>((static_cast<size_t>(pairs) + kRowsOfCopy - 1) / kRowsOfCopy);
  part.place.pool->ParallelFor(runs, [&](int64_t task, int) {
    const auto end = std::min(pairs, (task + 1) * static_cast<int64_t>(kRowsOfCopy));
    for (int64_t pair = task * static_cast<int64_t>(kRowsOfCopy); pair < end; ++pair) {
      const int32_t at = pair_rows_[static_cast<size_t>(pair)];
      if (at < first) continue;
      std::copy_n(open_->slot_out.as<float>() + static_cast<size_t>(pair) * hidden, hidden,
                  staging + static_cast<size_t>(at) * hidden);
    }
  });
  return row - first;
}

bool ExpertRunner::NeedsHostRows() const {
  const DeviceOperators& operators = parts_.front().place.operators;
  return parts_.size() > 1 || operators.size() != 1 || !operators.front()->usable();
}

void ExpertRunner::RunPartOnto(Part& part, const Rows& rows) {
  ExpertProvider& experts = *part.place.experts;
  part.open = !part.needed.empty();
  if (part.open) experts.BeginLayer(part.needed, PairsOf(part));
  if (std::exchange(part.tells, false)) experts.Expect(part.expected);
  if (part.open) RunAll(part, rows);
}

void ExpertRunner::OpenOnto(std::span<const DeviceSpan> there, int64_t layer, const Rows& rows,
                            const RowExperts& experts) {
  CHECK(!runs_onto_);
  CHECK(!parts_.front().place.operators.empty());
  open_ = layers_.data();
  Group(layer, rows.tokens, experts);
  ListExpected(layer);
  std::fill_n(pair_rows_.begin(), rows.tokens * config_.top_k(), -1);
  onto_ = parts_.front().place.operators.front().get();
  const RowGroups groups = {open_->first_row, open_->token_rows};
  size_t number = 0;
  for (const Part& part : parts_) {
    for (const std::unique_ptr<DeviceOperator>& device : part.place.operators) {
      if (number < there.size()) {
        device->BeginLayerThere(there[number], groups, number == 0);
      } else {
        device->BeginLayer({rows.x, rows.x_stride, rows.tokens}, groups);
      }
      ++number;
    }
  }
  runs_onto_ = true;
}

void ExpertRunner::RunOnto(int64_t layer, const ExpertInputs& inputs, const Rows& rows,
                           const RowExperts& experts) {
  OpenOnto(inputs.there, layer, rows, experts);
  ForParts([&](Part& part) { RunPartOnto(part, rows); });
  const int64_t pairs = rows.tokens * config_.top_k();
  const int64_t others = StageOthers(pairs);
  outputs_ = {.weights = experts.weights,
              .device = onto_,
              .others = others,
              .pair_rows = std::span(pair_rows_).first(static_cast<size_t>(pairs))};
}

void ExpertRunner::RunBeside(int64_t layer, const ExpertInputs& inputs, const Rows& rows,
                             const RowExperts& experts) {
  CHECK_EQ(parts_.size(), 1u);
  OpenOnto(inputs.there, layer, rows, experts);
  step_ = inputs.step;
  step_layer_ = layer;
  std::fill(found_.begin(), found_.end(), uint8_t{1});
  for (const int32_t expert : inputs.missed) found_[static_cast<size_t>(expert)] = 0;
  const int64_t pairs = rows.tokens * config_.top_k();
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (found_[static_cast<size_t>(experts.ids[pair])] == 0) continue;
    pair_rows_[static_cast<size_t>(pair)] = StepExperts::kComputed;
  }
  RunPartOnto(parts_.front(), rows);
  if (inputs.missed.empty()) return;  // the step waits for nobody
  const int64_t first_other = onto_->queued_rows();
  const int64_t others = StageOthers(pairs);
  step_->Answer(layer, *onto_, first_other, others,
                std::span(pair_rows_).first(static_cast<size_t>(pairs)));
}

ExpertStats ExpertRunner::Close() {
  if (!runs_onto_) return {};
  runs_onto_ = false;
  onto_ = nullptr;
  step_ = nullptr;
  for (const PinnedExpert& expert : held_) parts_.front().place.experts->Release(expert);
  held_.clear();
  ExpertStats stats;
  for (Part& part : parts_) {
    for (const std::unique_ptr<DeviceOperator>& device : part.place.operators) {
      while (device->batches() > 0) {
        const DeviceOperator::Batch batch = device->TakeOldest();
        for (const PinnedExpert& expert : batch.experts) part.place.experts->Release(expert);
      }
    }
    if (std::exchange(part.open, false)) stats += part.place.experts->EndLayer();
  }
  if (std::exchange(threw_, false)) failed_ = failed_ || NeedsHostRows() != needed_rows_;
  return stats;
}

}  // namespace moesaic
