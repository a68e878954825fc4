#include "serving/api/delta_mailbox.h"

#include <iterator>
#include <utility>

namespace moesaic {
namespace {

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
  delta.token_ends.insert(delta.token_ends.end(), more.token_ends.begin(), more.token_ends.end());
  delta.special_offsets.insert(delta.special_offsets.end(), more.special_offsets.begin(),
                               more.special_offsets.end());
  Append(delta.prompt_tokens, std::move(more.prompt_tokens));
  if (more.finish.has_value()) delta.finish = more.finish;
  if (!more.stop_text.empty()) delta.stop_text = std::move(more.stop_text);
  if (delta.queue_us < 0) delta.queue_us = more.queue_us;
  if (more.progress.has_value()) delta.progress = more.progress;
  delta.usage = more.usage;
  if (more.finish.has_value()) delta.experts = more.experts;
  if (more.trace != nullptr) delta.trace = std::move(more.trace);
  if (more.routed != nullptr) delta.routed = std::move(more.routed);
}

size_t DeltaBytes(const OutputDelta& delta) {
  return delta.text.size() + TokensBytes(delta.tokens) + TokensBytes(delta.prompt_tokens) +
         delta.token_ends.size() * sizeof(size_t);
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

DeltaMailbox::DeltaMailbox(size_t max_bytes, std::function<void()> notify, Wake wake,
                           size_t notice_tokens)
    : max_bytes_(max_bytes),
      wake_(wake),
      notice_tokens_(notice_tokens),
      notify_(std::move(notify)) {}

std::shared_ptr<OutputSink> DeltaMailbox::MakeSink(size_t choice) {
  return std::make_shared<Sink>(shared_from_this(), choice);
}

void DeltaMailbox::Put(size_t choice, OutputDelta delta, std::optional<Error> error) {
  const News news = Add(choice, std::move(delta), std::move(error));
  if (news.wake) changed_.NotifyOne();
  if (news.notify == nullptr) return;
  (*news.notify)();
  notifying_.fetch_sub(1);
  notifying_.notify_all();
}

DeltaMailbox::News DeltaMailbox::Add(size_t choice, OutputDelta delta, std::optional<Error> error) {
  const Clock::time_point now = Clock::now();
  MutexLock lock(mutex_);
  if (!attached_ || overflowed_) return {};
  const bool has_tokens = !delta.tokens.empty();
  const bool first_tokens =
      delta.usage.completion_tokens == static_cast<int64_t>(delta.tokens.size());
  bytes_ += DeltaBytes(delta) + sizeof(now);
  if (bytes_ > max_bytes_) overflowed_ = true;
  const auto [slot, is_new] = slot_of_choice_.try_emplace(choice, mail_.size());
  if (is_new) {
    mail_.push_back(Mail{choice, std::move(delta), std::move(error), {}});
  } else {
    MergeDelta(mail_[slot->second].delta, std::move(delta));
    if (error.has_value()) mail_[slot->second].error = std::move(error);
  }
  Mail& mail = mail_[slot->second];
  if (has_tokens) mail.token_times.push_back(now);
  News news;
  if (wake_ == Wake::kDeltas || mail.ends()) news.wake = awake_ = true;
  const bool due =
      !has_tokens || first_tokens || mail.ends() || mail.delta.tokens.size() >= notice_tokens_;
  if (((due && !noticed_) || overflowed_) && notify_) {
    noticed_ = true;
    notifying_.fetch_add(1);
    news.notify = &notify_;
  }
  return news;
}

std::vector<DeltaMailbox::Mail> DeltaMailbox::TakeLocked() {
  std::vector<Mail> result = std::exchange(mail_, {});
  slot_of_choice_.clear();
  bytes_ = 0;
  awake_ = noticed_ = false;
  return result;
}

std::vector<DeltaMailbox::Mail> DeltaMailbox::Take() {
  MutexLock lock(mutex_);
  return TakeLocked();
}

std::vector<DeltaMailbox::Mail> DeltaMailbox::Wait(Clock::duration longest) {
  const auto deadline = Clock::now() + longest;
  MutexLock lock(mutex_);
  while (!awake_ && changed_.WaitUntil(mutex_, deadline)) {
  }
  return TakeLocked();
}

bool DeltaMailbox::overflowed() const {
  MutexLock lock(mutex_);
  return overflowed_;
}

void DeltaMailbox::Detach() {
  std::function<void()> released;  // destroyed outside the lock: it may own much
  {
    MutexLock lock(mutex_);
    attached_ = false;
    mail_.clear();
  }
  for (int running = notifying_.load(); running != 0; running = notifying_.load()) {
    notifying_.wait(running);
  }
  MutexLock lock(mutex_);
  released.swap(notify_);
}

}  // namespace moesaic
