#include "serving/online/step_ways.h"

#include <algorithm>
#include <bit>

#include "serving/online/module_batch_plan.h"

namespace moesaic {
namespace {

constexpr double kNew = 0.125;         // weight of the last step in an average
constexpr double kForget = 0.99;       // of the best rate, a step
constexpr double kGain = 0.97;         // of the other way's time, from which it is worth a change
constexpr int64_t kLeastMeasured = 4;  // steps, before anything is said of a way

void Average(double value, int64_t steps, double& average) {
  average = steps == 0 ? value : average + kNew * (value - average);
}

}  // namespace

StepWays::Class& StepWays::ClassOf(int64_t rows, bool decodes) {
  const int number = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(rows, 1))) - 1;
  return classes_[decodes ? 1 : 0][static_cast<size_t>(std::min(number, kClasses - 1))];
}

// By the times of the modules in the way that was measured.
bool StepWays::Foretold(const Class& of) const {
  if (of.foreseen.steps < kLeastMeasured || bytes_per_us_ <= 0) return false;
  const double reading_us = of.foreseen.bytes / bytes_per_us_;
  const double whole_us = std::max(of.foreseen.computing_us, reading_us) +
                          reading_us / static_cast<double>(experts_.layers);
  return whole_us < kGain * of.foreseen.total_us;
}

bool StepWays::AsModuleBatch(int64_t rows, bool decodes, bool reads) {
  if (choice_ == ModuleBatches::kOff || !reads || experts_.layers == 0 ||
      UsedShare(experts_.of_layer, experts_.top_k, rows) < kUsedShareOfModuleBatch) {
    return false;
  }
  if (choice_ == ModuleBatches::kOn) return true;
  Class& of = ClassOf(rows, decodes);
  if (of.whole.steps == 0 && !Foretold(of)) return false;
  if (of.whole.steps < kLeastMeasured) return true;
  const bool faster = of.whole.total_us < kGain * of.foreseen.total_us;
  if (++of.since_tried < kTryEvery) return faster;
  of.since_tried = 0;
  return !faster;
}

void StepWays::Ran(bool as_module_batch, int64_t rows, bool decodes, const StepStats& stats) {
  if (rows == 0 || stats.total_us <= 0) return;
  Class& of = ClassOf(rows, decodes);
  Times& times = as_module_batch ? of.whole : of.foreseen;
  const auto of_row = [&](double value) { return value / static_cast<double>(rows); };
  const auto total_us = static_cast<double>(stats.total_us);
  const auto bytes = static_cast<double>(stats.experts.bytes_read);
  Average(of_row(total_us), times.steps, times.total_us);
  Average(of_row(total_us - static_cast<double>(stats.experts.blocked_us)), times.steps,
          times.computing_us);
  Average(of_row(bytes), times.steps, times.bytes);
  ++times.steps;
  bytes_per_us_ = std::max(bytes_per_us_ * kForget, bytes / total_us);
}

int64_t StepWays::least_rows() const {
  for (int number = 0; number < kClasses; ++number) {
    const Class& of = classes_[1][static_cast<size_t>(number)];
    if (of.whole.steps >= kLeastMeasured && of.whole.total_us < kGain * of.foreseen.total_us) {
      return int64_t{1} << number;
    }
  }
  return 0;
}

}  // namespace moesaic
