#include "serving/model/device_operator.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

constexpr int64_t kMostProductRows = 65535;   // kernels/cuda/products.h
constexpr int64_t kMostProductGroups = 4096;  // likewise
uint64_t Product(int64_t a, int64_t b, uint64_t element_bytes) {
  return static_cast<uint64_t>(a) * static_cast<uint64_t>(b) * element_bytes;
}

uint64_t RowBytes(const ModelConfig& config, int64_t max_tokens) {
  return SentRowBytes(max_tokens, config.hidden_size);
}
uint64_t OutBytes(const ModelConfig& config, int64_t max_tokens) {
  return Product(max_tokens * config.top_k(), config.hidden_size, sizeof(float));
}
uint64_t MiddleBytes(const ModelConfig& config, int64_t max_tokens) {
  return Product(max_tokens * config.top_k(), config.expert_width(), sizeof(float));
}
uint64_t ActivatedBytes(const ModelConfig& config, int64_t max_tokens) {
  return SentRowBytes(max_tokens * config.top_k(), config.expert_width());
}
// Of a layer's experts.
int64_t BiasFloats(int64_t experts, int64_t width, int64_t hidden) {
  return experts * (2 * width + hidden);
}
uint64_t BiasBytes(const ModelConfig& config) {
  if (!config.experts().expert.bias) return 0;
  const int64_t of_layer =
      BiasFloats(config.num_experts(), config.expert_width(), config.hidden_size);
  return Product(config.num_layers(), of_layer, sizeof(float));
}

template <typename T>
const T* At(const std::byte* memory, uint64_t offset) {
  return reinterpret_cast<const T*>(memory + offset);
}

}  // namespace

cuda::Weights DeviceOperator::WeightsOf(const ExpertLayout& layout) {
  for (const ExpertSection& section : layout.sections) {
    if (section.dtype != layout.sections[0].dtype || section.format == SectionFormat::kRowMajor) {
      Fail(ErrorKind::kUnsupported, "a device computes experts of one type of weights only");
    }
  }
  switch (layout.sections[0].dtype) {
    case DType::kBF16:
      return cuda::Weights::kBf16;
    case DType::kI8:
      return cuda::Weights::kInt8;
    case DType::kI4:
      return cuda::Weights::kInt4;
    case DType::kMxfp4:
      return cuda::Weights::kMxfp4;
    case DType::kF8E4M3:
      return cuda::Weights::kFp8;
    case DType::kW4A16:
      return cuda::Weights::kW4A16;
    case DType::kBf16Coded:
      Fail(ErrorKind::kUnsupported,
           "a device does not compute experts of coded weights: write the store with `moesaic pack "
           "--weight-coding none`");
    default:
      Fail(ErrorKind::kUnsupported,
           "a device computes experts in bfloat16, int8, int4, mxfp4, fp8 and w4a16, not in {}: "
           "give --dtype bfloat16",
           DTypeName(layout.sections[0].dtype));
  }
}

DeviceOperator::Tables DeviceOperator::TablesOf(size_t experts, int64_t rows) {
  Tables tables;
  for (uint64_t& weights : tables.weights) {
    weights = tables.bytes;
    tables.bytes += experts * sizeof(const std::byte*);
  }
  tables.offsets = tables.bytes;
  tables.bytes += (experts + 1) * sizeof(int32_t);
  tables.token_rows = tables.bytes;
  tables.bytes += static_cast<uint64_t>(rows) * sizeof(int32_t);
  tables.experts = tables.bytes;
  tables.bytes += experts * sizeof(int32_t);
  return tables;
}

// Every batch has at least one expert, and wastes less than the alignment.
uint64_t DeviceOperator::TableBytes(const ModelConfig& config, int64_t max_tokens) {
  const uint64_t of_expert = TablesOf(1, 0).bytes + Device::kAlignment;
  return static_cast<uint64_t>(config.num_experts()) * of_expert +
         Product(max_tokens, config.top_k(), sizeof(int32_t));
}

uint64_t DeviceOperator::DeviceBytes(const ModelConfig& config, int64_t max_tokens) {
  const uint64_t middle = MiddleBytes(config, max_tokens);
  return SumOnDevice({RowBytes(config, max_tokens), TableBytes(config, max_tokens), middle, middle,
                      ActivatedBytes(config, max_tokens), OutBytes(config, max_tokens),
                      BiasBytes(config)});
}

uint64_t DeviceOperator::HostBytes(const ModelConfig& config, int64_t max_tokens) {
  return SumPinned(
      {RowBytes(config, max_tokens), TableBytes(config, max_tokens), OutBytes(config, max_tokens)});
}

int64_t DeviceOperator::MostTokens(const ModelConfig& config) {
  return kMostProductRows / std::max<int64_t>(1, config.top_k());
}

void DeviceOperator::CheckSupported(const ExpertLayout& layout, const ModelConfig& config,
                                    int64_t max_tokens) {
  WeightsOf(layout);
  if (max_tokens > MostTokens(config)) {
    Fail(ErrorKind::kInvalidArgument,
         "--max-num-batched-tokens: {} tokens with {} experts each are more rows than a device "
         "takes; give at most {}",
         max_tokens, config.top_k(), MostTokens(config));
  }
  if (config.num_experts() > kMostProductGroups) {
    Fail(ErrorKind::kUnsupported, "a device takes at most {} experts in a layer, not {}",
         kMostProductGroups, config.num_experts());
  }
}

DeviceOperator::DeviceOperator(Device& device, const cuda::Kernels& kernels,
                               const ExpertLayout& layout, const ModelConfig& config,
                               int64_t max_tokens)
    : device_(device),
      kernels_(kernels),
      layout_(layout),
      hidden_(config.hidden_size),
      intermediate_(config.expert_width()),
      num_experts_(config.num_experts()),
      expert_(config.experts().expert),
      type_(WeightsOf(layout)),
      pool_(HostBytes(config, max_tokens), device.numa_node(), device.host_pinner()) {
  CheckSupported(layout, config, max_tokens);
  x_ = AllocateOrThrow(device, RowBytes(config, max_tokens), "the rows of a step");
  tables_ = AllocateOrThrow(device, TableBytes(config, max_tokens), "the tables of a step");
  gate_ = AllocateOrThrow(device, MiddleBytes(config, max_tokens), "the outputs of experts");
  up_ = AllocateOrThrow(device, MiddleBytes(config, max_tokens), "the outputs of experts");
  h_ = AllocateOrThrow(device, ActivatedBytes(config, max_tokens), "the outputs of experts");
  out_ = AllocateOrThrow(device, OutBytes(config, max_tokens), "the outputs of experts");
  host_x_ = TakePinned(pool_, RowBytes(config, max_tokens));
  host_tables_ = TakePinned(pool_, TableBytes(config, max_tokens));
  host_out_ = TakePinned(pool_, OutBytes(config, max_tokens));
  const auto experts = static_cast<size_t>(config.num_experts());
  experts_.reserve(experts);
  queue_.resize(experts);
  for (Queued& queued : queue_) queued.done = device.CreateEvent();
  stream_ = device.CreateStream();
}

DeviceOperator::~DeviceOperator() = default;

void DeviceOperator::LoadBiases(std::span<const LayerWeights> layers) {
  const auto of_layer =
      static_cast<uint64_t>(BiasFloats(num_experts_, intermediate_, hidden_)) * sizeof(float);
  biases_ = AllocateOrThrow(device_, layers.size() * of_layer, "the biases of experts");
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer].expert_gate_bias == nullptr) continue;  // no experts
    uint64_t offset = layer * of_layer;
    for (const auto& [from, width] : {std::pair(layers[layer].expert_gate_bias, intermediate_),
                                      std::pair(layers[layer].expert_up_bias, intermediate_),
                                      std::pair(layers[layer].expert_down_bias, hidden_)}) {
      const auto floats = static_cast<size_t>(num_experts_ * width);
      const auto bytes = std::as_bytes(std::span(from, floats));
      stream_->CopyToDevice(biases_.Subspan(offset, bytes.size()), bytes);
      offset += bytes.size();
    }
  }
  ThrowIfFailed(stream_->Synchronize());
}

const float* DeviceOperator::BiasesOf(int64_t layer, size_t section) const {
  if (biases_.bytes() == 0) return nullptr;
  const int64_t first = layer * BiasFloats(num_experts_, intermediate_, hidden_);
  const int64_t before = static_cast<int64_t>(section) * num_experts_ * intermediate_;
  return reinterpret_cast<const float*>(biases_.data()) + first + before;
}

void DeviceOperator::BeginLayer(const HostRows& rows, const RowGroups& groups) {
  CHECK_EQ(batches(), 0);
  rows_ = rows;
  groups_ = groups;
  sent_ = false;
  stays_ = false;
  device_x_ = reinterpret_cast<const uint16_t*>(x_.data());
  tables_used_ = 0;
  out_rows_ = 0;
  experts_.clear();
  queued_ = 0;
  taken_ = 0;
}

void DeviceOperator::BeginLayerThere(const DeviceSpan& x, const RowGroups& groups,
                                     bool outputs_stay) {
  BeginLayer({}, groups);
  sent_ = true;
  stays_ = outputs_stay;
  device_x_ = reinterpret_cast<const uint16_t*>(x.data());
}

void DeviceOperator::FillTables(std::span<const PinnedExpert> experts, const Tables& tables,
                                std::byte* memory) {
  auto* const offsets = reinterpret_cast<int32_t*>(memory + tables.offsets);
  auto* token_rows = reinterpret_cast<int32_t*>(memory + tables.token_rows);
  auto* const indices = reinterpret_cast<int32_t*>(memory + tables.experts);
  offsets[0] = 0;
  for (size_t i = 0; i < experts.size(); ++i) {
    indices[i] = experts[i].id.index;
    for (size_t s = 0; s < 3; ++s) {
      reinterpret_cast<const std::byte**>(memory + tables.weights[s])[i] =
          experts[i].blob + layout_.sections[s].offset;
    }
    const auto first = static_cast<size_t>(groups_.first_row[experts[i].id.index]);
    const auto last = static_cast<size_t>(groups_.first_row[experts[i].id.index + 1u]);
    offsets[i + 1] = offsets[i] + static_cast<int32_t>(last - first);
    token_rows =
        std::copy(groups_.token_rows.begin() + static_cast<std::ptrdiff_t>(first),
                  groups_.token_rows.begin() + static_cast<std::ptrdiff_t>(last), token_rows);
  }
}

void DeviceOperator::Launch(const Tables& tables, const std::byte* memory,
                            std::span<const PinnedExpert> experts, int64_t rows, float* out) {
  const auto product = [&](size_t section, const uint16_t* x, const int32_t* x_rows, float* y,
                           float* of_next = nullptr) {
    cuda::ProductArgs args = {.x = x,
                              .x_rows = x_rows,
                              .rows = rows,
                              .groups = static_cast<int64_t>(experts.size()),
                              .offsets = At<int32_t>(memory, tables.offsets),
                              .weights = At<const std::byte*>(memory, tables.weights[section]),
                              .type = type_,
                              .n = layout_.sections[section].rows,
                              .k = layout_.sections[section].cols,
                              .bias = BiasesOf(experts.front().id.layer, section),
                              .bias_rows = At<int32_t>(memory, tables.experts),
                              .y = y};
    if (of_next != nullptr) {
      args.second_weights = At<const std::byte*>(memory, tables.weights[section + 1]);
      args.second_bias = BiasesOf(experts.front().id.layer, section + 1);
      args.second_y = of_next;
    }
    stream_->Launch([run = kernels_.product, args](cuda::StreamHandle stream) {
      return run(args, cuda::ProductPath::kMatrix, stream);
    });
  };
  auto* const gate = reinterpret_cast<float*>(gate_.data());
  auto* const up = reinterpret_cast<float*>(up_.data());
  auto* const h = reinterpret_cast<uint16_t*>(h_.data());
  const int32_t* const token_rows = At<int32_t>(memory, tables.token_rows);
  product(0, device_x_, token_rows, gate, up);
  const cuda::SwiGluArgs activation = {.gate = gate,
                                       .up = up,
                                       .rows = rows,
                                       .n = intermediate_,
                                       .clamped = expert_.activation == Activation::kClampedSwiglu,
                                       .alpha = static_cast<float>(expert_.swiglu_alpha),
                                       .limit = static_cast<float>(expert_.swiglu_limit),
                                       .out = h};
  stream_->Launch([run = kernels_.swiglu, activation](cuda::StreamHandle stream) {
    return run(activation, stream);
  });
  product(2, h, nullptr, out);
}

void DeviceOperator::Queue(ThreadPool& pool, std::span<const PinnedExpert> experts) {
  CHECK(usable() && !experts.empty());
  CHECK_LT(static_cast<size_t>(queued_), queue_.size());
  if (!sent_) SendRows(pool, *stream_, rows_, hidden_, host_x_, x_);
  sent_ = true;
  Queued& queued = queue_[static_cast<size_t>(queued_++)];
  queued.first_expert = experts_.size();
  queued.num_experts = experts.size();
  queued.first_row = out_rows_;
  experts_.insert(experts_.end(), experts.begin(), experts.end());
  int64_t rows = 0;
  for (const PinnedExpert& expert : experts) {
    rows += groups_.first_row[expert.id.index + 1u] - groups_.first_row[expert.id.index];
  }
  const Tables tables = TablesOf(experts.size(), rows);
  CHECK_LE(tables_used_ + tables.bytes, host_tables_.bytes());
  std::byte* const memory = host_tables_.data() + tables_used_;
  FillTables(experts, tables, memory);
  const DeviceSpan on_device = tables_.Subspan(tables_used_, tables.bytes);
  stream_->CopyToDevice(on_device, {memory, tables.bytes});
  tables_used_ += RoundUp(tables.bytes, Device::kAlignment);

  const uint64_t out_offset = Product(out_rows_, hidden_, sizeof(float));
  const uint64_t out_bytes = Product(rows, hidden_, sizeof(float));
  Launch(tables, on_device.data(), experts, rows,
         reinterpret_cast<float*>(out_.data() + out_offset));
  if (!stays_) {
    stream_->CopyToHost({host_out_.data() + out_offset, out_bytes},
                        out_.Subspan(out_offset, out_bytes));
  }
  stream_->Record(*queued.done);
  out_rows_ += rows;
}

bool DeviceOperator::OldestDone() const {
  CHECK_GT(batches(), 0);
  return queue_[static_cast<size_t>(taken_)].done->Query() != Event::State::kPending;
}

DeviceOperator::Batch DeviceOperator::TakeOldest() {
  CHECK_GT(batches(), 0);
  const Queued& queued = queue_[static_cast<size_t>(taken_++)];
  Batch batch;
  batch.experts = std::span(experts_).subspan(queued.first_expert, queued.num_experts);
  if (const std::optional<Error> error = queued.done->Synchronize()) {
    batch.failed = true;
    GiveUp(*error);
  } else if (!stays_) {
    batch.out = reinterpret_cast<const float*>(host_out_.data()) + queued.first_row * hidden_;
  }
  return batch;
}

void DeviceOperator::LetWait(Stream& stream) const {
  if (queued_ > 0) stream.Wait(*queue_[static_cast<size_t>(queued_ - 1)].done);
}

void DeviceOperator::GiveUp(const Error& error) {
  if (!usable()) return;
  error_ = error;
  LogWarn("device {} computes no more experts, the host does: {}", device_.name(), error.what());
}

}  // namespace moesaic
