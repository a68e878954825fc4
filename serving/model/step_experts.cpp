#include "serving/model/step_experts.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/base/check.h"
#include "core/base/short_sleep.h"
#include "core/device/host_word.h"
#include "serving/model/device_operator.h"
#include "serving/model/device_rows.h"

namespace moesaic {
namespace {

// How a thread waits for a word: it looks some times in a row, for a device that is about to write
// it, and sleeps a little from then on.
constexpr int kLooks = 200;
constexpr std::chrono::microseconds kSleep{20};

uint64_t Bytes(int64_t count, uint64_t element_bytes) {
  return static_cast<uint64_t>(count) * element_bytes;
}

template <typename T>
T* At(const DeviceBuffer& buffer) {
  return reinterpret_cast<T*>(buffer.data());
}

}  // namespace

int64_t StepExperts::MostRows(const ModelLimits& limits) {
  return std::min({kMostRows, limits.max_batch_tokens, limits.max_sequences});
}

struct StepExperts::Sizes {
  Sizes(const ModelConfig& c, const ModelLimits& limits) {
    const int64_t rows = MostRows(limits);
    const int64_t all_pairs = rows * c.top_k();
    weights = Bytes(3 * c.num_experts(), sizeof(const std::byte*));
    offsets = Bytes(c.num_experts() + 1, sizeof(int32_t));
    pairs = Bytes(all_pairs, sizeof(int32_t));
    middle = Bytes(all_pairs * c.expert_width(), sizeof(float));
    h = SentRowBytes(all_pairs, c.expert_width());
    out = Bytes(all_pairs * c.hidden_size, sizeof(float));
    words = Bytes(3 * c.num_layers(), sizeof(uint32_t));
    missed = Bytes(c.num_layers() * (1 + c.num_experts()), sizeof(int32_t));
    routing = Bytes(c.num_layers(), 2 * pairs);
    normed = Bytes(rows * c.hidden_size, sizeof(float));
    hidden = Bytes(c.num_layers(), normed);
  }
  uint64_t device() const {
    return SumOnDevice({weights, offsets, pairs, pairs, pairs, middle, middle, h, out});
  }
  uint64_t host() const { return SumPinned({words, missed, routing, hidden, normed, pairs}); }

  uint64_t weights, offsets, pairs, middle, h, out, words, missed, routing, normed, hidden;
};

uint64_t StepExperts::DeviceBytes(const ModelConfig& config, const ModelLimits& limits) {
  return Sizes(config, limits).device();
}
uint64_t StepExperts::HostBytes(const ModelConfig& config, const ModelLimits& limits) {
  return Sizes(config, limits).host();
}

StepExperts::StepExperts(Device& device, const cuda::Kernels& kernels, const ModelConfig& config,
                         const ExpertLayout& layout, const ModelLimits& limits, SlotTable& table)
    : kernels_(kernels),
      config_(config),
      layout_(layout),
      type_(DeviceOperator::WeightsOf(layout)),
      table_(table) {
  const Sizes sizes(config, limits);
  for (const auto& [buffer, bytes] : {std::pair(&weights_, sizes.weights),
                                      {&offsets_, sizes.offsets},
                                      {&token_rows_, sizes.pairs},
                                      {&slot_rows_, sizes.pairs},
                                      {&places_, sizes.pairs},
                                      {&gate_, sizes.middle},
                                      {&up_, sizes.middle},
                                      {&h_, sizes.h},
                                      {&out_, sizes.out}}) {
    *buffer = AllocateOrThrow(device, bytes, "the experts of decode steps");
  }
  pool_ = std::make_unique<PinnedHostPool>(sizes.host(), device.numa_node(), device.host_pinner());
  host_words_ = TakePinned(*pool_, sizes.words);
  host_missed_ = TakePinned(*pool_, sizes.missed);
  host_routing_ = TakePinned(*pool_, sizes.routing);
  host_hidden_ = TakePinned(*pool_, sizes.hidden);
  host_normed_ = TakePinned(*pool_, sizes.normed);
  host_places_ = TakePinned(*pool_, sizes.pairs);
  usable_ = device.KernelsReach(host_words_.span());
  routed_ = reinterpret_cast<uint32_t*>(host_words_.data());
  computed_ = routed_ + config.num_layers();
  go_ = computed_ + config.num_layers();
  ended_ = device.CreateEvent();
  answered_ = device.CreateEvent();
  answers_ = device.CreateStream();
}

StepExperts::~StepExperts() = default;

std::span<std::byte> StepExperts::OfLayer(const HostBuffer& buffer, int64_t layer,
                                          uint64_t bytes) const {
  const uint64_t stride = buffer.bytes() / static_cast<uint64_t>(config_.num_layers());
  return buffer.span().subspan(static_cast<uint64_t>(layer) * stride, bytes);
}

void StepExperts::QueueLookUp(Stream& stream, const LayerRows& rows) {
  const int64_t experts = config_.num_experts();
  auto** const weights = At<const std::byte*>(weights_);
  cuda::LookUpExpertsArgs args = {
      .ids = reinterpret_cast<const int32_t*>(rows.routing.data()),
      .pairs = rows.rows * config_.top_k(),
      .top_k = config_.top_k(),
      .experts = experts,
      .rows = rows.real_rows,
      .slots = table_.row(static_cast<int>(rows.layer)),
      .progress = table_.progress(),
      .number = SlotTable::Number(static_cast<int>(rows.layer)),
      .weights = {weights, weights + experts, weights + 2 * experts},
      .offsets = At<int32_t>(offsets_),
      .token_rows = At<int32_t>(token_rows_),
      .slot_rows = At<int32_t>(slot_rows_),
      .places = At<int32_t>(places_),
      .missed = reinterpret_cast<int32_t*>(host_missed_.data()) + rows.layer * (1 + experts),
      .go = go_ + rows.layer};
  for (size_t s = 0; s < 3; ++s) {
    args.sections[s] = static_cast<int64_t>(layout_.sections[s].offset);
  }
  stream.Launch([run = kernels_.look_up_experts, args](cuda::StreamHandle handle) {
    return run(args, handle);
  });
  const std::pair<DeviceSpan, std::span<std::byte>> told[] = {
      {rows.routing, OfLayer(host_routing_, rows.layer, rows.routing.bytes())},
      {rows.hidden, OfLayer(host_hidden_, rows.layer, rows.hidden.bytes())},
      {rows.normed, host_normed_.span().first(rows.normed.bytes())}};
  cuda::TellHostArgs tell = {.word = routed_ + rows.layer};
  int64_t bytes = 0;
  for (size_t i = 0; i < std::size(told); ++i) {
    tell.from[i] = told[i].first.data();
    tell.to[i] = told[i].second.data();
    tell.bytes[i] = static_cast<int64_t>(told[i].second.size());
    bytes += tell.bytes[i];
  }
  if (bytes <= cuda::kMostToldBytes) {
    stream.Launch(
        [run = kernels_.tell_host, tell](cuda::StreamHandle handle) { return run(tell, handle); });
    return;
  }
  for (const auto& [from, to] : told) stream.CopyToHost(to, from);
  stream.WriteValue(routed_ + rows.layer, 1);
}

void StepExperts::QueueProducts(Stream& stream, const LayerRows& rows) {
  const int64_t pairs = rows.rows * config_.top_k();
  const auto weights = [&](size_t section) {
    return At<const std::byte*>(weights_) + static_cast<int64_t>(section) * config_.num_experts();
  };
  const auto product = [&](size_t section, const uint16_t* x, const int32_t* x_rows, float* y,
                           const int32_t* y_rows, float* of_next) {
    const cuda::ProductArgs args = {
        .x = x,
        .x_rows = x_rows,
        .rows = pairs,
        .groups = config_.num_experts(),
        .offsets = At<int32_t>(offsets_),
        .weights = weights(section),
        .type = type_,
        .n = layout_.sections[section].rows,
        .k = layout_.sections[section].cols,
        .y = y,
        .y_rows = y_rows,
        .second_weights = of_next != nullptr ? weights(section + 1) : nullptr,
        .second_y = of_next};
    stream.Launch([run = kernels_.product, args](cuda::StreamHandle handle) {
      return run(args, cuda::ProductPath::kMatrix, handle);
    });
  };
  product(0, rows.x, At<int32_t>(token_rows_), At<float>(gate_), nullptr, At<float>(up_));
  const cuda::SwiGluArgs activation = {.gate = At<float>(gate_),
                                       .up = At<float>(up_),
                                       .rows = pairs,
                                       .n = config_.expert_width(),
                                       .out = At<uint16_t>(h_)};
  stream.Launch([run = kernels_.swiglu, activation](cuda::StreamHandle handle) {
    return run(activation, handle);
  });
  product(2, At<uint16_t>(h_), nullptr, At<float>(out_), At<int32_t>(slot_rows_), nullptr);
  stream.WriteValue(computed_ + rows.layer, 1);
}

void StepExperts::QueueSum(Stream& stream, const LayerRows& rows, const DeviceOperator& others) {
  stream.WaitValue(go_ + rows.layer, 1);
  const auto* const ids = reinterpret_cast<const int32_t*>(rows.routing.data());
  const cuda::CombineSlotsArgs args = {
      .slot_out = At<float>(out_),
      .slot_rows = At<int32_t>(places_),
      .other_out = At<float>(others.out()),
      .weights = reinterpret_cast<const float*>(ids + rows.rows * config_.top_k()),
      .tokens = rows.rows,
      .top_k = config_.top_k(),
      .hidden = config_.hidden_size,
      .y = reinterpret_cast<float*>(rows.hidden.data())};
  stream.Launch([run = kernels_.combine_slots, args](cuda::StreamHandle handle) {
    return run(args, handle);
  });
}

void StepExperts::BeginStep() {
  CHECK(usable_);
  std::fill_n(routed_, 3 * config_.num_layers(), 0u);  // no graph runs
  table_.BeginStep();
}

void StepExperts::Launched(Stream& stream) { stream.Record(*ended_); }

// A stream in error writes no words.
void StepExperts::Await(const uint32_t* word) {
  for (int look = 0; LoadWord(word) == 0; ++look) {
    if (look < kLooks) continue;
    if (answered_->Query() == Event::State::kFailed) ThrowIfFailed(answered_->Synchronize());
    if (ended_->Query() != Event::State::kPending && LoadWord(word) == 0) {
      ThrowIfFailed(ended_->Synchronize());
      CHECK(LoadWord(word) != 0);  // all of it has run
    }
    ShortSleep(kSleep);
  }
}

StepExperts::Routed StepExperts::AwaitRouting(int64_t layer, int64_t rows) {
  Await(routed_ + layer);
  const auto* const ids = reinterpret_cast<const int32_t*>(OfLayer(host_routing_, layer, 0).data());
  const auto* const missed =
      reinterpret_cast<const int32_t*>(host_missed_.data()) + layer * (1 + config_.num_experts());
  return {.experts = ids,
          .weights = reinterpret_cast<const float*>(ids + rows * config_.top_k()),
          .normed = reinterpret_cast<const float*>(host_normed_.data()),
          .hidden = reinterpret_cast<const float*>(OfLayer(host_hidden_, layer, 0).data()),
          .missed = {missed + 1, static_cast<size_t>(missed[0])}};
}

bool StepExperts::ProductsDone(int64_t layer) const { return LoadWord(computed_ + layer) != 0; }

void StepExperts::AwaitProducts(int64_t layer) { Await(computed_ + layer); }

void StepExperts::Answer(int64_t layer, const DeviceOperator& experts, int64_t first_other,
                         int64_t others, std::span<const int32_t> places) {
  auto* const sent = reinterpret_cast<int32_t*>(host_places_.data());
  for (size_t pair = 0; pair < places.size(); ++pair) {
    sent[pair] = places[pair] == kComputed ? static_cast<int32_t>(pair) : ~places[pair];
  }
  answers_->CopyToDevice(places_.Subspan(0, places.size_bytes()),
                         host_places_.span().first(places.size_bytes()));
  if (others > 0) {
    const uint64_t first = Bytes(first_other * config_.hidden_size, sizeof(float));
    const uint64_t bytes = Bytes(others * config_.hidden_size, sizeof(float));
    answers_->CopyToDevice(experts.out().Subspan(first, bytes),
                           experts.host_out().span().subspan(first, bytes));
  }
  experts.LetWait(*answers_);
  answers_->WriteValue(go_ + layer, 1);
  answers_->Record(*answered_);
}

void StepExperts::AwaitEnd() {
  ThrowIfFailed(answered_->Synchronize());  // without it the graph would wait
  ThrowIfFailed(ended_->Synchronize());
}

void StepExperts::Abandon() {
  for (int64_t layer = 0; layer < config_.num_layers(); ++layer) StoreWord(go_ + layer, 1);
  static_cast<void>(answers_->Synchronize());  // it has been told, or the step has failed otherwise
  answers_->ClearError();
  answers_->Record(*answered_);
}

void StepExperts::EndStep() { table_.EndStep(); }

}  // namespace moesaic
