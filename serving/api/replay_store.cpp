#include "serving/api/replay_store.h"

#include <functional>
#include <utility>

namespace moesaic {
namespace {

const AnswerItem* FirstCall(const GeneratedTurn& turn) {
  for (const AnswerItem& item : turn.items) {
    if (item.kind == AnswerItem::Kind::kCall) return &item;
  }
  return nullptr;
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

PromptKey PromptKeyOf(std::string_view text) {
  return {std::hash<std::string_view>()(text), text.size()};
}

void ReplayStore::Put(GeneratedTurn turn) {
  const AnswerItem* call = FirstCall(turn);
  if (call == nullptr || call->id.empty()) return;
  Entry entry;
  entry.id = call->id;
  entry.bytes = BytesOf(turn);
  entry.turn = std::make_shared<const GeneratedTurn>(std::move(turn));
  MutexLock lock(mutex_);
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

void ReplayStore::Erase(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

}  // namespace moesaic
