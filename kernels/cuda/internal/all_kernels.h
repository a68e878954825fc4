// The table of the kernels that are linked. Internal to kernels/cuda and its compilation for the
// host.
#pragma once

#include "kernels/cuda/kernels.h"

namespace moesaic::cuda {

constexpr Kernels kLinkedKernels = {.rms_norm = RmsNorm,
                                    .rope = Rope,
                                    .embedding = Embedding,
                                    .swiglu = SwiGlu,
                                    .add_gated = AddGated,
                                    .argmax = ArgMax,
                                    .join_columns = JoinColumns,
                                    .router_logits = RouterLogits,
                                    .router_top_k = RouterTopK,
                                    .group_rows = GroupRows,
                                    .look_up_experts = LookUpExperts,
                                    .tell_host = TellHost,
                                    .combine_slots = CombineSlots,
                                    .product = Product,
                                    .store_kv = StoreKv,
                                    .attention_workspace_floats = AttentionWorkspaceFloats,
                                    .attention = Attention};

}  // namespace moesaic::cuda
