// RequestQueue: the sequences of an engine that wait to run, and which of them is next.
//
// Ranks come first: requests of the background behind all others, and within both a lower priority
// before a higher one. Within a rank those that have run and were preempted come first, then the
// others, whose clients are served in turn: next is the oldest sequence of the client that has been
// given the fewest tokens (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024,
// algorithm 2, its virtual token counter; prompt and output tokens count alike). A client that has
// nothing waiting saves nothing up: when it comes back it counts as having been given what the one
// that was given least among those that wait has. So sequences of one client are served as they
// came.
//
// A plain state machine; the engine's thread owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "serving/engine/sequence.h"

namespace moesaic {

class RequestQueue {
 public:
  void Add(std::unique_ptr<Sequence> sequence);
  // One that was preempted: before all of its rank.
  void PutBack(std::unique_ptr<Sequence> sequence);

  bool empty() const { return waiting_.empty(); }
  int64_t size() const { return static_cast<int64_t>(waiting_.size()); }
  // Who is next, until anything is changed. There is one.
  Sequence& front() const;
  // Null: the sequence does not wait here.
  std::unique_ptr<Sequence> Take(const Sequence& sequence);

  // Tokens of a sequence, wherever it is, that are computed for its client. Those of the background
  // are on nobody's account.
  void Charge(const Sequence& sequence, int64_t tokens);
  // Nobody runs and nobody waits: nobody was given more than others.
  void Forget();

  Sequence* Find(RequestId id) const;
  // By ranks, and within one as they came.
  void ForEach(const std::function<void(Sequence&)>& visit) const;

 private:
  struct Client {
    int64_t tokens = 0;
    std::set<QueuePlace> waiting;  // of those that were not preempted
  };

  void CatchUp(Client& client);

  std::map<QueuePlace, std::unique_ptr<Sequence>> waiting_;
  std::map<std::string, Client> clients_;
  int64_t last_taken_tokens_ = 0;  // of its client
  int64_t first_number_ = 0;
  int64_t last_number_ = 0;
};

}  // namespace moesaic
