#include "serving/model/weights.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/device/numa_memory.h"
#include "serving/model/numa_slices.h"

namespace moesaic {
namespace {

// Rows are read and packed in pieces of about this many bytes: bounds the staging memory, and lets
// the packing of one piece use all threads.
constexpr int64_t kStagingBytes = int64_t{16} << 20;

// Hands out the arena. With a null base it only measures.
class ArenaCursor {
 public:
  ArenaCursor(std::byte* base, std::vector<PackedMatrix>* matrices)
      : base_(base), matrices_(matrices) {}

  PackedMatrix Matrix(WeightType type, int64_t n, int64_t k) {
    const PackedMatrix matrix = {Take(static_cast<uint64_t>(PackedMatrix::Bytes(type, n, k))), type,
                                 n, k};
    if (matrices_ != nullptr) matrices_->push_back(matrix);
    return matrix;
  }
  const float* Vector(int64_t n) {
    return reinterpret_cast<const float*>(Take(static_cast<uint64_t>(n) * sizeof(float)));
  }
  uint64_t used_bytes() const { return used_bytes_; }

 private:
  const std::byte* Take(uint64_t bytes) {
    const std::byte* at = base_ == nullptr ? nullptr : base_ + used_bytes_;
    used_bytes_ = RoundUp(used_bytes_ + bytes, 64);
    return at;
  }

  std::byte* base_;
  std::vector<PackedMatrix>* matrices_;
  uint64_t used_bytes_ = 0;
};

// Rows of a packed matrix may come from several tensors, one below the other.
struct RowPart {
  PlannedTensor tensor;
  int64_t rows = 0;
};

class Loader {
 public:
  Loader(const TensorSource& source, const CpuKernels& kernels, ThreadPool& pool)
      : source_(source), kernels_(kernels), pool_(pool) {}

  void Matrix(const PackedMatrix& target, const std::vector<RowPart>& parts) {
    int64_t first_row = 0;
    const int64_t k = target.k;
    std::vector<DType> dtypes;
    for (const RowPart& part : parts) {
      const std::array<int64_t, 2> shape = {part.rows, k};
      dtypes.push_back(source_.Require(part.tensor, shape));
      if (dtypes.back() != dtypes.front()) {
        Fail(ErrorKind::kUnsupported, "tensor {} is {} but {} is {}: they must be of one type",
             part.tensor.name, DTypeName(dtypes.back()), parts.front().tensor.name,
             DTypeName(dtypes.front()));
      }
      first_row += part.rows;
    }
    CHECK_EQ(first_row, target.n);
    const DType dtype = dtypes.front();
    const int64_t row_bytes = k * DTypeBits(dtype) / 8;
    const int64_t block_rows =
        std::max<int64_t>(1, kStagingBytes / row_bytes / kPanelOutputs) * kPanelOutputs;
    for (int64_t row = 0; row < target.n; row += block_rows) {
      const int64_t rows = std::min(block_rows, target.n - row);
      ReadAcross(parts, row, row + rows, k, row_bytes);
      const int64_t first_panel = row / kPanelOutputs;
      const int64_t panels = (rows + kPanelOutputs - 1) / kPanelOutputs;
      auto* destination = const_cast<std::byte*>(target.data) + first_panel * target.panel_bytes();
      pool_.ParallelFor(panels, [&](int64_t panel, int) {
        kernels_.pack_panels(staging_.data(), dtype, k, rows, k, target.type, panel, panel + 1,
                             destination);
      });
    }
  }

  void Matrix(const PackedMatrix& target, const PlannedTensor& tensor) {
    Matrix(target, {{tensor, target.n}});
  }

  void Norm(const float* target, const NormSpec& norm, const PlannedTensor& tensor, int64_t n) {
    Vector(target, {{tensor, n}});
    if (!norm.plus_one) return;
    auto* const out = const_cast<float*>(target);
    for (int64_t i = 0; i < n; ++i) out[i] += 1.0f;
  }

  // A sink is a score without a value: a partial result whose sum of exponentials is 1.
  void Sinks(const float* target, const GroupedQuerySpec& attention, const PlannedTensor& tensor) {
    std::vector<float> scores(static_cast<size_t>(attention.heads));
    Vector(scores.data(), {{tensor, attention.heads}});
    const int64_t stride = AttentionPartialFloats(attention.head_dim);
    auto* partial = const_cast<float*>(target);
    for (const float score : scores) {
      std::fill_n(partial, stride, 0.0f);
      float* const max_and_sum = partial + stride - kPanelOutputs;
      max_and_sum[0] = score;
      max_and_sum[1] = 1.0f;
      partial += stride;
    }
  }

  void Vector(const float* target, const std::vector<RowPart>& parts) {
    auto* out = const_cast<float*>(target);
    for (const RowPart& part : parts) {
      const std::array<int64_t, 1> shape = {part.rows};
      const DType dtype = source_.Require(part.tensor, shape);
      std::byte* raw = Staging(part.rows * DTypeBits(dtype) / 8);
      source_.ReadRows(part.tensor, 0, part.rows, 1,
                       {raw, static_cast<size_t>(part.rows * DTypeBits(dtype) / 8)});
      for (int64_t i = 0; i < part.rows; ++i) {
        switch (dtype) {
          case DType::kF32:
            out[i] = reinterpret_cast<const float*>(raw)[i];
            break;
          case DType::kF16:
            out[i] = F16ToF32(reinterpret_cast<const uint16_t*>(raw)[i]);
            break;
          default:
            out[i] = Bf16ToF32(reinterpret_cast<const uint16_t*>(raw)[i]);
        }
      }
      out += part.rows;
    }
  }

 private:
  std::byte* Staging(int64_t bytes) {
    if (staging_.bytes() < static_cast<size_t>(bytes))
      staging_ = AlignedBuffer(static_cast<size_t>(bytes));
    return staging_.data();
  }

  void ReadAcross(const std::vector<RowPart>& parts, int64_t begin, int64_t end, int64_t k,
                  int64_t row_bytes) {
    std::byte* out = Staging((end - begin) * row_bytes);
    int64_t part_begin = 0;
    for (const RowPart& part : parts) {
      const int64_t from = std::max(begin, part_begin);
      const int64_t to = std::min(end, part_begin + part.rows);
      if (from < to) {
        const auto bytes = static_cast<size_t>((to - from) * row_bytes);
        source_.ReadRows(part.tensor, from - part_begin, to - part_begin, k, {out, bytes});
        out += bytes;
      }
      part_begin += part.rows;
    }
  }

  const TensorSource& source_;
  const CpuKernels& kernels_;
  ThreadPool& pool_;
  AlignedBuffer staging_;
};

}  // namespace

int64_t QNormWidth(const GroupedQuerySpec& attention) {
  return attention.qk_norm == QkNorm::kProjection ? attention.q_width() : attention.head_dim;
}

int64_t KNormWidth(const GroupedQuerySpec& attention) {
  return attention.qk_norm == QkNorm::kProjection ? attention.kv_width() : attention.head_dim;
}

uint64_t ModelWeights::LayOut(const ModelConfig& c, WeightType type, std::byte* base,
                              std::vector<PackedMatrix>* matrices) {
  ArenaCursor arena(base, matrices);
  // A checkpoint whose values are not bf16 keeps its router exact: a rounded router picks other
  // experts.
  const WeightType router_type = c.checkpoint_dtype == DType::kBF16 && type != WeightType::kF32
                                     ? WeightType::kBf16
                                     : WeightType::kF32;
  const WeightType head_type = TraitsOf(type).head;
  type = TraitsOf(type).dense;
  head = arena.Matrix(head_type, c.vocab_size, c.hidden_size);
  embedding = c.tie_word_embeddings ? head : arena.Matrix(type, c.vocab_size, c.hidden_size);
  final_norm = arena.Vector(c.hidden_size);
  layers.assign(c.layers.size(), LayerWeights{});
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerSpec& spec = c.layers[l];
    const GroupedQuerySpec& attention = spec.attention();
    LayerWeights& w = layers[l];
    w.input_norm = arena.Vector(c.hidden_size);
    w.post_attention_norm = arena.Vector(c.hidden_size);
    w.qkv = arena.Matrix(type, attention.qkv_width(), c.hidden_size);
    if (attention.qkv_bias) w.qkv_bias = arena.Vector(attention.qkv_width());
    if (attention.qk_norm != QkNorm::kNone) {
      w.q_norm = arena.Vector(QNormWidth(attention));
      w.k_norm = arena.Vector(KNormWidth(attention));
    }
    w.output = arena.Matrix(type, c.hidden_size, attention.q_width());
    if (attention.output_bias) w.output_bias = arena.Vector(c.hidden_size);
    if (attention.sinks) {
      w.sinks = arena.Vector(attention.heads * AttentionPartialFloats(attention.head_dim));
    }
    if (spec.sparse()) {
      const RouterSpec& router = spec.experts().router;
      w.router = arena.Matrix(router_type, router.experts, c.hidden_size);
      if (router.logit_bias) w.router_bias = arena.Vector(router.experts);
      if (router.correction_bias) w.router_correction = arena.Vector(router.experts);
      if (const MlpSpec& expert = spec.experts().expert; expert.bias) {
        w.expert_gate_bias = arena.Vector(router.experts * expert.width);
        w.expert_up_bias = arena.Vector(router.experts * expert.width);
        w.expert_down_bias = arena.Vector(router.experts * c.hidden_size);
      }
      if (spec.experts().shared_gate) w.shared_gate = arena.Matrix(router_type, 1, c.hidden_size);
    }
    const int64_t width = spec.dense_mlp().width;
    if (width > 0) {
      w.gate = arena.Matrix(type, width, c.hidden_size);
      w.up = arena.Matrix(type, width, c.hidden_size);
      w.down = arena.Matrix(type, c.hidden_size, width);
    }
  }
  return arena.used_bytes();
}

uint64_t ModelWeights::Bytes(const ModelConfig& config, WeightType type) {
  ModelWeights measured;
  return measured.LayOut(config, type, nullptr);
}

ModelWeights ModelWeights::Shapes(const ModelConfig& config, WeightType type) {
  return At(config, type, nullptr);
}

ModelWeights ModelWeights::At(const ModelConfig& config, WeightType type, std::byte* base) {
  ModelWeights weights;
  weights.LayOut(config, type, base);
  return weights;
}

ModelWeights ModelWeights::Load(const ModelConfig& c, WeightType type, const TensorSource& source,
                                const CpuKernels& kernels, ThreadPool& pool) {
  ModelWeights weights;
  weights.arena_ = AlignedBuffer(Bytes(c, type));
  std::vector<PackedMatrix> matrices;
  weights.LayOut(c, type, weights.arena_.data(), &matrices);
  TakePagesFromNodes(weights.arena_.span(),
                     MatrixStretches(matrices, weights.arena_.data(), pool.node_ids()));
  Loader load(source, kernels, pool);
  const TensorPlan& plan = c.tensors;
  load.Matrix(weights.embedding, plan.At(TensorSlot::kEmbedding));
  if (!c.tie_word_embeddings) load.Matrix(weights.head, plan.At(TensorSlot::kHead));
  load.Norm(weights.final_norm, c.final_norm, plan.At(TensorSlot::kFinalNorm), c.hidden_size);
  for (int64_t l = 0; l < c.num_layers(); ++l) {
    const LayerWeights& w = weights.layers[static_cast<size_t>(l)];
    const LayerSpec& spec = c.layer(l);
    const GroupedQuerySpec& attention = spec.attention();
    const int64_t q_rows = attention.q_width();
    const int64_t kv_rows = attention.kv_width();
    const auto at = [&](TensorSlot slot) { return plan.At(slot, l); };
    load.Norm(w.input_norm, spec.norm, at(TensorSlot::kInputNorm), c.hidden_size);
    load.Norm(w.post_attention_norm, spec.norm, at(TensorSlot::kPostAttentionNorm), c.hidden_size);
    load.Matrix(w.qkv, {{at(TensorSlot::kQ), q_rows},
                        {at(TensorSlot::kK), kv_rows},
                        {at(TensorSlot::kV), kv_rows}});
    if (w.qkv_bias != nullptr) {
      load.Vector(w.qkv_bias, {{at(TensorSlot::kQBias), q_rows},
                               {at(TensorSlot::kKBias), kv_rows},
                               {at(TensorSlot::kVBias), kv_rows}});
    }
    if (w.q_norm != nullptr) {
      load.Norm(w.q_norm, attention.norm, at(TensorSlot::kQNorm), QNormWidth(attention));
      load.Norm(w.k_norm, attention.norm, at(TensorSlot::kKNorm), KNormWidth(attention));
    }
    load.Matrix(w.output, at(TensorSlot::kOutput));
    if (w.output_bias != nullptr) {
      load.Vector(w.output_bias, {{at(TensorSlot::kOutputBias), c.hidden_size}});
    }
    if (w.sinks != nullptr) load.Sinks(w.sinks, attention, at(TensorSlot::kSinks));
    if (spec.sparse()) load.Matrix(w.router, at(TensorSlot::kRouter));
    if (w.router_bias != nullptr) {
      load.Vector(w.router_bias, {{at(TensorSlot::kRouterBias), w.router.n}});
    }
    if (w.router_correction != nullptr) {
      load.Vector(w.router_correction, {{at(TensorSlot::kRouterCorrection), w.router.n}});
    }
    if (w.expert_gate_bias != nullptr) {
      const int64_t width = spec.experts().expert.width;
      const std::array<std::pair<const float*, int64_t>, 3> biases = {
          {{w.expert_gate_bias, width},
           {w.expert_up_bias, width},
           {w.expert_down_bias, c.hidden_size}}};
      for (size_t matrix = 0; matrix < biases.size(); ++matrix) {
        const auto& [target, n] = biases[matrix];
        for (int64_t e = 0; e < w.router.n; ++e) {
          load.Vector(target + e * n, {{plan.At(kExpertBiasSlots[matrix], l, e), n}});
        }
      }
    }
    if (w.shared_gate.n > 0) load.Matrix(w.shared_gate, at(TensorSlot::kSharedGate));
    if (w.gate.n > 0) {
      const MlpSlots& mlp = spec.sparse() ? kSharedMlpSlots : kDenseMlpSlots;
      load.Matrix(w.gate, at(mlp[0]));
      load.Matrix(w.up, at(mlp[1]));
      load.Matrix(w.down, at(mlp[2]));
    }
  }
  return weights;
}

}  // namespace moesaic
