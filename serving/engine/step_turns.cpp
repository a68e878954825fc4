#include "serving/engine/step_turns.h"

#include <optional>
#include <utility>

namespace moesaic {

std::unique_ptr<StepTurns::Member> StepTurns::Join(int priority) {
  MutexLock lock(mutex_);
  const int number = order_.Join(priority);
  if (static_cast<size_t>(number) >= seats_.size()) seats_.push_back(std::make_unique<Seat>());
  return std::make_unique<Member>(shared_from_this(), number);
}

void StepTurns::Grant() {
  const std::optional<int> next = order_.Next(clock_.NowNs());
  if (!next) return;
  Seat& seat = *seats_[static_cast<size_t>(*next)];
  seat.has_turn = true;
  seat.granted.NotifyOne();
}

StepTurns::Member::Member(std::shared_ptr<StepTurns> turns, int number)
    : turns_(std::move(turns)), number_(number) {}

StepTurns::Member::~Member() {
  MutexLock lock(turns_->mutex_);
  turns_->order_.Leave(number_);
  turns_->Grant();  // which may have been kept for this one
}

int64_t StepTurns::Member::Begin() {
  return *Wait(false, [] { return false; });
}

std::optional<int64_t> StepTurns::Member::BeginBackground(FunctionRef<bool()> give_up) {
  return Wait(true, give_up);
}

std::optional<int64_t> StepTurns::Member::Wait(bool background, FunctionRef<bool()> give_up) {
  const int64_t begin_ns = turns_->clock_.NowNs();
  MutexLock lock(turns_->mutex_);
  Seat& seat = *turns_->seats_[static_cast<size_t>(number_)];
  turns_->order_.Wait(number_, background);
  turns_->Grant();
  while (!seat.has_turn) {
    if (give_up()) {
      turns_->order_.Withdraw(number_);
      turns_->Grant();
      return std::nullopt;
    }
    seat.granted.Wait(turns_->mutex_);
  }
  return turns_->clock_.NowNs() - begin_ns;
}

void StepTurns::Member::Ask() {
  MutexLock lock(turns_->mutex_);
  turns_->seats_[static_cast<size_t>(number_)]->granted.NotifyOne();
}

void StepTurns::Member::End() {
  MutexLock lock(turns_->mutex_);
  turns_->seats_[static_cast<size_t>(number_)]->has_turn = false;
  turns_->order_.End(number_, turns_->clock_.NowNs());
  turns_->Grant();
}

void StepTurns::Member::Rest() {
  MutexLock lock(turns_->mutex_);
  turns_->order_.Rest(number_);
  turns_->Grant();
}

void StepTurns::Member::Block() {
  MutexLock lock(turns_->mutex_);
  if (!turns_->seats_[static_cast<size_t>(number_)]->has_turn) return;
  turns_->order_.Block(number_, turns_->clock_.NowNs());
  turns_->Grant();
}

void StepTurns::Member::Resume() {
  MutexLock lock(turns_->mutex_);
  if (!turns_->seats_[static_cast<size_t>(number_)]->has_turn) return;
  turns_->order_.Resume(number_, turns_->clock_.NowNs());
}

bool StepTurns::Member::OthersCome() const {
  MutexLock lock(turns_->mutex_);
  return turns_->order_.OthersCome(number_);
}

int64_t StepTurns::Member::used_ns() const {
  MutexLock lock(turns_->mutex_);
  return turns_->order_.used_ns(number_);
}

}  // namespace moesaic
