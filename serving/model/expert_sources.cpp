#include "serving/model/expert_sources.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/io/expert_store.h"
#include "serving/model/experts_of_model.h"
#include "serving/model/fp8_weights.h"

namespace moesaic {
namespace {

constexpr std::pair<WeightType, DType> kSectionTypes[] = {{WeightType::kBf16, DType::kBF16},
                                                          {WeightType::kF32, DType::kF32},
                                                          {WeightType::kInt8, DType::kI8},
                                                          {WeightType::kInt4, DType::kI4}};

DType SectionDType(WeightType type) {
  for (const auto& [weights, section] : kSectionTypes) {
    if (weights == type) return section;
  }
  CHECK(false);
}

std::vector<int32_t> LayersOf(const ModelConfig& config) {
  std::vector<int32_t> layers;
  for (int64_t l = 0; l < config.num_layers(); ++l) {
    if (config.is_sparse(l)) layers.push_back(static_cast<int32_t>(l));
  }
  return layers;
}

bool SameLayout(const ExpertLayout& a, const ExpertLayout& b) {
  const auto same_section = [](const ExpertSection& x, const ExpertSection& y) {
    return x.name == y.name && x.dtype == y.dtype && x.format == y.format && x.rows == y.rows &&
           x.cols == y.cols && x.offset == y.offset && x.bytes == y.bytes;
  };
  return a.blob_bytes == b.blob_bytes && a.slot_bytes == b.slot_bytes &&
         std::equal(a.sections.begin(), a.sections.end(), b.sections.begin(), b.sections.end(),
                    same_section);
}

// Block-scaled fp8: the panels one after the other, from f32.
void PackFp8(const ExpertSection& section, WeightType type, const CpuKernels& kernels,
             std::span<const std::byte> values, std::span<const std::byte> scales, DType scale_type,
             const BlockScales& blocks, std::byte* to) {
  const int64_t k = section.cols;
  // Of one panel. Beside reading the expert from disk an allocation is nothing.
  const auto rows = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(kPanelOutputs * k));
  const PackedMatrix matrix = {to, type, section.rows, k};
  for (int64_t panel = 0; panel < matrix.panels(); ++panel) {
    const int64_t first = panel * kPanelOutputs;
    const int64_t count = std::min(kPanelOutputs, section.rows - first);
    DequantiseFp8(values.data() + first * k, first, count, k, scales.data(), scale_type, blocks,
                  rows.get());
    kernels.pack_panels(rows.get(), DType::kF32, k, count, k, type, 0, 1,
                        to + panel * matrix.panel_bytes());
  }
}

// Packs the row-major matrices of one expert into its blob.
void PackExpert(const ExpertLayout& layout, WeightType type, const CpuKernels& kernels,
                std::span<const std::span<const std::byte>> pieces, std::span<const DType> dtypes,
                std::span<std::byte> slot) {
  for (size_t s = 0; s < layout.sections.size(); ++s) {
    const ExpertSection& section = layout.sections[s];
    const int64_t panels = (section.rows + kPanelOutputs - 1) / kPanelOutputs;
    kernels.pack_panels(pieces[s].data(), dtypes[s], section.cols, section.rows, section.cols, type,
                        0, panels, slot.data() + section.offset);
  }
}

class CheckpointExpertSource : public ExpertSource {
 public:
  CheckpointExpertSource(const ModelConfig& config, WeightType type, const Checkpoint& checkpoint,
                         const CpuKernels& kernels)
      : type_(type),
        kernels_(kernels),
        files_(checkpoint.files()),
        layout_(MakeCpuExpertLayout(config, type)),
        num_experts_(config.num_experts()) {
    first_of_layer_.assign(static_cast<size_t>(config.num_layers()), -1);
    for (const int32_t layer : LayersOf(config)) {
      first_of_layer_[static_cast<size_t>(layer)] = static_cast<int64_t>(extents_.size());
      for (int64_t e = 0; e < config.num_experts(); ++e) {
        for (size_t s = 0; s < kMatrices; ++s) {
          const ExpertSection& section = layout_.sections[s];
          Add(checkpoint, config.tensors.At(kExpertSlots[s], layer, e),
              std::array<int64_t, 2>{section.rows, section.cols});
        }
      }
    }
  }

  const std::vector<std::filesystem::path>& files() const override { return files_; }
  const ExpertLayout& layout() const override { return layout_; }
  bool HasLayer(int64_t layer) const override {
    return first_of_layer_[static_cast<size_t>(layer)] >= 0;
  }
  std::span<const Extent> Extents(ExpertId id) const override {
    return {extents_.data() + First(id), pieces_};
  }
  bool direct() const override { return false; }
  void Pack(ExpertId id, std::span<const std::span<const std::byte>> pieces,
            std::span<std::byte> slot) const override {
    const std::span<const DType> dtypes = {dtypes_.data() + First(id), pieces_};
    if (pieces_ == kMatrices) return PackExpert(layout_, type_, kernels_, pieces, dtypes, slot);
    for (size_t s = 0; s < kMatrices; ++s) {
      const ExpertSection& section = layout_.sections[s];
      PackFp8(section, type_, kernels_, pieces[2 * s], pieces[2 * s + 1], dtypes[2 * s + 1],
              blocks_, slot.data() + section.offset);
    }
  }

 private:
  static constexpr size_t kMatrices = kExpertSlots.size();

  // One extent, or two when it is of fp8: the values and their scales. All matrices are of one
  // kind.
  void Add(const Checkpoint& checkpoint, const PlannedTensor& planned,
           std::span<const int64_t> shape) {
    const std::optional<Fp8Tensor> fp8 = FindFp8(checkpoint, planned, shape);
    const size_t pieces = fp8 ? 2 * kMatrices : kMatrices;
    if (pieces_ != 0 && pieces_ != pieces) {
      Fail(ErrorKind::kUnsupported,
           "{}: tensor {} is {}F8_E4M3, other matrices of experts are {}: they must be of one kind",
           checkpoint.directory().string(), planned.name, fp8 ? "" : "not ", fp8 ? "not" : "");
    }
    pieces_ = pieces;
    if (fp8) blocks_ = fp8->blocks;
    for (const TensorInfo* tensor : {fp8 ? fp8->values : &checkpoint.Require(planned.name, shape),
                                     fp8 ? fp8->scales : nullptr}) {
      if (tensor == nullptr) continue;
      extents_.push_back(tensor->extent);
      dtypes_.push_back(tensor->dtype);
    }
  }

  size_t First(ExpertId id) const {
    const int64_t first = first_of_layer_[id.layer];
    CHECK_GE(first, 0);
    CHECK_LT(int64_t{id.index}, num_experts_);
    return static_cast<size_t>(first) + id.index * pieces_;
  }

  WeightType type_;
  const CpuKernels& kernels_;
  std::vector<std::filesystem::path> files_;
  ExpertLayout layout_;
  int64_t num_experts_;
  BlockScales blocks_;                   // of all, where they are fp8
  size_t pieces_ = 0;                    // extents of one expert
  std::vector<int64_t> first_of_layer_;  // [layers] index of the first extent, -1 for a dense layer
  std::vector<Extent> extents_;          // [sparse layers, experts, pieces_]
  std::vector<DType> dtypes_;            // likewise
};

class StoreExpertSource : public ExpertSource {
 public:
  StoreExpertSource(const ModelConfig& config, ExpertStoreDescription description,
                    const std::filesystem::path& store)
      : files_({ExpertStoreDataFile(store)}),
        store_(std::move(description)),
        checked_(store_.checksums.size()) {
    const ExpertStoreHeader& header = store_.header;
    first_of_layer_.assign(static_cast<size_t>(config.num_layers()), -1);
    for (const int32_t layer : header.sparse_layers) {
      first_of_layer_[static_cast<size_t>(layer)] = static_cast<int64_t>(extents_.size());
      for (int32_t e = 0; e < header.num_experts; ++e) {
        ExpertId id;
        id.layer = static_cast<uint16_t>(layer);
        id.index = static_cast<uint16_t>(e);
        extents_.push_back(ExpertStoreExtent(header, id));
      }
    }
  }

  const std::vector<std::filesystem::path>& files() const override { return files_; }
  const ExpertLayout& layout() const override { return store_.header.layout; }
  bool HasLayer(int64_t layer) const override {
    return first_of_layer_[static_cast<size_t>(layer)] >= 0;
  }
  std::span<const Extent> Extents(ExpertId id) const override {
    return {extents_.data() + Position(id), 1};
  }
  bool direct() const override { return true; }
  bool MustCheck(ExpertId id) const override {
    return !checked_[Position(id)].load(std::memory_order_relaxed);
  }
  void Check(ExpertId id, std::span<const std::byte> slot) const override {
    const size_t position = Position(id);
    CheckExpert(store_, files_.front(), position, slot);
    checked_[position].store(true, std::memory_order_relaxed);
  }
  void Pack(ExpertId, std::span<const std::span<const std::byte>>,
            std::span<std::byte>) const override {
    CHECK(false);  // a store's extent is the blob
  }

 private:
  size_t Position(ExpertId id) const {
    const int64_t first = first_of_layer_[id.layer];
    CHECK_GE(first, 0);
    return static_cast<size_t>(first) + id.index;
  }

  std::vector<std::filesystem::path> files_;
  ExpertStoreDescription store_;
  std::vector<int64_t> first_of_layer_;
  std::vector<Extent> extents_;  // in the file's order
  // Likewise: the bytes were found right. The data that goes with it passes through the reader's
  // lock; here only the flag itself has to be whole.
  mutable std::vector<std::atomic<bool>> checked_;
};

// Why the store cannot serve this model; empty when it can.
std::string WhyNotCurrent(const ModelConfig& config, WeightType type, uint64_t fingerprint,
                          const ExpertStoreHeader& header) {
  if (header.model_type != config.model_type || header.num_experts != config.num_experts() ||
      header.sparse_layers != LayersOf(config)) {
    return "it was made for another model";
  }
  const ExpertLayout wanted = MakeCpuExpertLayout(config, type);
  if (!SameLayout(header.layout, wanted)) {
    const DType found = header.layout.sections.empty() ? wanted.sections.front().dtype
                                                       : header.layout.sections.front().dtype;
    if (found == wanted.sections.front().dtype) return "its weights have another layout";
    return fmt::format("its weights are {} and not {} (--dtype)", DTypeName(found),
                       DTypeName(wanted.sections.front().dtype));
  }
  if (header.source_fingerprint != fingerprint)
    return "the checkpoint has changed since it was made";
  return {};
}

}  // namespace

ExpertLayout MakeCpuExpertLayout(const ModelConfig& config, WeightType type) {
  ExpertLayout layout;
  const auto add = [&](const char* name, int64_t rows, int64_t cols) {
    ExpertSection section;
    section.name = name;
    section.dtype = SectionDType(type);
    section.format = SectionFormat::kPanel16;
    section.rows = rows;
    section.cols = cols;
    section.offset = layout.blob_bytes;
    section.bytes = static_cast<uint64_t>(PackedMatrix::Bytes(type, rows, cols));
    layout.blob_bytes = RoundUp(layout.blob_bytes + section.bytes, 64);
    layout.sections.push_back(section);
  };
  const int64_t width = config.expert_width();
  add("gate", width, config.hidden_size);
  add("up", width, config.hidden_size);
  add("down", config.hidden_size, width);
  layout.slot_bytes = RoundUp(layout.blob_bytes, AlignedBuffer::kPageBytes);
  return layout;
}

PackedMatrix SectionMatrix(const ExpertSection& section, const std::byte* blob) {
  for (const auto& [weights, dtype] : kSectionTypes) {
    if (dtype == section.dtype) return {blob + section.offset, weights, section.rows, section.cols};
  }
  CHECK(false);
}

std::unique_ptr<ExpertSource> MakeCheckpointExpertSource(const ModelConfig& config, WeightType type,
                                                         const Checkpoint& checkpoint,
                                                         const CpuKernels& kernels) {
  return std::make_unique<CheckpointExpertSource>(config, type, checkpoint, kernels);
}

std::unique_ptr<ExpertSource> MakeStoreExpertSource(const ModelConfig& config, WeightType type,
                                                    uint64_t fingerprint,
                                                    const std::filesystem::path& store) {
  ExpertStoreDescription description = DescribeExpertStore(store);
  const std::string why = WhyNotCurrent(config, type, fingerprint, description.header);
  if (!why.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "expert store {}: {}; rebuild it with `moesaic pack MODEL -o {}` or leave --expert-store "
         "out",
         store.string(), why, store.string());
  }
  return std::make_unique<StoreExpertSource>(config, std::move(description), store);
}

bool ExpertStoreIsCurrent(const ModelConfig& config, WeightType type, uint64_t fingerprint,
                          const std::filesystem::path& store) {
  if (!std::filesystem::exists(store)) return false;
  try {
    return WhyNotCurrent(config, type, fingerprint, OpenExpertStore(store)).empty();
  } catch (const Error&) {
    return false;  // unreadable: not current, and `pack` writes it anew
  }
}

ExpertPacker::ExpertPacker(const ModelConfig& config, WeightType type, const TensorSource& source,
                           const CpuKernels& kernels)
    : config_(config),
      type_(type),
      source_(source),
      kernels_(kernels),
      layout_(MakeCpuExpertLayout(config, type)),
      // The checkpoint's values are at most as wide as f32.
      raw_(static_cast<size_t>(config.expert_parameters()) * sizeof(float)) {}

void ExpertPacker::Pack(ExpertId id, std::span<std::byte> slot) {
  std::array<std::span<const std::byte>, 3> pieces;
  std::array<DType, 3> dtypes;
  std::byte* out = raw_.data();
  for (size_t s = 0; s < pieces.size(); ++s) {
    const ExpertSection& section = layout_.sections[s];
    const PlannedTensor tensor = config_.tensors.At(kExpertSlots[s], id.layer, id.index);
    const std::array<int64_t, 2> shape = {section.rows, section.cols};
    dtypes[s] = source_.Require(tensor, shape);
    const auto bytes = static_cast<size_t>(section.rows * section.cols * DTypeBits(dtypes[s]) / 8);
    source_.ReadRows(tensor, 0, section.rows, section.cols, {out, bytes});
    pieces[s] = {out, bytes};
    out += bytes;
  }
  std::fill(slot.begin(), slot.end(), std::byte{0});
  PackExpert(layout_, type_, kernels_, pieces, dtypes, slot);
}

void WriteExpertStore(const ModelConfig& config, WeightType type, const TensorSource& source,
                      const CpuKernels& kernels, ThreadPool& pool,
                      const std::filesystem::path& store,
                      const std::function<void(int64_t done, int64_t total)>& progress) {
  ExpertStoreHeader header;
  header.source_fingerprint = source.Fingerprint();
  header.model_type = config.model_type;
  header.layout = MakeCpuExpertLayout(config, type);
  header.sparse_layers = LayersOf(config);
  header.num_experts = static_cast<int32_t>(config.num_experts());
  const uint64_t slot_bytes = header.layout.slot_bytes;
  const std::vector<ExpertId> experts = AllExperts(config);
  const int64_t total = std::ssize(experts);

  const int64_t batch = pool.threads();
  std::vector<ExpertPacker> packers;
  for (int64_t i = 0; i < batch; ++i) packers.emplace_back(config, type, source, kernels);
  AlignedBuffer blobs(slot_bytes * static_cast<uint64_t>(batch));
  const auto blob = [&](int64_t i) {
    return std::span<std::byte>(blobs.data() + slot_bytes * static_cast<uint64_t>(i), slot_bytes);
  };
  ExpertStoreWriter writer(store, std::move(header));
  for (int64_t done = 0; done < total;) {
    const int64_t count = std::min(batch, total - done);
    pool.ParallelFor(count, [&](int64_t i, int) {
      packers[static_cast<size_t>(i)].Pack(experts[static_cast<size_t>(done + i)], blob(i));
    });
    for (int64_t i = 0; i < count; ++i) writer.Append(blob(i));
    done += count;
    progress(done, total);
  }
  writer.Finish();
}

}  // namespace moesaic
