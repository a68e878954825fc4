#include "serving/engine/mask_ahead.h"

#include <pthread.h>

#include <utility>

namespace moesaic {

MaskedMatch::MaskedMatch(const Grammar& grammar)
    : match_(grammar.Start()), words_((static_cast<size_t>(grammar.vocab_size()) + 31) / 32) {}

bool MaskedMatch::SetQueued() {
  MutexLock lock(mutex_);
  if (state_ != State::kNone) return false;
  state_ = State::kQueued;
  return true;
}

void MaskedMatch::MakeIfQueued() {
  {
    MutexLock lock(mutex_);
    if (state_ != State::kQueued) return;
    state_ = State::kBeingMade;
  }
  std::optional<Error> error;
  try {
    match_->Fill(words_);
  } catch (const Error& failed) {
    error = failed;
  }
  MutexLock lock(mutex_);
  error_ = std::move(error);
  state_ = State::kMade;
  made_.NotifyAll();
}

bool MaskedMatch::TakeBack() {
  MutexLock lock(mutex_);
  while (state_ == State::kBeingMade) made_.Wait(mutex_);
  const bool made = state_ == State::kMade;
  state_ = State::kNone;
  return made;
}

std::span<int32_t> MaskedMatch::Mask() {
  if (!TakeBack()) {
    match_->Fill(words_);
    return words_;
  }
  MutexLock lock(mutex_);
  if (error_) throw *std::exchange(error_, std::nullopt);
  return words_;
}

bool MaskedMatch::Accept(int32_t token) {
  TakeBack();
  const bool fits = match_->Accept(token);
  ended_ = match_->ended();
  return fits;
}

bool MaskedMatch::AcceptText(std::string_view text) {
  TakeBack();
  return match_->AcceptText(text);
}

bool MaskedMatch::complete() {
  TakeBack();
  return match_->complete();
}

MaskMaker::~MaskMaker() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void MaskMaker::Queue(std::shared_ptr<MaskedMatch> match) {
  if (!match->SetQueued()) return;
  MutexLock lock(mutex_);
  queue_.push_back(std::move(match));
  if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
  changed_.NotifyAll();
}

void MaskMaker::Work() {
  pthread_setname_np(pthread_self(), "grammar-masks");
  mutex_.Lock();
  while (true) {
    while (queue_.empty() && !stopping_) changed_.Wait(mutex_);
    if (stopping_) break;
    const std::shared_ptr<MaskedMatch> match = std::move(queue_.front());
    queue_.pop_front();
    mutex_.Unlock();
    match->MakeIfQueued();
    mutex_.Lock();
  }
  mutex_.Unlock();
}

}  // namespace moesaic
