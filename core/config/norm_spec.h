// NormSpec: an RMSNorm, or a LayerNorm without bias, as data. Plain data.
#pragma once

namespace moesaic {

struct NormSpec {
  double eps = 1e-6;
  bool plus_one = false;  // what is multiplied with is 1 + weight; weights are loaded so
  // The mean is subtracted first: a LayerNorm. Only of layers' and final norms.
  bool centred = false;

  bool operator==(const NormSpec&) const = default;
};

}  // namespace moesaic
