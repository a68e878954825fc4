#include "serving/plan/kernel_measuring.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/aligned_buffer.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "kernels/cpu/product_choice.h"
#include "serving/plan/measuring.h"

namespace moesaic {
namespace {

constexpr int64_t kOutputs = 1024;
constexpr int64_t kInputs = 1024;
constexpr int64_t kRows[] = {1, 2, 4, 8, 16, 32, 64};
constexpr int64_t kMostProductRows = 64;
constexpr double kGain = 1.05;

// Matrices of one type, taken in turn, and rows to multiply them with.
class Products {
 public:
  Products(const CpuKernels& kernels, WeightType type, bool quick)
      : matrix_{nullptr, type, kOutputs, kInputs},
        matrix_bytes_(PackedMatrix::Bytes(type, kOutputs, kInputs)),
        matrices_(std::max<int64_t>(2, ((quick ? 8 : 32) << 20) / matrix_bytes_)),
        weights_(static_cast<size_t>(matrices_ * matrix_bytes_)),
        stride_(ActivationRowBytes(ActivationTypeOf(kernels.numerics, type), kInputs)),
        x_(static_cast<size_t>(kMostProductRows * stride_)),
        y_(static_cast<size_t>(kMostProductRows * kOutputs)) {
    std::vector<float> values(static_cast<size_t>(kOutputs * kInputs));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i * 7919 % 2003) / 1000.0f - 1.0f;
    }
    for (int64_t m = 0; m < matrices_; ++m) {
      kernels.pack_panels(values.data(), DType::kF32, kInputs, kOutputs, kInputs, type, 0,
                          matrix_.panels(), weights_.data() + m * matrix_bytes_);
    }
    kernels.prepare_activations(values.data(), kInputs, kMostProductRows, kInputs,
                                ActivationTypeOf(kernels.numerics, type), x_.data(), stride_);
  }

  // Seconds of one product, of as many as take `least_s` together.
  double Time(const ProductKernels& products, int64_t rows, double least_s) {
    const Stopwatch watch;
    int64_t calls = 0;
    do {
      MatmulArgs args;
      args.x = x_.data();
      args.x_stride_bytes = stride_;
      args.m = rows;
      args.w = matrix_;
      args.w.data = weights_.data() + next_ * matrix_bytes_;
      args.panel_end = matrix_.panels();
      args.y = y_.data();
      args.y_stride = kOutputs;
      products.matmul(args);
      next_ = (next_ + 1) % matrices_;
      ++calls;
    } while (watch.seconds() < least_s);
    return watch.seconds() / static_cast<double>(calls);
  }

 private:
  PackedMatrix matrix_;
  int64_t matrix_bytes_;
  int64_t matrices_;
  AlignedBuffer weights_;
  int64_t stride_;
  AlignedBuffer x_;
  std::vector<float> y_;
  int64_t next_ = 0;
};

double MedianOf(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

}  // namespace

std::vector<KernelStep> StepsOf(const std::vector<const char*>& options, size_t own,
                                std::span<const RowTimes> times) {
  CHECK(!times.empty());
  std::vector<KernelStep> steps;
  size_t current = own;
  for (const RowTimes& at : times) {
    const auto best = static_cast<size_t>(std::min_element(at.seconds.begin(), at.seconds.end()) -
                                          at.seconds.begin());
    if (at.seconds[current] >= kGain * at.seconds[best]) current = best;
    if (!steps.empty() && steps.back().instructions == options[current]) continue;
    if (steps.size() == static_cast<size_t>(kMaxProductSteps)) break;
    steps.push_back({steps.empty() ? 1 : at.rows, options[current]});
  }
  return steps;
}

std::vector<KernelChoice> MeasureKernelChoices(const CpuKernels& kernels,
                                               const ProfilerOptions& options) {
  const int rounds = options.quick ? 3 : 9;
  const double least_s = options.quick ? 0.0005 : 0.003;
  std::vector<KernelChoice> choices;
  for (const WeightTraits& traits : kWeightTypes) {
    const WeightType type = traits.type;
    // Reference runs; many kinds; no matrix.
    if (type == WeightType::kF32 || IsGguf(type) || !IsOfMatrices(type)) continue;
    const std::vector<ProductOption> candidates = ProductOptions(kernels, type);
    if (candidates.size() < 2) continue;
    options.progress(fmt::format("products with {} weights", WeightTypeName(type)));
    const ProductKernels table = kernels.TableProducts(type);
    std::vector<const char*> names;
    size_t own = 0;
    for (const ProductOption& candidate : candidates) {
      if (candidate.products.matmul == table.matmul) own = names.size();
      names.push_back(candidate.instructions);
    }
    Products products(kernels, type, options.quick);
    std::vector<RowTimes> times;
    for (const int64_t rows : kRows) {
      std::vector<std::vector<double>> samples(candidates.size());
      for (int round = 0; round < rounds; ++round) {
        for (size_t i = 0; i < candidates.size(); ++i) {
          samples[i].push_back(products.Time(candidates[i].products, rows, least_s));
        }
      }
      RowTimes& at = times.emplace_back(RowTimes{rows, {}});
      for (const auto& of_one : samples) at.seconds.push_back(MedianOf(of_one));
    }
    choices.push_back(
        {NumericsClassName(kernels.numerics), WeightTypeName(type), StepsOf(names, own, times),
         fmt::format("medians of {} rounds, {} x {}, one thread", rounds, kOutputs, kInputs),
         UtcNow()});
  }
  return choices;
}

}  // namespace moesaic
