#include "serving/engine/thinking_budget.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

ThinkingBudget::ThinkingBudget(std::shared_ptr<const ThinkingLimit> limit)
    : limit_(std::move(limit)) {
  CHECK(!limit_->end_tokens.empty() && !limit_->end.empty());
  if (!limit_->begun) return;
  at_ = At::kThinking;
  EndIfUsedUp();
}

std::optional<int32_t> ThinkingBudget::Forced() const {
  if (at_ != At::kEnding) return std::nullopt;
  return limit_->end_tokens[forced_];
}

void ThinkingBudget::EndIfUsedUp() {
  if (at_ == At::kThinking && tokens_ >= limit_->max_tokens) at_ = At::kEnding;
}

void ThinkingBudget::Append(std::string_view bytes) {
  if (at_ == At::kDone) return;
  if (at_ == At::kEnding) {
    if (++forced_ == limit_->end_tokens.size()) at_ = At::kDone;
    return;
  }
  ++tokens_;
  text_ += bytes;
  if (at_ == At::kBegin) {
    text_.erase(0, std::min(text_.find_first_not_of(" \t\r\n"), text_.size()));
    const size_t common = std::min(text_.size(), limit_->begin.size());
    if (text_.compare(0, common, limit_->begin, 0, common) != 0) {
      at_ = At::kDone;  // thinking comes first or not at all
    } else if (common == limit_->begin.size()) {
      at_ = At::kThinking;
      text_.erase(0, common);
    }
  }
  if (at_ != At::kThinking) return;
  if (text_.find(limit_->end) != std::string::npos) {
    at_ = At::kDone;
    return;
  }
  if (text_.size() >= limit_->end.size()) text_.erase(0, text_.size() - limit_->end.size() + 1);
  EndIfUsedUp();
}

}  // namespace moesaic
