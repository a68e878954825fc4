#include "serving/api/replay_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "serving/text/tokenizer.h"

namespace moesaic {
namespace {

const AnswerItem* FirstCall(const GeneratedTurn& turn) {
  for (const AnswerItem& item : turn.items) {
    if (item.kind == AnswerItem::Kind::kCall) return &item;
  }
  return nullptr;
}

// Of what each token adds to a text.
uint64_t HashOf(const Tokenizer& tokenizer) {
  uint64_t hash = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    hash = Hash64(tokenizer.TokenBytes(id), hash);
  }
  return hash;
}

size_t BytesOf(const GeneratedTurn& turn) {
  constexpr size_t kOverhead = 256;  // of the entry, its place in the list and in the map
  size_t bytes = kOverhead + turn.tokens.size() * sizeof(int32_t);
  for (const AnswerItem& item : turn.items) {
    bytes += sizeof(item) + item.text.size() + item.id.size() + item.name.size();
  }
  return bytes;
}

}  // namespace

PromptKey PromptKeyOf(std::string_view text) { return {Hash64(text), text.size()}; }

void ReplayStore::Put(GeneratedTurn turn) {
  MutexLock lock(mutex_);
  PutLocked(std::move(turn));
}

void ReplayStore::PutLocked(GeneratedTurn turn) {
  const AnswerItem* call = FirstCall(turn);
  if (call == nullptr || call->id.empty()) return;
  Entry entry;
  entry.id = call->id;
  entry.bytes = BytesOf(turn);
  entry.turn = std::make_shared<const GeneratedTurn>(std::move(turn));
  if (const auto old = by_id_.find(entry.id); old != by_id_.end()) Erase(old->second);
  if (entry.bytes > max_bytes_) return;
  while (bytes_ + entry.bytes > max_bytes_) Erase(std::prev(entries_.end()));
  bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  by_id_[entries_.front().id] = entries_.begin();
}

std::shared_ptr<const GeneratedTurn> ReplayStore::Find(std::string_view call_id) {
  MutexLock lock(mutex_);
  const auto found = by_id_.find(call_id);
  if (found == by_id_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->turn;
}

size_t ReplayStore::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

std::vector<std::shared_ptr<const GeneratedTurn>> ReplayStore::Turns() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<const GeneratedTurn>> turns;
  turns.reserve(entries_.size());
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    turns.push_back(entry->turn);
  }
  return turns;
}

void ReplayStore::Restore(std::vector<GeneratedTurn> turns, uint64_t vocabulary) {
  MutexLock lock(mutex_);
  CHECK(entries_.empty());
  vocabulary_ = vocabulary;
  for (GeneratedTurn& turn : turns) PutLocked(std::move(turn));
}

void ReplayStore::UseVocabulary(const Tokenizer& tokenizer) {
  const uint64_t hash = HashOf(tokenizer);
  MutexLock lock(mutex_);
  const bool same = std::exchange(vocabulary_, hash) == hash;
  const auto known = [&](int32_t token) { return token >= 0 && token < tokenizer.vocab_size(); };
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const std::vector<int32_t>& tokens = entry->turn->tokens;
    const auto next = std::next(entry);
    if (!same || !std::all_of(tokens.begin(), tokens.end(), known)) Erase(entry);
    entry = next;
  }
}

uint64_t ReplayStore::vocabulary() const {
  MutexLock lock(mutex_);
  return vocabulary_;
}

void ReplayStore::Erase(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

}  // namespace moesaic
