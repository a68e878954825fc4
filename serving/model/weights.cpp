#include "serving/model/weights.h"

#include <algorithm>
#include <array>
#include <string>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/device/numa_memory.h"
#include "serving/model/numa_slices.h"
#include "serving/model/tensor_names.h"

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
  std::string name;
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
      dtypes.push_back(source_.Require(part.name, shape));
      if (dtypes.back() != dtypes.front()) {
        Fail(ErrorKind::kUnsupported, "tensor {} is {} but {} is {}: they must be of one type",
             part.name, DTypeName(dtypes.back()), parts.front().name, DTypeName(dtypes.front()));
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

  void Matrix(const PackedMatrix& target, const std::string& name) {
    Matrix(target, {{name, target.n}});
  }

  void Vector(const float* target, const std::vector<RowPart>& parts) {
    auto* out = const_cast<float*>(target);
    for (const RowPart& part : parts) {
      const std::array<int64_t, 1> shape = {part.rows};
      const DType dtype = source_.Require(part.name, shape);
      std::byte* raw = Staging(part.rows * DTypeBits(dtype) / 8);
      source_.ReadRows(part.name, 0, part.rows, 1,
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
        source_.ReadRows(part.name, from - part_begin, to - part_begin, k, {out, bytes});
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

uint64_t ModelWeights::LayOut(const ModelConfig& c, WeightType type, std::byte* base,
                              std::vector<PackedMatrix>* matrices) {
  ArenaCursor arena(base, matrices);
  // A checkpoint whose values are not bf16 keeps its router exact: a rounded router picks other
  // experts.
  const WeightType router_type = c.checkpoint_dtype == DType::kBF16 && type != WeightType::kF32
                                     ? WeightType::kBf16
                                     : WeightType::kF32;
  const int64_t q_rows = c.num_heads * c.head_dim;
  const int64_t kv_rows = c.num_kv_heads * c.head_dim;
  // Four bits cost the output more than they save.
  const WeightType head_type = type == WeightType::kInt4 ? WeightType::kInt8 : type;
  head = arena.Matrix(head_type, c.vocab_size, c.hidden_size);
  embedding = c.tie_word_embeddings ? head : arena.Matrix(type, c.vocab_size, c.hidden_size);
  final_norm = arena.Vector(c.hidden_size);
  layers.assign(static_cast<size_t>(c.num_layers), LayerWeights{});
  for (size_t l = 0; l < layers.size(); ++l) {
    LayerWeights& w = layers[l];
    w.input_norm = arena.Vector(c.hidden_size);
    w.post_attention_norm = arena.Vector(c.hidden_size);
    w.qkv = arena.Matrix(type, q_rows + 2 * kv_rows, c.hidden_size);
    if (c.qkv_bias) w.qkv_bias = arena.Vector(q_rows + 2 * kv_rows);
    if (c.qk_norm == QkNorm::kPerHead) {
      w.q_norm = arena.Vector(c.head_dim);
      w.k_norm = arena.Vector(c.head_dim);
    } else if (c.qk_norm == QkNorm::kProjection) {
      w.q_norm = arena.Vector(q_rows);
      w.k_norm = arena.Vector(kv_rows);
    }
    w.output = arena.Matrix(type, c.hidden_size, q_rows);
    if (c.output_bias) w.output_bias = arena.Vector(c.hidden_size);
    int64_t intermediate = c.dense_intermediate_size;
    if (c.layer_is_sparse[l]) {
      w.router = arena.Matrix(router_type, c.num_experts, c.hidden_size);
      if (c.shared_expert_gate) w.shared_gate = arena.Matrix(router_type, 1, c.hidden_size);
      intermediate = c.shared_intermediate_size;
    }
    if (intermediate > 0) {
      w.gate = arena.Matrix(type, intermediate, c.hidden_size);
      w.up = arena.Matrix(type, intermediate, c.hidden_size);
      w.down = arena.Matrix(type, c.hidden_size, intermediate);
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
  const TensorNames names(c.family);
  Loader load(source, kernels, pool);
  const int64_t q_rows = c.num_heads * c.head_dim;
  const int64_t kv_rows = c.num_kv_heads * c.head_dim;
  load.Matrix(weights.embedding, names.Embedding());
  if (!c.tie_word_embeddings) load.Matrix(weights.head, names.Head());
  load.Vector(weights.final_norm, {{names.FinalNorm(), c.hidden_size}});
  for (int64_t l = 0; l < c.num_layers; ++l) {
    const LayerWeights& w = weights.layers[static_cast<size_t>(l)];
    load.Vector(w.input_norm, {{names.InputNorm(l), c.hidden_size}});
    load.Vector(w.post_attention_norm, {{names.PostAttentionNorm(l), c.hidden_size}});
    load.Matrix(w.qkv, {{names.Attention(l, "q_proj", "weight"), q_rows},
                        {names.Attention(l, "k_proj", "weight"), kv_rows},
                        {names.Attention(l, "v_proj", "weight"), kv_rows}});
    if (w.qkv_bias != nullptr) {
      load.Vector(w.qkv_bias, {{names.Attention(l, "q_proj", "bias"), q_rows},
                               {names.Attention(l, "k_proj", "bias"), kv_rows},
                               {names.Attention(l, "v_proj", "bias"), kv_rows}});
    }
    if (w.q_norm != nullptr) {
      const bool whole = c.qk_norm == QkNorm::kProjection;
      load.Vector(w.q_norm,
                  {{names.Attention(l, "q_norm", "weight"), whole ? q_rows : c.head_dim}});
      load.Vector(w.k_norm,
                  {{names.Attention(l, "k_norm", "weight"), whole ? kv_rows : c.head_dim}});
    }
    load.Matrix(w.output, names.Attention(l, "o_proj", "weight"));
    if (w.output_bias != nullptr) {
      load.Vector(w.output_bias, {{names.Attention(l, "o_proj", "bias"), c.hidden_size}});
    }
    const bool sparse = c.layer_is_sparse[static_cast<size_t>(l)] != 0;
    if (sparse) load.Matrix(w.router, names.Router(l));
    if (w.shared_gate.n > 0) load.Matrix(w.shared_gate, names.SharedExpertGate(l));
    if (w.gate.n > 0) {
      const MlpTensorNames mlp = sparse ? names.SharedExpert(l) : names.DenseMlp(l);
      load.Matrix(w.gate, mlp.gate);
      load.Matrix(w.up, mlp.up);
      load.Matrix(w.down, mlp.down);
    }
  }
  return weights;
}

}  // namespace moesaic
