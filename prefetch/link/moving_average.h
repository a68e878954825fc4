// MovingAverage: the mean of a measured time that may change while it serves.
#pragma once

namespace moesaic {

// Folds the newest sample into the mean; 0 before the first. A change from prefill to decode is
// followed within a step.
inline void MovingAverage(double sample, double& mean) {
  constexpr double kNewest = 0.1;
  mean = mean == 0 ? sample : mean + kNewest * (sample - mean);
}

}  // namespace moesaic
