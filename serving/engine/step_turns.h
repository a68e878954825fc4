// StepTurns: the engines of several models take turns on the processors they share, a step at a
// time, in the order of a TurnOrder. Each engine has a Member, which its thread asks for a turn
// before a step; an engine without one runs when it likes.
//
// While a member's step waits for experts the turn is others': it goes on as soon as they are
// there, whoever runs by then. So the disk works for one model while another computes, and a model
// that waits is not made to wait for somebody's step as well.
//
// Thread contract: a Member is its engine's thread's, but for being made and for Ask; everything
// else is inside. Members outlive neither the clock nor, by themselves, anything: they share the
// turns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/base/function_ref.h"
#include "core/base/mutex.h"
#include "serving/engine/turn_order.h"

namespace moesaic {

class StepTurns : public std::enable_shared_from_this<StepTurns> {
 public:
  class Member {
   public:
    Member(std::shared_ptr<StepTurns> turns, int number);
    ~Member();  // no turn is open
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // Waits for the turn. Returns how long, in nanoseconds.
    int64_t Begin();
    // The same for a step of the background. Gives up and returns nullopt when `give_up` says so,
    // which is asked at first and whenever somebody has called Ask. It must not wait for anybody.
    std::optional<int64_t> BeginBackground(FunctionRef<bool()> give_up);
    void Ask();  // any thread
    void End();
    // Nothing is to be run until the next Begin.
    void Rest();
    // Within a turn: what it needs is on its way; and it is there. Without a turn they do nothing.
    void Block();
    void Resume();
    int64_t used_ns() const;
    // Another member has something to run that is not of the background.
    bool OthersCome() const;

   private:
    std::optional<int64_t> Wait(bool background, FunctionRef<bool()> give_up);

    const std::shared_ptr<StepTurns> turns_;  // shared by all members
    const int number_;
  };

  // `clock` outlives the members.
  explicit StepTurns(const Clock& clock) : clock_(clock) {}
  std::unique_ptr<Member> Join(int priority);

 private:
  void Grant() REQUIRES(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  TurnOrder order_ GUARDED_BY(mutex_);
  struct Seat {
    CondVar granted;
    bool has_turn = false;
  };
  std::vector<std::unique_ptr<Seat>> seats_ GUARDED_BY(mutex_);  // by member's number
};

}  // namespace moesaic
