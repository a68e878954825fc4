// RouterSpec: how the experts of a token are chosen and weighted, as data.
//
//   logits = W x (+ logit bias)              in f32
//   score  = ScoreFunction(logits)
//   choice = score (+ correction bias)       for the choice only
//   groups : with num_groups > 1 only experts of the groups_kept best groups are chosen
//   ids    = the top_k largest choices; the lower expert of equals
//   weight = scale * norm(score[ids])
//
// Plain data.
#pragma once

#include <cstdint>

namespace moesaic {

enum class ScoreFunction { kSoftmax, kSigmoid, kSqrtSoftplus, kLogit };

// What a group of experts is worth, by the choices of its experts.
enum class GroupRule { kMax, kTopTwoSum };

enum class RouterNorm {
  kNone,
  kSum,            // w / sum(w)
  kSumPlusEps,     // w / (sum(w) + norm_eps)
  kSumAtLeastEps,  // w / max(sum(w), norm_eps)
  kSoftmax,        // exp(w) / sum(exp(w))
};

inline constexpr int64_t kMostRouterGroups = 256;

struct RouterSpec {
  int64_t experts = 0;
  int64_t top_k = 0;
  ScoreFunction score = ScoreFunction::kSoftmax;
  bool logit_bias = false;
  bool correction_bias = false;
  int64_t num_groups = 1;  // of experts / num_groups consecutive experts
  int64_t groups_kept = 1;
  GroupRule group_rule = GroupRule::kMax;
  RouterNorm norm = RouterNorm::kNone;
  double norm_eps = 0.0;
  double scale = 1.0;
  bool f32_weights = false;  // checkpoints of any type have its matrix in f32, and it stays so
};

}  // namespace moesaic
