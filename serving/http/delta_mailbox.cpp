#include "serving/http/delta_mailbox.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace moesaic {
namespace {

constexpr size_t kNone = std::numeric_limits<size_t>::max();

void Append(std::vector<GeneratedToken>& to, std::vector<GeneratedToken> from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

size_t TokensBytes(const std::vector<GeneratedToken>& tokens) {
  size_t bytes = tokens.size() * sizeof(GeneratedToken);
  for (const GeneratedToken& token : tokens) bytes += token.top.size() * sizeof(TokenLogprob);
  return bytes;
}

}  // namespace

void MergeDelta(OutputDelta& delta, OutputDelta more) {
  delta.text += more.text;
  Append(delta.tokens, std::move(more.tokens));
  Append(delta.prompt_tokens, std::move(more.prompt_tokens));
  if (more.finish.has_value()) delta.finish = more.finish;
  if (!more.stop_text.empty()) delta.stop_text = std::move(more.stop_text);
  if (delta.queue_us < 0) delta.queue_us = more.queue_us;
  delta.usage = more.usage;
  if (more.trace != nullptr) delta.trace = std::move(more.trace);
}

size_t DeltaBytes(const OutputDelta& delta) {
  return delta.text.size() + TokensBytes(delta.tokens) + TokensBytes(delta.prompt_tokens);
}

class DeltaMailbox::Sink : public OutputSink {
 public:
  Sink(std::shared_ptr<DeltaMailbox> mailbox, size_t choice)
      : mailbox_(std::move(mailbox)), choice_(choice) {}
  void OnDelta(OutputDelta delta) override {
    mailbox_->Put(choice_, std::move(delta), std::nullopt);
  }
  void OnError(const Error& error) override { mailbox_->Put(choice_, OutputDelta(), error); }

 private:
  const std::shared_ptr<DeltaMailbox> mailbox_;
  const size_t choice_;
};

DeltaMailbox::DeltaMailbox(size_t choices, size_t max_bytes, std::function<void()> notify)
    : max_bytes_(max_bytes), notify_(std::move(notify)), slot_of_choice_(choices, kNone) {}

std::shared_ptr<OutputSink> DeltaMailbox::MakeSink(size_t choice) {
  return std::make_shared<Sink>(shared_from_this(), choice);
}

void DeltaMailbox::Put(size_t choice, OutputDelta delta, std::optional<Error> error) {
  const Clock::time_point now = Clock::now();
  MutexLock lock(mutex_);
  if (!attached_ || overflowed_) return;
  const bool was_empty = mail_.empty();
  const bool has_tokens = !delta.tokens.empty();
  bytes_ += DeltaBytes(delta) + sizeof(now);
  if (bytes_ > max_bytes_) overflowed_ = true;
  size_t& slot = slot_of_choice_[choice];
  if (slot == kNone) {
    slot = mail_.size();
    mail_.push_back(Mail{choice, std::move(delta), std::move(error), {}});
  } else {
    MergeDelta(mail_[slot].delta, std::move(delta));
    if (error.has_value()) mail_[slot].error = std::move(error);
  }
  if (has_tokens) mail_[slot].token_times.push_back(now);
  if ((was_empty || overflowed_) && notify_) notify_();
}

std::vector<DeltaMailbox::Mail> DeltaMailbox::Take() {
  MutexLock lock(mutex_);
  std::vector<Mail> result = std::exchange(mail_, {});
  std::fill(slot_of_choice_.begin(), slot_of_choice_.end(), kNone);
  bytes_ = 0;
  return result;
}

bool DeltaMailbox::overflowed() const {
  MutexLock lock(mutex_);
  return overflowed_;
}

void DeltaMailbox::Detach() {
  std::function<void()> released;  // destroyed outside the lock: it may own much
  MutexLock lock(mutex_);
  attached_ = false;
  released.swap(notify_);
  mail_.clear();
}

}  // namespace moesaic
