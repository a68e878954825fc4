#include "serving/model/latent_weights.h"

#include <optional>
#include <vector>

namespace moesaic {
namespace {

int64_t WholePanels(int64_t n) { return (n + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs; }

// Matrices of heads lie one after the other, each from a panel on.
PackedMatrix OfHead(const PackedMatrix& all, int64_t n, int64_t head) {
  return all.From(head * WholePanels(n) / kPanelOutputs, n);
}

}  // namespace

PackedMatrix LatentWeights::KeysOf(const LatentSpec& spec, int64_t head) const {
  return OfHead(keys, spec.kv_rank, head);
}

PackedMatrix LatentWeights::ValuesOf(const LatentSpec& spec, int64_t head) const {
  return OfHead(values, spec.value_dim, head);
}

namespace {

// Whether the rows of keys, which become inputs, have one scale for each group of them, and a
// head's rows are those of whole blocks.
bool KeysStayFp8(const LatentSpec& spec, const WeightArena& arena) {
  const std::optional<BlockScales> blocks = arena.Fp8Blocks(TensorSlot::kKvUp, spec.kv_rank);
  if (!blocks) return false;
  const int64_t head_rows = spec.nope_dim + spec.value_dim;
  for (int64_t head = 0; head < spec.heads; ++head) {
    for (int64_t i = 0; i < spec.nope_dim; ++i) {
      const int64_t row = head * head_rows + i;
      if (row / blocks->rows != (row - i % kQuantGroup) / blocks->rows) return false;
    }
  }
  return true;
}

WeightType AbsorbedType(const LatentSpec& spec, WeightType type, const WeightArena& arena) {
  if (type == WeightType::kF32 || IsGguf(type)) return WeightType::kF32;
  if (type != WeightType::kFp8 || !arena.Fp8Blocks(TensorSlot::kKvUp, spec.kv_rank)) {
    return WeightType::kBf16;
  }
  return KeysStayFp8(spec, arena) ? WeightType::kFp8 : WeightType::kF32;
}

// What LoadMixer says of kKvUp, of weights that stay fp8; false: the source has floats.
bool LoadFp8Up(const LatentSpec& spec, const LatentWeights& w, const PlannedTensor& up,
               WeightLoader& load) {
  const int64_t head_rows = spec.nope_dim + spec.value_dim;
  const int64_t rank = spec.kv_rank;
  const int64_t groups = (rank + kQuantGroup - 1) / kQuantGroup;
  const int64_t turned_groups = (spec.nope_dim + kQuantGroup - 1) / kQuantGroup;
  std::vector<std::byte> codes(static_cast<size_t>(head_rows * rank));
  std::vector<float> scales(static_cast<size_t>(head_rows * groups));
  std::vector<std::byte> turned(static_cast<size_t>(rank * spec.nope_dim));
  std::vector<float> turned_scales(static_cast<size_t>(rank * turned_groups));
  for (int64_t head = 0; head < spec.heads; ++head) {
    if (!load.Fp8Rows(up, spec.heads * head_rows, rank, head * head_rows, (head + 1) * head_rows,
                      codes.data(), scales.data())) {
      return false;
    }
    for (int64_t j = 0; j < rank; ++j) {
      for (int64_t i = 0; i < spec.nope_dim; ++i) {
        turned[static_cast<size_t>(j * spec.nope_dim + i)] =
            codes[static_cast<size_t>(i * rank + j)];
      }
      for (int64_t group = 0; group < turned_groups; ++group) {
        turned_scales[static_cast<size_t>(j * turned_groups + group)] =
            scales[static_cast<size_t>(group * kQuantGroup * groups + j / kQuantGroup)];
      }
    }
    load.PackFp8(w.KeysOf(spec, head), turned.data(), turned_scales.data());
    load.PackFp8(w.ValuesOf(spec, head), codes.data() + spec.nope_dim * rank,
                 scales.data() + spec.nope_dim * groups);
  }
  return true;
}

IndexerWeights LayOutIndexer(const LatentSpec& spec, int64_t hidden, WeightType type,
                             WeightArena& arena) {
  IndexerWeights w;
  if (spec.indexer.heads == 0) return w;
  const WeightType chooses = type == WeightType::kInt4 ? WeightType::kInt8 : type;
  const bool exact = type == WeightType::kF32 || IsGguf(type);
  w.query = arena.Matrix(chooses, spec.indexer.heads * spec.indexer.dim, spec.q_rank,
                         TensorSlot::kIndexQ);
  w.key = arena.Matrix(chooses, spec.indexer.dim, hidden, TensorSlot::kIndexK);
  w.key_norm = arena.Vector(spec.indexer.dim);
  w.key_bias = arena.Vector(spec.indexer.dim);
  w.heads = arena.Matrix(exact ? WeightType::kF32 : WeightType::kBf16, spec.indexer.heads, hidden,
                         TensorSlot::kIndexHeads);
  return w;
}

void LoadIndexer(const LatentSpec& spec, const IndexerWeights& w, const TensorPlan& plan,
                 int64_t layer, WeightLoader& load) {
  if (spec.indexer.heads == 0) return;
  const auto at = [&](TensorSlot slot) { return plan.At(slot, layer); };
  load.Matrix(w.query, at(TensorSlot::kIndexQ));
  load.Matrix(w.key, at(TensorSlot::kIndexK));
  load.Vector(w.key_norm, {{at(TensorSlot::kIndexKNorm), spec.indexer.dim}});
  load.Vector(w.key_bias, {{at(TensorSlot::kIndexKNormBias), spec.indexer.dim}});
  load.Matrix(w.heads, at(TensorSlot::kIndexHeads));
}

}  // namespace

LatentWeights LayOutMixer(const LatentSpec& spec, int64_t hidden, WeightType type,
                          WeightArena& arena) {
  const auto absorbed = [&](int64_t n, int64_t k, TensorSlot slot) {
    return arena.KeepsBlocks(type, k, slot) ? arena.Matrix(type, n, k, slot)
                                            : arena.Computed(AbsorbedType(spec, type, arena), n, k);
  };
  LatentWeights w;
  if (spec.q_rank > 0) {
    w.query_down = arena.Matrix(type, spec.q_rank, hidden, TensorSlot::kQDown);
    w.query_norm = arena.Vector(spec.q_rank);
  }
  w.query = arena.Matrix(type, spec.heads * spec.query_dim(),
                         spec.q_rank > 0 ? spec.q_rank : hidden, TensorSlot::kQ);
  w.down = arena.Matrix(type, spec.row_width(), hidden, TensorSlot::kKvDown);
  TakeSameActivations({spec.q_rank > 0 ? &w.query_down : &w.query, &w.down});
  w.norm = arena.Vector(spec.kv_rank);
  w.keys = absorbed(spec.heads * WholePanels(spec.kv_rank), spec.nope_dim, TensorSlot::kKeyUp);
  w.values = absorbed(spec.heads * WholePanels(spec.value_dim), spec.kv_rank, TensorSlot::kValueUp);
  w.output = arena.Matrix(type, hidden, spec.output_width(), TensorSlot::kOutput);
  w.indexer = LayOutIndexer(spec, hidden, type, arena);
  return w;
}

void LoadMixer(const LatentSpec& spec, const LatentWeights& w, const TensorPlan& plan,
               int64_t layer, WeightLoader& load) {
  const auto at = [&](TensorSlot slot) { return plan.At(slot, layer); };
  if (w.query_down.n > 0) {
    load.Matrix(w.query_down, at(TensorSlot::kQDown));
    load.Norm(w.query_norm, spec.norm, at(TensorSlot::kQDownNorm), spec.q_rank);
  }
  load.Matrix(w.query, at(TensorSlot::kQ));
  load.Matrix(w.down, at(TensorSlot::kKvDown));
  load.Norm(w.norm, spec.norm, at(TensorSlot::kKvDownNorm), spec.kv_rank);
  load.Matrix(w.output, at(TensorSlot::kOutput));
  LoadIndexer(spec, w.indexer, plan, layer, load);

  if (!plan.Has(TensorSlot::kKvUp)) {
    for (int64_t head = 0; head < spec.heads; ++head) {
      load.Matrix(w.KeysOf(spec, head), plan.At(TensorSlot::kKeyUp, layer, head));
      load.Matrix(w.ValuesOf(spec, head), plan.At(TensorSlot::kValueUp, layer, head));
    }
    return;
  }
  const int64_t head_rows = spec.nope_dim + spec.value_dim;
  const PlannedTensor up = at(TensorSlot::kKvUp);
  if (w.keys.type == WeightType::kFp8 && LoadFp8Up(spec, w, up, load)) return;
  std::vector<float> rows(static_cast<size_t>(head_rows * spec.kv_rank));
  std::vector<float> turned(static_cast<size_t>(spec.nope_dim * spec.kv_rank));
  for (int64_t head = 0; head < spec.heads; ++head) {
    load.Rows(up, spec.heads * head_rows, spec.kv_rank, head * head_rows, (head + 1) * head_rows,
              rows.data());
    for (int64_t i = 0; i < spec.nope_dim; ++i) {
      for (int64_t j = 0; j < spec.kv_rank; ++j) {
        turned[static_cast<size_t>(j * spec.nope_dim + i)] =
            rows[static_cast<size_t>(i * spec.kv_rank + j)];
      }
    }
    load.Pack(w.KeysOf(spec, head), turned.data());
    load.Pack(w.ValuesOf(spec, head), rows.data() + spec.nope_dim * spec.kv_rank);
  }
}

}  // namespace moesaic
