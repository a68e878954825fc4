#include "core/config/served_layers.h"

#include <array>
#include <type_traits>
#include <variant>

#include "core/base/error.h"

namespace moesaic {
namespace {

class LayerCheck {
 public:
  LayerCheck(std::string_view file, int64_t layer) : file_(file), layer_(layer) {}

  // The field of this layer against the same of an earlier one.
  void Same(std::string_view field, int64_t value, int64_t first, int64_t first_layer) const {
    if (value == first) return;
    Fail(ErrorKind::kUnsupported,
         "{}: layer {}: {} is {}, and {} in layer {}; layers that differ in it are not supported",
         file_, layer_, field, value, first, first_layer);
  }
  void Refuse(bool has, std::string_view what) const {
    if (!has) return;
    Fail(ErrorKind::kUnsupported, "{}: layer {}: {} not supported", file_, layer_, what);
  }
  // Of each kind of mixer the blocks of the cache, and slots of state, have one size, and there is
  // one table of rotations.
  void Mixer(const GroupedQuerySpec& attention, const GroupedQuerySpec& first,
             int64_t first_layer) const {
    Same("heads", attention.heads, first.heads, first_layer);
    Same("kv_heads", attention.kv_heads, first.kv_heads, first_layer);
    Same("head_dim", attention.head_dim, first.head_dim, first_layer);
    Same("rotary_dim", attention.rotary_dim, first.rotary_dim, first_layer);
    Rope(attention.rope, first.rope, first_layer);
    Refuse(attention.rope_form != RopeForm::kHalf, "interleaved rope is");
  }
  void Mixer(const LatentSpec& latent, const LatentSpec& first, int64_t first_layer) const {
    Same("heads", latent.heads, first.heads, first_layer);
    Same("q_rank", latent.q_rank, first.q_rank, first_layer);
    Same("kv_rank", latent.kv_rank, first.kv_rank, first_layer);
    Same("nope_dim", latent.nope_dim, first.nope_dim, first_layer);
    Same("rope_dim", latent.rope_dim, first.rope_dim, first_layer);
    Same("value_dim", latent.value_dim, first.value_dim, first_layer);
    Same("index_topk", latent.top_k, first.top_k, first_layer);
    Refuse(latent.indexer.heads > 0 && !(latent.indexer == first.indexer),
           fmt::format("an indexer other than that of layer {} is", first_layer));
    Rope(latent.rope, first.rope, first_layer);
  }
  void Mixer(const DeltaNetSpec& delta, const DeltaNetSpec& first, int64_t first_layer) const {
    Same("key_heads", delta.key_heads, first.key_heads, first_layer);
    Same("value_heads", delta.value_heads, first.value_heads, first_layer);
    Same("key_dim", delta.key_dim, first.key_dim, first_layer);
    Same("value_dim", delta.value_dim, first.value_dim, first_layer);
    Same("conv_width", delta.conv_width, first.conv_width, first_layer);
    Refuse(delta.conv_width > kMostConvWidth,
           fmt::format("a convolution over {} tokens is", delta.conv_width));
  }
  void Rope(const RopeConfig& rope, const RopeConfig& first, int64_t first_layer) const {
    Refuse(!(rope == first), fmt::format("rope other than that of layer {} is", first_layer));
  }
  void DenseMlp(const MlpSpec& mlp, std::string_view what) const {
    Refuse(mlp.width > 0 && !mlp.gated, fmt::format("{} without a gate matrix is", what));
    Refuse(mlp.width > 0 && mlp.bias, fmt::format("biases of {} are", what));
    Refuse(mlp.width > 0 && mlp.activation != Activation::kSilu,
           fmt::format("an activation other than silu of {} is", what));
  }

 private:
  std::string_view file_;
  int64_t layer_;
};

}  // namespace

void CheckServedLayers(const ModelConfig& model, std::string_view file) {
  if (model.num_attention_layers() == 0) {
    Fail(ErrorKind::kUnsupported,
         "{}: no layer has softmax attention; models without any are not supported", file);
  }
  std::array<int64_t, std::variant_size_v<MixerSpec>> first_mixers;  // layers
  first_mixers.fill(-1);
  int64_t first_sparse = -1;
  for (int64_t l = 0; l < model.num_layers(); ++l) {
    const LayerSpec& layer = model.layer(l);
    const LayerCheck check(file, l);
    int64_t& first = first_mixers[layer.mixer.index()];
    if (first < 0) first = l;
    std::visit(
        [&](const auto& mixer) {
          using Spec = std::decay_t<decltype(mixer)>;
          check.Mixer(mixer, std::get<Spec>(model.layer(first).mixer), first);
        },
        layer.mixer);
    if (!layer.sparse()) {
      check.DenseMlp(layer.dense_mlp(), "a dense MLP");
      continue;
    }
    // Experts are a grid of layers and numbers, in slots of one size.
    const ExpertsSpec& experts = layer.experts();
    if (first_sparse < 0) first_sparse = l;
    const ExpertsSpec& other = model.layer(first_sparse).experts();
    check.Same("experts", experts.router.experts, other.router.experts, first_sparse);
    check.Same("top_k", experts.router.top_k, other.router.top_k, first_sparse);
    check.Same("the experts' width", experts.expert.width, other.expert.width, first_sparse);
    check.Refuse(
        experts.read_input != other.read_input,
        fmt::format("experts that read something else than those of layer {} are", first_sparse));
    check.Refuse(experts.read_input && experts.shared_gate,
                 "a gate of the MLP beside experts that read the layer's input is");
    const MlpSpec& expert = experts.expert;
    const MlpSpec& first_expert = other.expert;
    check.Refuse(expert.bias != first_expert.bias || expert.activation != first_expert.activation ||
                     expert.swiglu_alpha != first_expert.swiglu_alpha ||
                     expert.swiglu_limit != first_expert.swiglu_limit,
                 fmt::format("experts other than those of layer {} are", first_sparse));
    check.Refuse(experts.router.num_groups > kMostRouterGroups,
                 fmt::format("{} groups of experts are", experts.router.num_groups));
    check.Refuse(!experts.expert.gated, "an expert without a gate matrix is");
    check.DenseMlp(experts.shared, "a shared expert");
  }
  if (first_sparse < 0) {
    Fail(ErrorKind::kUnsupported,
         "{}: no layer has experts; this program serves mixture-of-experts models only", file);
  }
}

}  // namespace moesaic
