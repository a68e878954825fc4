// NormSpec: an RMSNorm as data. Plain data.
#pragma once

namespace moesaic {

struct NormSpec {
  double eps = 1e-6;
  bool plus_one = false;  // what is multiplied with is 1 + weight; weights are loaded so

  bool operator==(const NormSpec&) const = default;
};

}  // namespace moesaic
