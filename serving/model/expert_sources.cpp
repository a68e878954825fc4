#include "serving/model/expert_sources.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/io/expert_store.h"
#include "kernels/cpu/coded_weights.h"
#include "kernels/cpu/fp8_pack.h"
#include "kernels/cpu/gguf_blocks.h"
#include "serving/model/coded_weights.h"
#include "serving/model/experts_of_model.h"
#include "serving/model/fp8_weights.h"
#include "serving/model/gguf_weights.h"
#include "serving/model/pack_section.h"
#include "serving/model/stored_tensor.h"

namespace moesaic {
namespace {

// Throws of a matrix that is coded and does not fit.
void RequireCoded(const PackedMatrix& matrix, const std::filesystem::path& file, ExpertId id) {
  if (matrix.type != WeightType::kBf16Coded || CodedMatrixFits(matrix)) return;
  throw UncodableExpert(fmt::format(
      "expert {} of layer {}{}{} has more exponents than 12 bits a weight have room for", id.index,
      id.layer, file.empty() ? "" : " of ", file.parent_path().string()));
}

class CheckpointExpertSource : public ExpertSource {
 public:
  CheckpointExpertSource(const ModelConfig& config, WeightType type, const Checkpoint& checkpoint,
                         const CpuKernels& kernels)
      : kernels_(kernels),
        files_(checkpoint.files()),
        layout_(MakeCpuExpertLayout(config, type)),
        num_experts_(config.num_experts()) {
    layers_.resize(static_cast<size_t>(config.num_layers()));
    for (const int32_t layer : LayersWithExperts(config)) {
      layers_[static_cast<size_t>(layer)].first = static_cast<int64_t>(extents_.size());
      for (int64_t e = 0; e < config.num_experts(); ++e) {
        AddExpert(checkpoint, config, layer, e, layers_[static_cast<size_t>(layer)]);
      }
    }
  }

  const std::vector<std::filesystem::path>& files() const override { return files_; }
  const ExpertLayout& layout() const override { return layout_; }
  bool HasLayer(int64_t layer) const override {
    return layers_[static_cast<size_t>(layer)].first >= 0;
  }
  std::span<const Extent> Extents(ExpertId id) const override {
    return {extents_.data() + First(id), layers_[id.layer].pieces};
  }
  bool direct() const override { return false; }
  void Pack(ExpertId id, std::span<const std::span<const std::byte>> pieces,
            std::span<std::byte> slot) const override {
    const DType* const dtypes = dtypes_.data() + First(id);
    for (size_t s = 0; s < kMatrices; ++s) {
      const PackedMatrix matrix = SectionMatrix(layout_.sections[s], slot.data(), id.layer);
      const auto& [form, first] = layers_[id.layer].matrices[s];
      PackSection(matrix, kernels_, form, pieces.subspan(first, form.pieces()),
                  {dtypes + first, form.pieces()});
      RequireCoded(matrix, files_.front(), id);
    }
  }

 private:
  static constexpr size_t kMatrices = kExpertSlots.size();

  // How the rows of a matrix lie in the expert's pieces, and which is the first of them.
  struct Matrix {
    RowForm form;
    size_t first_piece = 0;
    bool operator==(const Matrix&) const = default;
  };

  // Its experts are of one kind, which another layer's need not be.
  struct Layer {
    int64_t first = -1;  // extent; -1: a dense layer
    size_t pieces = 0;   // extents of one expert
    std::array<Matrix, kMatrices> matrices;
  };

  // Matrices of the same bytes (stacked gate and up) share pieces.
  void AddExpert(const Checkpoint& checkpoint, const ModelConfig& config, int64_t layer,
                 int64_t expert, Layer& of) {
    std::array<Matrix, kMatrices> matrices;
    const size_t begin = extents_.size();
    for (size_t s = 0; s < kMatrices; ++s) {
      const ExpertSection& section = layout_.sections[s];
      const PlannedTensor planned = config.tensors.At(kExpertSlots[s], layer, expert);
      const StoredTensor stored =
          FindStored(checkpoint, planned, std::array<int64_t, 2>{section.rows, section.cols});
      size_t at = begin;
      while (at < extents_.size() && (extents_[at].file != stored.extents[0].file ||
                                      extents_[at].offset != stored.extents[0].offset)) {
        ++at;
      }
      matrices[s] = {stored.form, at - begin};
      if (section.dtype == DType::kW4A16) RequireW4A16(stored, checkpoint, planned.name);
      if (section.dtype == DType::kF8E4M3) RequireFp8(stored.form, checkpoint, planned.name);
      const size_t missing = at == extents_.size() ? stored.form.pieces() : 0;
      extents_.insert(extents_.end(), stored.extents.begin(), stored.extents.begin() + missing);
      dtypes_.insert(dtypes_.end(), stored.dtypes.begin(), stored.dtypes.begin() + missing);
      if (expert > 0 && !(matrices[s] == of.matrices[s])) {
        Fail(ErrorKind::kUnsupported,
             "{}: tensor {} is stored otherwise than that of the layer's first expert; all of a "
             "layer must be of one kind",
             checkpoint.directory().string(), planned.name);
      }
    }
    of.matrices = matrices;
    of.pieces = extents_.size() - begin;
  }

  size_t First(ExpertId id) const {
    const Layer& layer = layers_[id.layer];
    CHECK_GE(layer.first, 0);
    CHECK_LT(int64_t{id.index}, num_experts_);
    return static_cast<size_t>(layer.first) + id.index * layer.pieces;
  }

  const CpuKernels& kernels_;
  std::vector<std::filesystem::path> files_;
  ExpertLayout layout_;
  int64_t num_experts_;
  std::vector<Layer> layers_;
  std::vector<Extent> extents_;  // [sparse layers, experts, pieces]
  std::vector<DType> dtypes_;    // likewise
};

class AbsentExpertSource : public ExpertSource {
 public:
  AbsentExpertSource(const ModelConfig& config, WeightType type)
      : layout_(MakeCpuExpertLayout(config, type)), extent_{.bytes = layout_.blob_bytes} {
    for (const LayerSpec& layer : config.layers) sparse_.push_back(layer.sparse());
  }

  const std::vector<std::filesystem::path>& files() const override { return files_; }
  const ExpertLayout& layout() const override { return layout_; }
  bool HasLayer(int64_t layer) const override { return sparse_[static_cast<size_t>(layer)]; }
  std::span<const Extent> Extents(ExpertId) const override { return {&extent_, 1}; }
  bool direct() const override { return false; }
  void Pack(ExpertId, std::span<const std::span<const std::byte>>,
            std::span<std::byte>) const override {
    CHECK(false);  // there is nothing to read
  }

 private:
  std::vector<std::filesystem::path> files_;
  ExpertLayout layout_;
  Extent extent_;
  std::vector<bool> sparse_;  // by layer
};

}  // namespace

ExpertLayout MakeCpuExpertLayout(const ModelConfig& config, WeightType dense_type) {
  const WeightType type = ExpertWeightType(config, dense_type);
  ExpertLayout layout;
  const auto add = [&](const char* name, int64_t rows, int64_t cols) {
    ExpertSection section;
    section.name = name;
    section.dtype = TraitsOf(type).section;
    section.format = SectionFormat::kPanel16;
    section.rows = rows;
    section.cols = cols;
    section.offset = layout.blob_bytes;
    if (IsGguf(type)) {
      section.format = SectionFormat::kBlockPanel16;
      section.f32_activations = type == WeightType::kGgufF32;
      const TensorSlot slot = kExpertSlots[layout.sections.size()];
      section.gguf_types = GgufTypesOfLayers(config, slot);
      for (int64_t l = 0; l < config.num_layers(); ++l) {
        const int64_t bytes = SectionMatrix(section, nullptr, l).bytes();
        section.bytes = std::max(section.bytes, static_cast<uint64_t>(bytes));
      }
    } else {
      section.bytes = static_cast<uint64_t>(PackedMatrix::Bytes(type, rows, cols));
    }
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

PackedMatrix SectionMatrix(const ExpertSection& section, const std::byte* blob, int64_t layer) {
  for (const WeightTraits& traits : kWeightTypes) {
    if (traits.section != section.dtype) continue;
    const std::byte* const data = blob == nullptr ? nullptr : blob + section.offset;
    PackedMatrix matrix = {data, traits.type, section.rows, section.cols};
    if (IsGguf(traits.type)) {
      if (section.f32_activations) matrix.type = WeightType::kGgufF32;
      matrix.form = GgufFormOf(*FindGgufType(section.gguf_types.at(static_cast<size_t>(layer))));
    }
    return matrix;
  }
  CHECK(false);
}

std::unique_ptr<ExpertSource> MakeCheckpointExpertSource(const ModelConfig& config, WeightType type,
                                                         const Checkpoint& checkpoint,
                                                         const CpuKernels& kernels) {
  return std::make_unique<CheckpointExpertSource>(config, type, checkpoint, kernels);
}

std::unique_ptr<ExpertSource> MakeAbsentExpertSource(const ModelConfig& config, WeightType type) {
  return std::make_unique<AbsentExpertSource>(config, type);
}

ExpertPacker::ExpertPacker(const ModelConfig& config, WeightType type, const TensorSource& source,
                           const CpuKernels& kernels)
    : config_(config),
      source_(source),
      kernels_(kernels),
      layout_(MakeCpuExpertLayout(config, type)),
      // The checkpoint's values are at most as wide as f32.
      raw_(static_cast<size_t>(config.expert_parameters()) * sizeof(float)) {}

// Reads a section that stays fp8 and packs it; false: the source has floats alone.
bool ExpertPacker::PackFp8(const ExpertSection& section, const PlannedTensor& tensor,
                           const PackedMatrix& matrix) {
  const auto rows = static_cast<size_t>(section.rows);
  const auto k = static_cast<size_t>(section.cols);
  const std::array<int64_t, 2> shape = {section.rows, section.cols};
  source_.Require(tensor, shape);
  const auto groups = static_cast<size_t>(RoundUp(section.cols, kQuantGroup) / kQuantGroup);
  const std::span<std::byte> codes = raw_.span().first(rows * k);
  std::vector<float> scales(rows * groups);
  if (!source_.ReadFp8Rows(tensor, 0, section.rows, section.cols, codes, scales)) return false;
  auto* const to = const_cast<std::byte*>(matrix.data);
  for (int64_t row = 0; row < section.rows; ++row) {
    const auto at = static_cast<size_t>(row);
    PackFp8Row(matrix, row, codes.data() + at * k, scales.data() + at * groups,
               to + row / kPanelOutputs * matrix.panel_bytes());
  }
  return true;
}

// Likewise of packed int4.
bool ExpertPacker::PackW4A16(const ExpertSection& section, const PlannedTensor& tensor,
                             const PackedMatrix& matrix) {
  const int64_t k = section.cols;
  source_.Require(tensor, std::array<int64_t, 2>{section.rows, k});
  const std::span<std::byte> codes = raw_.span().first(static_cast<size_t>(section.rows * k / 2));
  std::vector<uint16_t> scales;
  if (!source_.ReadW4A16Rows(tensor, 0, section.rows, k, codes, scales)) return false;
  const std::array<std::span<const std::byte>, 2> pieces = {codes,
                                                            std::as_bytes(std::span(scales))};
  const RowForm form = {.values = StoredValues::kPackedInt4,
                        .rows = section.rows,
                        .cols = k,
                        .group = k * section.rows / static_cast<int64_t>(scales.size())};
  PackSection(matrix, kernels_, form, pieces, std::array<DType, 2>{DType::kI32, DType::kBF16});
  return true;
}

// Likewise of MXFP4, of a matrix in blocks.
bool ExpertPacker::PackMxfp4(const ExpertSection& section, const PlannedTensor& tensor,
                             const PackedMatrix& matrix) {
  const int64_t k = section.cols;
  source_.Require(tensor, std::array<int64_t, 2>{section.rows, k});
  const auto code_bytes = static_cast<size_t>(section.rows * k / 2);
  const auto groups = static_cast<size_t>(section.rows * k / kMxfp4Group);
  const std::span<std::byte> codes = raw_.span().first(code_bytes);
  const std::span<std::byte> exponents = raw_.span().subspan(code_bytes, groups);
  if (!source_.ReadMxfp4Rows(tensor, 0, section.rows, k, codes, exponents)) return false;
  const std::array<std::span<const std::byte>, 2> pieces = {codes, exponents};
  const RowForm form = {.values = StoredValues::kMxfp4, .rows = section.rows, .cols = k};
  PackSection(matrix, kernels_, form, pieces, std::array<DType, 2>{DType::kU8, DType::kU8});
  return true;
}

void ExpertPacker::Pack(ExpertId id, std::span<std::byte> slot) {
  std::fill(slot.begin(), slot.end(), std::byte{0});
  for (size_t s = 0; s < kExpertSlots.size(); ++s) {
    const ExpertSection& section = layout_.sections[s];
    const PlannedTensor tensor = config_.tensors.At(kExpertSlots[s], id.layer, id.index);
    const PackedMatrix matrix = SectionMatrix(section, slot.data(), id.layer);
    if (matrix.type == WeightType::kFp8 && PackFp8(section, tensor, matrix)) continue;
    if (matrix.type == WeightType::kW4A16 && PackW4A16(section, tensor, matrix)) continue;
    const std::array<int64_t, 2> shape = {section.rows, section.cols};
    DType dtype = DType::kF32;
    std::span<std::byte> bytes;
    const bool mxfp4 = tensor.Find<Mxfp4Blocks>() != nullptr;
    if (IsGguf(matrix.type) && mxfp4 && PackMxfp4(section, tensor, matrix)) continue;
    RowForm rows = {.rows = section.rows, .cols = section.cols};
    if (IsGguf(matrix.type) && !mxfp4) {
      rows.values = StoredValues::kGguf;
      const int64_t row_bytes = section.cols / matrix.form.values * matrix.form.bytes;
      bytes = raw_.span().first(static_cast<size_t>(section.rows * row_bytes));
      source_.ReadStoredRows(tensor, 0, section.rows, section.cols, bytes);
    } else {
      dtype = source_.Require(tensor, shape);
      const int64_t bits = section.rows * section.cols * DTypeBits(dtype);
      bytes = raw_.span().first(static_cast<size_t>(bits / 8));
      source_.ReadRows(tensor, 0, section.rows, section.cols, bytes);
    }
    const std::span<const std::byte> piece = bytes;
    PackSection(matrix, kernels_, rows, {&piece, 1}, {&dtype, 1});
    RequireCoded(matrix, {}, id);
  }
}

void WriteExpertStore(const ModelConfig& config, WeightType type, const TensorSource& source,
                      const CpuKernels& kernels, ThreadPool& pool,
                      const std::filesystem::path& store,
                      const std::function<void(int64_t done, int64_t total)>& progress) {
  ExpertStoreHeader header;
  header.source_fingerprint = source.Fingerprint();
  header.model_type = config.model_type;
  header.layout = MakeCpuExpertLayout(config, type);
  header.sparse_layers = LayersWithExperts(config);
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
