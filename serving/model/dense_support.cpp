// What a model's dense part may be made of for GPUs to compute it.

#include "core/base/error.h"
#include "serving/model/dense_sizes.h"
#include "serving/model/dense_slices.h"
#include "serving/model/device_dense.h"

namespace moesaic {
namespace {

// What kernels are not told of it yet. One overload for each alternative of MixerSpec.
const char* WhyNot(const GroupedQuerySpec& spec) {
  if (spec.output_bias) return "biases of attention's output";
  if (spec.sinks) return "sinks of attention";
  if (spec.output_gate) return "gates of attention";
  if (spec.clip_qkv > 0) return "clipped queries, keys and values";
  if (spec.head_dim % 2 != 0 || spec.head_dim > cuda::kMaxHeadDim) return "heads of this size";
  return nullptr;
}

const char* WhyNot(const LatentSpec&) { return "layers of latent attention"; }
const char* WhyNot(const DeltaNetSpec&) { return "layers of linear attention"; }

const char* WhyNot(const RouterSpec& router) {
  if (router.experts > cuda::kMaxExperts) return "routers of so many experts";
  if (router.score != ScoreFunction::kSoftmax && router.score != ScoreFunction::kSigmoid) {
    return "routers other than softmax and sigmoid";
  }
  if (router.logit_bias) return "biases of routers' logits";
  if (router.num_groups > cuda::kMaxGroups) return "so many groups of experts";
  if (router.norm != RouterNorm::kNone && router.norm != RouterNorm::kSum &&
      router.norm != RouterNorm::kSumPlusEps) {
    return "expert weights normalised so";
  }
  return nullptr;
}

// What of a layer devices have no kernels for, which the host then runs; null: nothing.
const char* WhyNotOnDevices(const LayerSpec& layer) {
  const char* const why = std::visit([](const auto& mixer) { return WhyNot(mixer); }, layer.mixer);
  if (why != nullptr) return why;
  if (layer.residual_scale != 1.0) return "scaled residuals";
  if (layer.routes_first()) return "experts that read a layer's input";
  if (layer.norm.centred) return "norms that subtract the mean";
  if (!layer.sparse()) return nullptr;
  const MlpSpec& expert = layer.experts().expert;
  if (expert.bias) return "the layers of experts with biases";
  if (expert.activation != Activation::kSilu) return "the layers of experts with this activation";
  return WhyNot(layer.experts().router);
}

void RequireOnDevices(const char* why_not) {
  if (why_not == nullptr) return;
  Fail(ErrorKind::kUnsupported,
       "--gpu-dense: {} are not computed on GPUs yet; the CPU does it with --gpu-dense auto or off",
       why_not);
}

}  // namespace

cuda::Weights GpuWeights(WeightType type) {
  switch (TraitsOf(type).dense) {
    case WeightType::kBf16:
      return cuda::Weights::kBf16;
    case WeightType::kInt8:
      return cuda::Weights::kInt8;
    case WeightType::kInt4:
      return cuda::Weights::kInt4;
    case WeightType::kFp8:
      return cuda::Weights::kFp8;
    case WeightType::kF32:
    case WeightType::kMxfp4:  // is not of the dense part
    case WeightType::kMxfp4F32:
    case WeightType::kGguf:
    case WeightType::kGgufF32:
    case WeightType::kW4A16:  // likewise
    case WeightType::kBf16Coded:
      break;
  }
  Fail(ErrorKind::kUnsupported, "--gpu-dense: no kernel takes {} weights; give --dtype bfloat16",
       TraitsOf(type).dtype);
}

void DeviceDense::CheckSupported(const ModelConfig& config, WeightType type, WeightType kv_type,
                                 int devices) {
  GpuWeights(type);
  if (kv_type != WeightType::kBf16) {
    Fail(ErrorKind::kUnsupported,
         "--gpu-dense: no kernel takes keys and values in {}; give --kv-cache-dtype bfloat16, or "
         "--gpu-dense off",
         kv_type == WeightType::kF32 ? "float32" : WeightTypeName(kv_type));
  }
  for (const LayerSpec& layer : config.layers) RequireOnDevices(WhyNotOnDevices(layer));
  const bool scaled = config.embedding_scale != 1.0 || config.logit_divisor != 1.0;
  RequireOnDevices(scaled ? "scaled embeddings and logits" : nullptr);
  if (devices > 1) CheckSliceable(config, devices);
}

}  // namespace moesaic
