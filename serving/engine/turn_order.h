// TurnOrder: whose turn it is to run a step, where the engines of several models share the
// processors: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) over measured time.
//
// The time of a step is known only behind it. So a member may run while it has credit, and what it
// ran for is taken off; when no member that has work has credit left, each gets a quantum, as often
// as one needs to have some. A member that is resting does not save credit, but works off what it
// overdrew. Members take turns while they have credit, so the quantum bounds nothing but rounding:
// two that always have work get equal time, and none waits for longer than the others' steps that
// make up for its own.
//
// A member that has ended a step will soon ask for the next one, or rest: it is not passed over in
// between, or whoever has waited longest would always be next, whatever time that took.
//
// Higher priorities go first, always; the order is among equal ones. Steps of batches (the
// background) come behind all others, whatever their members' priorities, and not while another's
// step is blocked. They have credit of their own: what a batch has run for is no debt of its
// model's other requests.
//
// A plain state machine: it takes the time as an argument and knows no thread.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

namespace moesaic {

class TurnOrder {
 public:
  static constexpr int64_t kQuantumNs = 1'000'000;

  int Join(int priority);
  void Leave(int member);

  // Wants to run a step, maybe one of the background.
  void Wait(int member, bool background = false);
  // Does not want to after all, and will soon ask for another one, or rest.
  void Withdraw(int member);
  // Has nothing to run.
  void Rest(int member);
  // Whose turn it is from now on; nullopt: somebody has it, or it is kept for somebody.
  std::optional<int> Next(int64_t now_ns);
  // Within its turn it waits for something else than a processor: others may run, which does not
  // keep it from going on at any time.
  void Block(int member, int64_t now_ns);
  void Resume(int member, int64_t now_ns);
  void End(int member, int64_t now_ns);

  int64_t used_ns(int member) const { return At(member).used_ns; }  // in its turns, not blocked
  // Another member has something to run that is not of the background.
  bool OthersCome(int member) const;

 private:
  enum class State { kGone, kResting, kBetween, kWaiting, kRunning, kBlocked };
  struct Member {
    int priority = 0;
    State state = State::kGone;
    bool background = false;         // the step that it runs, wants to or has run last
    int64_t credits_ns[2] = {0, 0};  // of other steps; of the background's
    int64_t since_ns = 0;            // when it began to run
    int64_t used_ns = 0;
    // Will run, if it may.
    bool comes() const { return state == State::kBetween || state == State::kWaiting; }
    bool has_work() const {
      return comes() || state == State::kRunning || state == State::kBlocked;
    }
    int64_t& credit_ns() { return credits_ns[background ? 1 : 0]; }
    int64_t credit_ns() const { return credits_ns[background ? 1 : 0]; }
  };
  // Greater ones go first.
  struct Rank {
    bool foreground = false;
    int priority = 0;                                             // 0 of the background
    friend auto operator<=>(const Rank&, const Rank&) = default;  // NOLINT: clang 14
  };
  static Rank RankOf(const Member& member) {
    return member.background ? Rank{} : Rank{true, member.priority};
  }

  Member& At(int member);
  const Member& At(int member) const { return const_cast<TurnOrder*>(this)->At(member); }
  void Charge(Member& member, int64_t now_ns);
  void Replenish(const Rank& rank);

  std::vector<Member> members_;
  size_t last_ = 0;  // who had the last turn
  int running_ = 0;
};

}  // namespace moesaic
