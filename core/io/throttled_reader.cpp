#include "core/io/throttled_reader.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"

namespace moesaic {
namespace {

class ThrottledReader : public AsyncReader {
 public:
  ThrottledReader(std::unique_ptr<AsyncReader> reader, double bytes_per_s)
      : reader_(std::move(reader)), bytes_per_s_(bytes_per_s) {
    CHECK_GT(bytes_per_s, 0);
  }

  ReadBackend backend() const override { return reader_->backend(); }
  bool aligned_only() const override { return reader_->aligned_only(); }
  int free_slots() const override { return reader_->free_slots() - static_cast<int>(held_.size()); }

  void Submit(const ReadRequest& request) override {
    CHECK_GT(free_slots(), 0);
    const int64_t begin_ns = std::max(clock_.NowNs(), free_at_ns_);
    free_at_ns_ = begin_ns + static_cast<int64_t>(std::ceil(1e9 * request.bytes / bytes_per_s_));
    due_ns_.emplace(request.tag, free_at_ns_);
    reader_->Submit(request);
  }

  // May return with nothing before the time is over: when a read has ended that is not due yet.
  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override {
    if (Release(out)) return;
    const int64_t due_us = NextDueUs();
    arrived_.clear();
    reader_->Wait(arrived_,
                  due_us >= 0 && (timeout_us < 0 || due_us < timeout_us) ? due_us : timeout_us);
    for (const ReadCompletion& completion : arrived_) Hold(completion);
    Release(out);
  }

  void Wake() override { reader_->Wake(); }

 private:
  struct Held {
    ReadCompletion completion;
    int64_t due_ns = 0;
  };

  void Hold(const ReadCompletion& completion) {
    const auto found = due_ns_.find(completion.tag);
    CHECK(found != due_ns_.end());
    held_.push_back({completion, found->second});
    due_ns_.erase(found);
  }

  // What has fallen due. Whether there was any.
  bool Release(std::vector<ReadCompletion>& out) {
    const int64_t now_ns = clock_.NowNs();
    const size_t before = out.size();
    std::erase_if(held_, [&](const Held& held) {
      if (held.due_ns > now_ns) return false;
      out.push_back(held.completion);
      return true;
    });
    return out.size() > before;
  }

  // Until the next one falls due, rounded up; -1: none is held back.
  int64_t NextDueUs() const {
    const int64_t now_ns = clock_.NowNs();
    int64_t least_us = -1;
    for (const Held& held : held_) {
      const int64_t us = std::max<int64_t>(0, (held.due_ns - now_ns + 999) / 1000);
      if (least_us < 0 || us < least_us) least_us = us;
    }
    return least_us;
  }

  const std::unique_ptr<AsyncReader> reader_;
  const double bytes_per_s_;
  const SteadyClock clock_{};
  int64_t free_at_ns_ = 0;
  std::unordered_multimap<uint64_t, int64_t> due_ns_;  // by tag, of reads under way
  std::vector<Held> held_;
  std::vector<ReadCompletion> arrived_;
};

}  // namespace

std::unique_ptr<AsyncReader> MakeThrottledReader(std::unique_ptr<AsyncReader> reader,
                                                 double bytes_per_s) {
  return std::make_unique<ThrottledReader>(std::move(reader), bytes_per_s);
}

}  // namespace moesaic
