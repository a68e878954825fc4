// The queries of one token on one KV head as one would write them first, for the compiler to
// vectorise: keys and values are rows [context, d] of bf16, read once, for all heads of the group.
//
// plain_attention.cpp is compiled twice: with the flags of the kernels, and with -ffast-math,
// without which no compiler vectorises the sum of a score.
#pragma once

#include <cstdint>

namespace moesaic {

// q, out: [group, d]; scores: [group, context].
using PlainAttentionFunction = void(const uint16_t* keys, const uint16_t* values, const float* q,
                                    int64_t group, int64_t context, int64_t d, float scale,
                                    float* scores, float* out);
PlainAttentionFunction PlainAttention;
PlainAttentionFunction PlainAttentionFastMath;

}  // namespace moesaic
