#include "serving/model/expert_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "serving/model/experts_of_model.h"

namespace moesaic {
namespace {

// Of a layer's experts: when so many are wanted, so will be those of the next. What is fetched in
// vain is at most the rest.
constexpr double kWholeLayer = 0.9;

int64_t FloatRowBytes(const ModelConfig& config) {
  return ActivationRowBytes(ActivationType::kF32, config.hidden_size);
}

GatedActivation ActivationOf(const MlpSpec& expert) {
  GatedActivation activation;
  activation.clamped = expert.activation == Activation::kClampedSwiglu;
  activation.alpha = static_cast<float>(expert.swiglu_alpha);
  activation.limit = static_cast<float>(expert.swiglu_limit);
  return activation;
}

// What rows of a device, which come without padding, take with it; nothing where they have none.
int64_t UnpaddedBytes(const ModelConfig& config, int64_t rows) {
  const bool padded = PaddedFloats(config.hidden_size) == config.hidden_size;
  return padded ? 0 : rows * FloatRowBytes(config);
}

}  // namespace

ExpertRunner::ExpertRunner(const ModelConfig& config, const ExpertLayout& layout,
                           ExpertPlaces places, const CpuKernels& kernels, int64_t max_tokens,
                           bool may_defer, std::span<const LayerWeights> layers)
    : config_(config),
      layout_(layout),
      kernels_(kernels),
      layers_of_weights_(layers),
      activation_(ActivationOf(config.experts().expert)),
      grid_(GridOf(config)),
      placement_(places.placement),
      activations_(kernels, max_tokens, config.hidden_size) {
  CHECK(placement_ != nullptr || places.places.size() == 1);
  CHECK(!config.experts().expert.bias || !layers.empty());
  const int64_t rows = max_tokens * config.top_k();
  const auto experts = static_cast<size_t>(config.num_experts());
  for (ExpertPlace& place : places.places) {
    Part& part = parts_.emplace_back();
    part.place = std::move(place);
    if (config.experts().expert.bias) {
      for (const auto& on_device : part.place.operators) on_device->LoadBiases(layers);
    }
    part.workspace.Reserve(ActivationTypeOf(kernels.numerics, Gate().type), rows,
                           config.expert_width());
    part.needed.reserve(experts);
    part.expected.reserve(3 * experts);
    part.ready.reserve(experts);
    part.of_device.reserve(experts);
    part.of_host.reserve(experts);
    part.work.reserve(experts);
  }
  if (UnpaddedBytes(config, max_tokens) > 0) {
    padded_ = AlignedBuffer(static_cast<size_t>(UnpaddedBytes(config, max_tokens)));
    padded_.Zero();
  }
  if (parts_.size() > 1) fan_out_ = std::make_unique<ThreadPool>(static_cast<int>(parts_.size()));
  next_row_.resize(experts);
  pair_rows_.resize(static_cast<size_t>(rows));
  found_.resize(experts);
  held_.reserve(experts);
  immediate_.resize(experts);
  used_.resize(experts);
  layers_.resize(may_defer ? 2 : 1);
  for (LayerRows& layer : layers_) {
    layer.slot_out = AlignedBuffer(static_cast<size_t>(rows * config.hidden_size) * sizeof(float));
    layer.first_row.resize(experts + 1);
    layer.token_rows.resize(static_cast<size_t>(rows));
    layer.slot_rows.resize(static_cast<size_t>(rows));
    if (!may_defer) continue;
    layer.weights.resize(static_cast<size_t>(rows));
    layer.deferred.resize(static_cast<size_t>(rows));
    layer.late.resize(parts_.size());
    for (std::vector<ExpertId>& late : layer.late) late.reserve(experts);
    layer.x = AlignedBuffer(static_cast<size_t>(max_tokens * FloatRowBytes(config)));
    layer.x.Zero();  // devices are sent all rows
    layer.activations = AlignedBuffer(
        static_cast<size_t>(max_tokens * WidestActivationRow(config, kernels, config.hidden_size)));
  }
}

int64_t ExpertRunner::WorkspaceBytes(const ModelConfig& config, const CpuKernels& kernels,
                                     int64_t max_tokens, int places, bool may_defer) {
  const int64_t rows = max_tokens * config.top_k();
  const int64_t of_layer = rows * (config.hidden_size * static_cast<int64_t>(sizeof(float)) +
                                   2 * static_cast<int64_t>(sizeof(int32_t)));
  const int64_t kept = rows * static_cast<int64_t>(sizeof(float) + sizeof(uint8_t)) +
                       max_tokens * (FloatRowBytes(config) +
                                     WidestActivationRow(config, kernels, config.hidden_size));
  return (may_defer ? 2 * (of_layer + kept) : of_layer) +
         HostActivations::Bytes(kernels, max_tokens, config.hidden_size) +
         UnpaddedBytes(config, max_tokens) +
         rows * (places * WidestActivationRow(config, kernels, config.expert_width()) +
                 static_cast<int64_t>(sizeof(int32_t)));
}

void ExpertRunner::BeginPass() {
  open_ = running_ = before_ = nullptr;
  for (Part& part : parts_) {
    part.tells = false;
    if (std::exchange(part.expects, false)) part.place.experts->Expect(part.of_blocks);
  }
}

void ExpertRunner::EndBlocks() {
  block_.reset();
  whole_layers_ = false;
  std::fill(used_.begin(), used_.end(), uint8_t{0});
  for (Part& part : parts_) {
    if (part.of_blocks.empty()) continue;
    part.of_blocks.clear();
    part.place.experts->Expect({});
  }
}

int ExpertRunner::PlaceOf(ExpertId id) const {
  return placement_ == nullptr ? 0 : placement_->device(grid_.Index(id));
}

// Counting sort of the (token, slot) pairs by expert; within an expert they stay in token order.
// Then who is needed at once, and who comes late: what only deferred pairs want and is missing.
void ExpertRunner::Group(int64_t layer, int64_t tokens, const RowExperts& experts) {
  const int64_t pairs = tokens * config_.top_k();
  std::vector<int32_t>& first_row = open_->first_row;
  std::fill(first_row.begin(), first_row.end(), 0);
  std::fill(immediate_.begin(), immediate_.end(), uint8_t{0});
  for (int64_t p = 0; p < pairs; ++p) {
    ++first_row[static_cast<size_t>(experts.ids[p]) + 1];
    if (experts.deferred == nullptr || experts.deferred[p] == 0) {
      immediate_[static_cast<size_t>(experts.ids[p])] = 1;
    }
  }
  for (Part& part : parts_) part.needed.clear();
  for (std::vector<ExpertId>& late : open_->late) late.clear();
  for (int64_t e = 0; e < config_.num_experts(); ++e) {
    const auto at = static_cast<size_t>(e);
    if (first_row[at + 1] > 0) {
      ExpertId id;
      id.layer = static_cast<uint16_t>(layer);
      id.index = static_cast<uint16_t>(e);
      const auto place = static_cast<size_t>(PlaceOf(id));
      const bool now = immediate_[at] != 0 || parts_[place].place.experts->IsResident(id);
      (now ? parts_[place].needed : open_->late[place]).push_back(id);
    }
    first_row[at + 1] += first_row[at];
    next_row_[at] = first_row[at];
  }
  for (int64_t p = 0; p < pairs; ++p) {
    const auto row = static_cast<size_t>(next_row_[static_cast<size_t>(experts.ids[p])]++);
    open_->token_rows[row] = static_cast<int32_t>(p / config_.top_k());
    open_->slot_rows[row] = static_cast<int32_t>(p);
  }
}

// What later layers want of each place: what was deferred to them and, when nearly all experts of
// this layer are wanted, all of the next one's.
void ExpertRunner::ListExpected(int64_t layer) {
  size_t wanted = 0;
  for (size_t place = 0; place < parts_.size(); ++place) {
    Part& part = parts_[place];
    part.expected.clear();
    wanted += part.needed.size();
    for (const LayerRows* rows : {before_, open_}) {
      if (rows == nullptr || rows->late.empty()) continue;
      const std::vector<ExpertId>& late = rows->late[place];
      part.expected.insert(part.expected.end(), late.begin(), late.end());
      if (rows == open_) wanted += late.size();
    }
  }
  int64_t next = layer + 1;
  while (next < config_.num_layers() && !config_.is_sparse(next)) {
    ++next;
  }
  const bool whole =
      next < config_.num_layers() &&
      static_cast<double>(wanted) >= kWholeLayer * static_cast<double>(config_.num_experts());
  for (int64_t e = 0; whole && e < config_.num_experts(); ++e) {
    ExpertId id;
    id.layer = static_cast<uint16_t>(next);
    id.index = static_cast<uint16_t>(e);
    parts_[static_cast<size_t>(PlaceOf(id))].expected.push_back(id);
  }
  for (Part& part : parts_) {
    part.tells = part.expects || !part.expected.empty();
    part.expects = !part.expected.empty();
    if (part.tells) {
      part.expected.insert(part.expected.end(), part.of_blocks.begin(), part.of_blocks.end());
    }
  }
}

// What the blocks to come want: of this layer what earlier blocks have used and what is there, for
// a later block may use it; then the later layers, in their order: all of their experts when this
// one wants half of its own or more, else those that are there.
void ExpertRunner::ListOfBlocks(int64_t layer) {
  if (block_->first) std::fill(used_.begin(), used_.end(), uint8_t{0});
  for (Part& part : parts_) {
    part.of_blocks.clear();
    for (const ExpertId id : part.needed) used_[id.index] = 1;
  }
  const auto used = std::count(used_.begin(), used_.end(), uint8_t{1});
  const bool most =
      static_cast<double>(used) >= kWholeLayerOfBlocks * static_cast<double>(config_.num_experts());
  const bool whole = most || whole_layers_;
  if (block_->last) whole_layers_ = most;
  for (int64_t l = block_->last ? layer + 1 : layer; l < config_.num_layers(); ++l) {
    if (!config_.is_sparse(l)) continue;
    for (int64_t e = 0; e < config_.num_experts(); ++e) {
      ExpertId id;
      id.layer = static_cast<uint16_t>(l);
      id.index = static_cast<uint16_t>(e);
      Part& part = parts_[static_cast<size_t>(PlaceOf(id))];
      const bool wanted = l == layer ? used_[static_cast<size_t>(e)] != 0 : whole;
      if (wanted || part.place.experts->IsResident(id)) part.of_blocks.push_back(id);
    }
  }
  for (Part& part : parts_) {
    part.expected = part.of_blocks;
    part.expects = false;
    part.tells = true;
  }
  block_.reset();
}

// Beside them, in the place of what was expected before: what the layer before has deferred to this
// one, and what blocks of long prompts have asked for.
void ExpertRunner::Announce(int64_t layer, std::span<const int32_t> experts) {
  std::fill(immediate_.begin(), immediate_.end(), uint8_t{0});
  for (const int32_t expert : experts) immediate_[static_cast<size_t>(expert)] = 1;
  for (Part& part : parts_) part.expected.clear();
  for (int64_t e = 0; e < config_.num_experts(); ++e) {
    if (immediate_[static_cast<size_t>(e)] == 0) continue;
    ExpertId id;
    id.layer = static_cast<uint16_t>(layer);
    id.index = static_cast<uint16_t>(e);
    parts_[static_cast<size_t>(PlaceOf(id))].expected.push_back(id);
  }
  for (size_t place = 0; place < parts_.size(); ++place) {
    Part& part = parts_[place];
    const auto append = [&part](const std::vector<ExpertId>& more) {
      part.expected.insert(part.expected.end(), more.begin(), more.end());
    };
    if (before_ != nullptr && !before_->late.empty()) append(before_->late[place]);
    append(part.of_blocks);
    if (part.expected.empty() && !part.expects) continue;
    part.place.experts->Expect(part.expected);
    part.expects = true;  // the layer's Run says what is expected from then on
  }
}

// Keeps what AddDeferred needs of the open layer.
void ExpertRunner::Keep(const Rows& rows, const RowExperts& experts) {
  const int64_t pairs = rows.tokens * config_.top_k();
  running_ = open_;
  running_->tokens = rows.tokens;
  std::copy_n(experts.weights, pairs, running_->weights.begin());
  std::copy_n(experts.deferred, pairs, running_->deferred.begin());
  const int64_t x_bytes = FloatRowBytes(config_);
  CHECK_LE(x_bytes, rows.x_stride * static_cast<int64_t>(sizeof(float)));
  CHECK_EQ(
      rows.activations_stride_bytes,
      ActivationRowBytes(ActivationTypeOf(kernels_.numerics, Gate().type), config_.hidden_size));
  for (const std::vector<ExpertId>& late : running_->late) {
    for (const ExpertId id : late) {
      for (int32_t row = running_->first_row[id.index]; row < running_->first_row[id.index + 1u];
           ++row) {
        const int64_t token = running_->token_rows[static_cast<size_t>(row)];
        std::memcpy(running_->x.data() + token * x_bytes, rows.x + token * rows.x_stride,
                    static_cast<size_t>(x_bytes));
        std::memcpy(running_->activations.data() + token * rows.activations_stride_bytes,
                    rows.activations + token * rows.activations_stride_bytes,
                    static_cast<size_t>(rows.activations_stride_bytes));
      }
    }
  }
}

ExpertWork ExpertRunner::WorkOf(const PinnedExpert& expert, const std::byte* blob) const {
  const auto first = static_cast<size_t>(open_->first_row[expert.id.index]);
  const auto last = static_cast<size_t>(open_->first_row[expert.id.index + 1u]);
  ExpertWork work;
  work.gate = SectionMatrix(layout_.sections[0], blob, expert.id.layer);
  work.up = SectionMatrix(layout_.sections[1], blob, expert.id.layer);
  work.down = SectionMatrix(layout_.sections[2], blob, expert.id.layer);
  work.activation = activation_;
  if (config_.experts().expert.bias) {
    const LayerWeights& layer = layers_of_weights_[expert.id.layer];
    const auto index = static_cast<int64_t>(expert.id.index);
    work.gate_bias = layer.expert_gate_bias + index * work.gate.n;
    work.up_bias = layer.expert_up_bias + index * work.up.n;
    work.down_bias = layer.expert_down_bias + index * work.down.n;
  }
  work.token_rows = open_->token_rows.data() + first;
  work.slot_rows = open_->slot_rows.data() + first;
  work.count = static_cast<int64_t>(last - first);
  return work;
}

// Brings the rows of a layer that was to be a device's alone: experts could not be copied to it, or
// the host is the sooner.
const ExpertRunner::Rows& ExpertRunner::PrepareLate(Part& part) {
  if (late_rows_.activations == nullptr) {
    CHECK(inputs_->bring_x != nullptr);
    ExpertInputs inputs = *inputs_;
    inputs.x = inputs.bring_x();
    late_rows_ = Prepare(inputs, *part.place.pool);
  }
  return late_rows_;
}

void ExpertRunner::Compute(Part& part, std::span<const PinnedExpert> ready, const Rows& rows) {
  if (rows.activations == nullptr) {
    Compute(part, ready, PrepareLate(part));
    return;
  }
  part.work.clear();
  for (const PinnedExpert& expert : ready) {
    // The host cannot read the memory of devices that compute.
    const std::byte* const blob =
        expert.device >= 0 && !part.place.operators.empty() ? expert.home : expert.blob;
    part.work.push_back(WorkOf(expert, blob));
  }
  RunExperts(*part.place.pool, kernels_, rows.activations, rows.activations_stride_bytes, part.work,
             open_->slot_out.as<float>(), part.workspace);
}

// Hands `ready` to who computes it: first what devices do, because it goes on by itself.
void ExpertRunner::Hand(Part& part, const Rows& rows) {
  const DeviceOperators& operators = part.place.operators;
  if (step_ != nullptr) {
    const auto found =
        std::partition(part.ready.begin(), part.ready.end(),
                       [this](const PinnedExpert& expert) { return found_[expert.id.index] == 0; });
    held_.insert(held_.end(), found, part.ready.end());
    part.ready.erase(found, part.ready.end());
  }
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

// Puts a device's outputs where CombineSlots wants them.
void ExpertRunner::Place(Part& part, const DeviceOperator::Batch& batch) {
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const float* from = batch.out;
  for (const PinnedExpert& expert : batch.experts) {
    const auto first = static_cast<size_t>(open_->first_row[expert.id.index]);
    const auto rows = static_cast<size_t>(open_->first_row[expert.id.index + 1u]) - first;
    part.place.pool->ParallelFor(
        static_cast<int64_t>((rows + kRowsOfCopy - 1) / kRowsOfCopy), [&](int64_t task, int) {
          const size_t begin = static_cast<size_t>(task) * kRowsOfCopy;
          const size_t end = std::min(rows, begin + kRowsOfCopy);
          for (size_t row = begin; row < end; ++row) {
            const auto slot = static_cast<size_t>(open_->slot_rows[first + row]);
            std::copy_n(from + row * hidden, hidden, open_->slot_out.as<float>() + slot * hidden);
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
    ReleaseFound(false);
    const bool computing = AnyComputes(part) || !held_.empty();
    part.ready.clear();
    const bool more = computing ? experts.TryNextReady(part.ready) : experts.NextReady(part.ready);
    if (!part.ready.empty()) {
      Hand(part, rows);
    } else if (!more && (!computing || (onto_ != nullptr && !AnyComputes(part, onto_)))) {
      return;  // what onto_ computes need not be waited for
    } else if (computing && !ReleaseFound(true)) {
      // What is still to come may want the slots that are computed from.
      TakeBatch(part, rows, true);
    }
  }
}

void ExpertRunner::RunPart(Part& part, const Rows& rows) {
  part.stats = {};
  ExpertProvider& experts = *part.place.experts;
  if (part.needed.empty()) {
    if (std::exchange(part.tells, false)) experts.Expect(part.expected);
    return;
  }
  for (const std::unique_ptr<DeviceOperator>& device : part.place.operators) {
    device->BeginLayer({rows.x, rows.x_stride, rows.tokens}, {open_->first_row, open_->token_rows});
  }
  experts.BeginLayer(part.needed, PairsOf(part));
  if (std::exchange(part.tells, false)) experts.Expect(part.expected);
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

int64_t ExpertRunner::PairsOf(const Part& part) const {
  int64_t pairs = 0;
  for (const ExpertId id : part.needed) {
    pairs += open_->first_row[id.index + 1u] - open_->first_row[id.index];
  }
  return pairs;
}

void ExpertRunner::ForParts(FunctionRef<void(Part& part)> body) {
  if (fan_out_ == nullptr) {
    body(parts_.front());
    return;
  }
  fan_out_->ParallelFor(std::ssize(parts_),
                        [&](int64_t place, int) { body(parts_[static_cast<size_t>(place)]); });
}

ExpertStats ExpertRunner::RunParts(const Rows& rows) {
  ForParts([&](Part& part) { RunPart(part, rows); });
  ExpertStats stats;
  for (const Part& part : parts_) stats += part.stats;
  return stats;
}

// The rows as products on the host want them.
ExpertRunner::Rows ExpertRunner::Prepare(const ExpertInputs& inputs, ThreadPool& pool) {
  Rows rows = {.tokens = inputs.tokens, .x = inputs.x, .x_stride = inputs.x_stride};
  if (rows.x == nullptr) return rows;
  const int64_t padded = PaddedFloats(config_.hidden_size);
  if (rows.x_stride < padded) {
    ForRows(pool, {0, rows.tokens}, [&](int64_t row) {
      std::copy_n(inputs.x + row * inputs.x_stride, config_.hidden_size,
                  padded_.as<float>() + row * padded);
    });
    rows.x = padded_.as<float>();
    rows.x_stride = padded;
  }
  const ActivatedRows x = activations_.Of(rows.x, rows.x_stride, rows.tokens, Gate(), pool);
  rows.activations = x.data;
  rows.activations_stride_bytes = x.stride_bytes;
  return rows;
}

ExpertStats ExpertRunner::Run(int64_t layer, const ExpertInputs& inputs, const RowExperts& experts,
                              ThreadPool& pool) {
  const Rows rows = Prepare(inputs, pool);
  outputs_ = {};
  if (inputs.there.empty()) return RunHere(layer, rows, experts);
  CHECK(experts.deferred == nullptr);
  needed_rows_ = NeedsHostRows();
  inputs_ = &inputs;
  late_rows_ = {};
  try {
    if (inputs.step != nullptr) {
      RunBeside(layer, inputs, rows, experts);
    } else {
      RunOnto(layer, inputs, rows, experts);
    }
  } catch (...) {
    threw_ = true;
    throw;
  }
  return {};
}

ExpertStats ExpertRunner::RunHere(int64_t layer, const Rows& rows, const RowExperts& experts) {
  CHECK(experts.deferred == nullptr || layers_.size() > 1);
  CHECK(running_ == nullptr);
  open_ = before_ == layers_.data() ? &layers_.back() : layers_.data();
  Group(layer, rows.tokens, experts);
  if (block_) {
    ListOfBlocks(layer);
  } else {
    ListExpected(layer);
  }
  const ExpertStats stats = RunParts(rows);
  outputs_ = {.weights = experts.weights,
              .slot_out = open_->slot_out.as<float>(),
              .mask = {experts.deferred, 0},
              .activations = rows.activations,
              .activations_stride_bytes = rows.activations_stride_bytes,
              .type = Gate().type};
  if (experts.deferred != nullptr) Keep(rows, experts);
  return stats;
}

ExpertStats ExpertRunner::RunDeferred() {
  open_ = std::exchange(before_, std::exchange(running_, nullptr));
  deferred_ = {};
  if (open_ == nullptr) return {};
  const Rows rows = {.tokens = open_->tokens,
                     .x = open_->x.as<float>(),
                     .x_stride = FloatRowBytes(config_) / static_cast<int64_t>(sizeof(float)),
                     .activations = open_->activations.data(),
                     .activations_stride_bytes = ActivationRowBytes(
                         ActivationTypeOf(kernels_.numerics, Gate().type), config_.hidden_size)};
  uint64_t late = 0;
  for (size_t place = 0; place < parts_.size(); ++place) {
    parts_[place].needed.swap(open_->late[place]);
    late += parts_[place].needed.size();
  }
  ExpertStats stats;
  if (late > 0) stats = RunParts(rows);
  stats.deferred = late;
  deferred_ = {.weights = open_->weights.data(),
               .slot_out = open_->slot_out.as<float>(),
               .mask = {open_->deferred.data(), 1}};
  return stats;
}

}  // namespace moesaic
