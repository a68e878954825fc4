#include "serving/model/dense_slices.h"

#include <algorithm>
#include <initializer_list>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/device/device.h"
#include "kernels/cpu/product_grid.h"
#include "kernels/cuda/rows.h"

namespace moesaic {
namespace {

// Hands out the part's memory and notes what goes there. With a null base it only measures.
class Cursor {
 public:
  Cursor(std::byte* base, std::vector<DenseSlices::Piece>& pieces) : base_(base), pieces_(pieces) {}

  // Rows of a matrix, one range below the other. They begin at whole panels, and end there or with
  // the matrix.
  PackedMatrix Rows(const PackedMatrix& whole, std::initializer_list<RowRange> ranges) {
    PackedMatrix part = {At(), whole.type, 0, whole.k, whole.form};
    for (const RowRange& rows : ranges) {
      if (rows.count() == 0) continue;
      CHECK_EQ(rows.begin % kPanelOutputs, 0);
      CHECK_EQ(part.n % kPanelOutputs, 0);
      const auto first = static_cast<uint64_t>(rows.begin / kPanelOutputs * whole.panel_bytes());
      PackedMatrix range = whole;
      range.n = rows.count();
      Take(whole.data, first, range.bytes());
      part.n += rows.count();
    }
    Align();
    return part;
  }
  PackedMatrix All(const PackedMatrix& whole) { return Rows(whole, {{0, whole.n}}); }

  const float* Vector(const float* whole, int64_t n) { return Values(whole, {{0, n}}); }
  // Of a vector, one range behind the other.
  const float* Values(const float* whole, std::initializer_list<RowRange> ranges) {
    const auto* const at = reinterpret_cast<const float*>(At());
    for (const RowRange& range : ranges) {
      Take(reinterpret_cast<const std::byte*>(whole),
           static_cast<uint64_t>(range.begin) * sizeof(float),
           range.count() * static_cast<int64_t>(sizeof(float)));
    }
    Align();
    return at;
  }

  uint64_t used_bytes() const { return used_bytes_; }

 private:
  const std::byte* At() const { return base_ == nullptr ? nullptr : base_ + used_bytes_; }
  void Take(const std::byte* whole, uint64_t offset, int64_t bytes) {
    const auto size = static_cast<uint64_t>(bytes);
    if (base_ != nullptr) pieces_.push_back({used_bytes_, {whole + offset, size}});
    used_bytes_ += size;
  }
  void Align() { used_bytes_ = RoundUp(used_bytes_, Device::kAlignment); }

  std::byte* const base_;
  std::vector<DenseSlices::Piece>& pieces_;
  uint64_t used_bytes_ = 0;
};

}  // namespace

RowRange OutputSlice(int64_t n, int devices, int device) {
  const PanelRange panels = PanelSlice((n + kPanelOutputs - 1) / kPanelOutputs, devices, device);
  return {std::min(n, panels.begin * kPanelOutputs), std::min(n, panels.end * kPanelOutputs)};
}

RowRange KvHeadSlice(int64_t kv_heads, int devices, int device) {
  return {kv_heads * device / devices, kv_heads * (device + 1) / devices};
}

void CheckSliceable(const ModelConfig& config, int devices) {
  if (devices > cuda::JoinColumnsArgs::kMostPieces) {
    Fail(ErrorKind::kUnsupported,
         "--gpu-dense tp: at most {} devices share the dense part, not {}; give --gpu-dense on",
         cuda::JoinColumnsArgs::kMostPieces, devices);
  }
  const int64_t head_dim = config.attention().head_dim;
  if (head_dim % kPanelOutputs != 0) {
    Fail(ErrorKind::kUnsupported,
         "--gpu-dense tp: heads of {} values cannot be shared out, only those of a multiple of {}; "
         "give --gpu-dense on",
         head_dim, kPanelOutputs);
  }
}

uint64_t DenseSlices::LayOut(const ModelConfig& c, const ModelWeights& whole, int devices,
                             int device, std::byte* base) {
  Cursor take(base, pieces_);
  const auto outputs = [&](const PackedMatrix& matrix) {
    return take.Rows(matrix, {OutputSlice(matrix.n, devices, device)});
  };
  const bool first = device == 0;
  const RowRange vocabulary = OutputSlice(c.vocab_size, devices, device);
  if (first) {
    weights_.embedding = take.All(whole.embedding);
    // The first device's slice of the head is the beginning of the embedding, when they are tied.
    weights_.head = weights_.embedding;
    weights_.head.n = vocabulary.end;
  }
  if (!first || !c.tie_word_embeddings) weights_.head = outputs(whole.head);
  weights_.final_norm = take.Vector(whole.final_norm, c.hidden_size);

  weights_.layers.assign(whole.layers.size(), LayerWeights{});
  for (size_t l = 0; l < whole.layers.size(); ++l) {
    const LayerWeights& from = whole.layers[l];
    LayerWeights& w = weights_.layers[l];
    const GroupedQuerySpec& attention = c.layers[l].attention();
    const RowRange kv = KvHeadSlice(attention.kv_heads, devices, device);
    const int64_t group = attention.group();
    const int64_t d = attention.head_dim;
    const int64_t keys = attention.q_width();  // where they begin
    const int64_t values = keys + attention.kv_width();
    w.input_norm = take.Vector(from.input_norm, c.hidden_size);
    w.post_attention_norm = take.Vector(from.post_attention_norm, c.hidden_size);
    const GroupedQueryWeights& whole_mixer = from.attention();
    GroupedQueryWeights mixer;
    const std::initializer_list<RowRange> heads = {{kv.begin * group * d, kv.end * group * d},
                                                   {keys + kv.begin * d, keys + kv.end * d},
                                                   {values + kv.begin * d, values + kv.end * d}};
    mixer.qkv.matrices = {take.Rows(whole_mixer.qkv.whole(), heads)};
    if (attention.qkv_bias) mixer.qkv_bias = take.Values(whole_mixer.qkv_bias, heads);
    if (attention.qk_norm != QkNorm::kNone) {
      mixer.q_norm = take.Vector(whole_mixer.q_norm, QNormWidth(attention));
      mixer.k_norm = take.Vector(whole_mixer.k_norm, KNormWidth(attention));
    }
    mixer.output = outputs(whole_mixer.output);
    w.mixer = mixer;
    if (first && from.router.n > 0) w.router = take.All(from.router);
    if (first && c.layers[l].sparse() && c.layers[l].experts().router.correction_bias) {
      w.router_correction = take.Vector(from.router_correction, from.router.n);
    }
    if (first && from.shared_gate.n > 0) w.shared_gate = take.All(from.shared_gate);
    if (from.gate.n > 0) {
      w.gate = outputs(from.gate);
      w.up = outputs(from.up);
      w.down = outputs(from.down);
    }
  }
  return take.used_bytes();
}

uint64_t DenseSlices::Bytes(const ModelConfig& config, WeightType type, int devices, int device) {
  DenseSlices measured;
  return measured.LayOut(config, ModelWeights::Shapes(config, type), devices, device, nullptr);
}

DenseSlices::DenseSlices(const ModelConfig& config, const ModelWeights& whole, int devices,
                         int device, std::byte* base) {
  LayOut(config, whole, devices, device, base);
}

}  // namespace moesaic
