#include "serving/model/load_progress.h"

#include <algorithm>
#include <utility>

#include "core/base/logging.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

constexpr int64_t kTellNs = 100'000'000;
constexpr double kTellFraction = 0.01;
constexpr int64_t kLogNs = 10'000'000'000;

}  // namespace

LoadProgress::LoadProgress(std::string model, Tell tell, const Clock* clock)
    : model_(std::move(model)),
      tell_(std::move(tell)),
      clock_(clock != nullptr ? clock : &steady_clock_),
      began_ns_(clock_->NowNs()),
      told_ns_(began_ns_),
      logged_ns_(began_ns_) {}

double LoadProgress::fraction() const {
  if (total_bytes_ == 0) return 0;
  return std::min(1.0, static_cast<double>(read_bytes_) / static_cast<double>(total_bytes_));
}

void LoadProgress::Read(uint64_t bytes) {
  read_bytes_ += bytes;
  const int64_t now_ns = clock_->NowNs();
  if (now_ns - logged_ns_ >= kLogNs) {
    logged_ns_ = now_ns;
    LogInfo("loading {}: {:.0f}% of {} after {:.0f} s", model_, 100 * fraction(),
            FormatBytes(total_bytes_), static_cast<double>(now_ns - began_ns_) * 1e-9);
  }
  if (!tell_ || now_ns - told_ns_ < kTellNs || fraction() - told_ < kTellFraction) return;
  told_ns_ = now_ns;
  told_ = fraction();
  tell_(told_);
}

}  // namespace moesaic
