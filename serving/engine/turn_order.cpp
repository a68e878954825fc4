#include "serving/engine/turn_order.h"

#include <algorithm>
#include <limits>

#include "core/base/check.h"

namespace moesaic {

int TurnOrder::Join(int priority) {
  const auto gone = std::find_if(members_.begin(), members_.end(),
                                 [](const Member& m) { return m.state == State::kGone; });
  const auto place = gone == members_.end() ? members_.insert(gone, Member{}) : gone;
  *place = {};
  place->priority = priority;
  place->state = State::kResting;
  return static_cast<int>(place - members_.begin());
}

TurnOrder::Member& TurnOrder::At(int member) {
  CHECK_GE(member, 0);
  CHECK_LT(static_cast<size_t>(member), members_.size());
  return members_[static_cast<size_t>(member)];
}

void TurnOrder::Leave(int member) {
  Member& leaving = At(member);
  CHECK(leaving.state != State::kRunning && leaving.state != State::kBlocked);
  leaving.state = State::kGone;
}

void TurnOrder::Wait(int member, bool background) {
  Member& waiting = At(member);
  CHECK(waiting.state == State::kResting || waiting.state == State::kBetween);
  waiting.state = State::kWaiting;
  waiting.background = background;
}

void TurnOrder::Withdraw(int member) {
  Member& waiting = At(member);
  CHECK(waiting.state == State::kWaiting);
  waiting.state = State::kBetween;
}

void TurnOrder::Rest(int member) {
  Member& resting = At(member);
  CHECK(resting.state == State::kResting || resting.state == State::kBetween);
  resting.state = State::kResting;
  for (int64_t& credit_ns : resting.credits_ns) credit_ns = std::min<int64_t>(credit_ns, 0);
}

bool TurnOrder::OthersCome(int member) const {
  for (size_t other = 0; other < members_.size(); ++other) {
    if (other == static_cast<size_t>(member) || members_[other].background) continue;
    if (members_[other].has_work()) return true;
  }
  return false;
}

std::optional<int> TurnOrder::Next(int64_t now_ns) {
  if (running_ > 0) return std::nullopt;
  std::optional<Rank> rank;
  bool others_blocked = false;
  for (const Member& member : members_) {
    others_blocked |= member.state == State::kBlocked && !member.background;
    if (member.comes()) rank = std::max(rank.value_or(Rank{}), RankOf(member));
  }
  if (!rank || (!rank->foreground && others_blocked)) return std::nullopt;
  const auto may_run = [&rank](const Member& member) {
    return member.comes() && RankOf(member) == *rank && member.credit_ns() > 0;
  };
  if (std::none_of(members_.begin(), members_.end(), may_run)) Replenish(*rank);
  for (size_t step = 1; step <= members_.size(); ++step) {
    const size_t at = (last_ + step) % members_.size();
    Member& member = members_[at];
    if (member.state != State::kWaiting || !may_run(member)) continue;
    member.state = State::kRunning;
    member.since_ns = now_ns;
    ++running_;
    last_ = at;
    return static_cast<int>(at);
  }
  return std::nullopt;  // who has credit is about to come
}

// As many quanta as give credit to one of those that come.
void TurnOrder::Replenish(const Rank& rank) {
  int64_t quanta = std::numeric_limits<int64_t>::max();
  for (const Member& member : members_) {
    if (!member.comes() || RankOf(member) != rank) continue;
    quanta = std::min(quanta, -member.credit_ns() / kQuantumNs + 1);
  }
  for (Member& member : members_) {
    if (member.state == State::kGone) continue;
    if (rank.foreground && member.priority != rank.priority) continue;
    int64_t& credit_ns = member.credits_ns[rank.foreground ? 0 : 1];
    credit_ns += quanta * kQuantumNs;
    const bool has_work = member.has_work() && RankOf(member) == rank;
    if (!has_work) credit_ns = std::min<int64_t>(credit_ns, 0);
  }
}

void TurnOrder::Charge(Member& member, int64_t now_ns) {
  const int64_t ran_ns = std::max<int64_t>(now_ns - member.since_ns, 0);
  member.credit_ns() -= ran_ns;
  member.used_ns += ran_ns;
}

void TurnOrder::Block(int member, int64_t now_ns) {
  Member& blocked = At(member);
  CHECK(blocked.state == State::kRunning);
  Charge(blocked, now_ns);
  blocked.state = State::kBlocked;
  --running_;
}

void TurnOrder::Resume(int member, int64_t now_ns) {
  Member& resumed = At(member);
  CHECK(resumed.state == State::kBlocked);
  resumed.state = State::kRunning;
  resumed.since_ns = now_ns;
  ++running_;
}

void TurnOrder::End(int member, int64_t now_ns) {
  Member& ended = At(member);
  CHECK(ended.state == State::kRunning);
  Charge(ended, now_ns);
  ended.state = State::kBetween;
  --running_;
}

}  // namespace moesaic
