#include "serving/engine/request_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

void RequestQueue::Add(std::unique_ptr<Sequence> sequence) {
  const QueuePlace place = {RankOf(sequence->request), ++last_number_};
  sequence->queued = place;
  if (!place.rank.background) {
    Client& client = clients_[sequence->request.client];
    if (client.waiting.empty()) CatchUp(client);
    client.waiting.insert(place);
  }
  waiting_.emplace(place, std::move(sequence));
}

void RequestQueue::PutBack(std::unique_ptr<Sequence> sequence) {
  const QueuePlace place = {RankOf(sequence->request), --first_number_};
  sequence->queued = place;
  waiting_.emplace(place, std::move(sequence));
}

void RequestQueue::CatchUp(Client& client) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [name, other] : clients_) {
    if (!other.waiting.empty()) least = std::min(least, other.tokens);
  }
  const bool nobody_waits = least == std::numeric_limits<int64_t>::max();
  client.tokens = std::max(client.tokens, nobody_waits ? last_taken_tokens_ : least);
}

Sequence& RequestQueue::front() const {
  CHECK(!waiting_.empty());
  const auto& [first, sequence] = *waiting_.begin();
  if (first.number < 0 || first.rank.background) return *sequence;
  const Client* served_least = nullptr;
  for (const auto& [name, client] : clients_) {
    if (client.waiting.empty() || client.waiting.begin()->rank != first.rank) continue;
    const bool less = served_least == nullptr || client.tokens < served_least->tokens ||
                      (client.tokens == served_least->tokens &&
                       *client.waiting.begin() < *served_least->waiting.begin());
    if (less) served_least = &client;
  }
  CHECK(served_least != nullptr);
  return *waiting_.at(*served_least->waiting.begin());
}

std::unique_ptr<Sequence> RequestQueue::Take(const Sequence& sequence) {
  const auto found = waiting_.find(sequence.queued);
  if (found == waiting_.end() || found->second.get() != &sequence) return nullptr;
  std::unique_ptr<Sequence> taken = std::move(found->second);
  waiting_.erase(found);
  const auto client = clients_.find(taken->request.client);
  if (client != clients_.end() && client->second.waiting.erase(taken->queued) > 0) {
    last_taken_tokens_ = client->second.tokens;
  }
  return taken;
}

void RequestQueue::Charge(const Sequence& sequence, int64_t tokens) {
  if (!sequence.request.background) clients_[sequence.request.client].tokens += tokens;
}

void RequestQueue::Forget() {
  clients_.clear();
  last_taken_tokens_ = 0;
}

Sequence* RequestQueue::Find(RequestId id) const {
  for (const auto& [place, sequence] : waiting_) {
    if (sequence->id == id) return sequence.get();
  }
  return nullptr;
}

void RequestQueue::ForEach(const std::function<void(Sequence&)>& visit) const {
  for (const auto& [place, sequence] : waiting_) visit(*sequence);
}

}  // namespace moesaic
