// What a model's dense part may be made of for GPUs to compute it.

#include "core/base/error.h"
#include "serving/model/dense_operator.h"
#include "serving/model/dense_sizes.h"

namespace moesaic {
namespace {

[[noreturn]] void RefuseOnGpus(const char* what) {
  Fail(ErrorKind::kUnsupported,
       "--gpu-dense: {} are not computed on GPUs yet; the CPU does it with --gpu-dense auto or off",
       what);
}

// The kernel does more, of which nothing is passed on to it yet.
void CheckRouter(const RouterSpec& router) {
  if (router.experts > cuda::kMaxExperts) RefuseOnGpus("routers of so many experts");
  if (router.score != ScoreFunction::kSoftmax) RefuseOnGpus("routers other than softmax");
  if (router.logit_bias || router.correction_bias) RefuseOnGpus("biases of routers");
  if (router.groups_kept != router.num_groups) RefuseOnGpus("groups of experts");
  if (router.norm != RouterNorm::kNone && router.norm != RouterNorm::kSum) {
    RefuseOnGpus("expert weights normalised so");
  }
  if (router.scale != 1.0) RefuseOnGpus("scaled expert weights");
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
    case WeightType::kF32:
    case WeightType::kMxfp4:  // is not of the dense part
      break;
  }
  Fail(ErrorKind::kUnsupported, "--gpu-dense: no kernel takes {} weights; give --dtype bfloat16",
       TraitsOf(type).dtype);
}

void DenseOperator::CheckSupported(const ModelConfig& c, WeightType type, WeightType kv_type) {
  GpuWeights(type);
  if (kv_type != WeightType::kBf16) {
    Fail(ErrorKind::kUnsupported,
         "--gpu-dense: no kernel takes keys and values in {}; give --kv-cache-dtype bfloat16, or "
         "--gpu-dense off",
         kv_type == WeightType::kF32 ? "float32" : WeightTypeName(kv_type));
  }
  for (const LayerSpec& layer : c.layers) {
    const GroupedQuerySpec& attention = layer.attention();
    if (attention.qkv_bias || attention.output_bias) RefuseOnGpus("biases of attention");
    if (attention.sinks) RefuseOnGpus("sinks of attention");
    if (attention.clip_qkv > 0) RefuseOnGpus("clipped queries, keys and values");
    if (attention.head_dim % 2 != 0 || attention.head_dim > cuda::kMaxHeadDim) {
      RefuseOnGpus("heads of this size");
    }
    if (attention.rotary_dim != attention.head_dim) RefuseOnGpus("rotations of a part of a head");
    if (layer.sparse()) CheckRouter(layer.experts().router);
  }
}

}  // namespace moesaic
