// ReplayStore: turns that a model has generated, found by the ids of their calls, so that a
// conversation that comes back becomes the same tokens and its prefix is found in the cache.
// Clients send calls back as JSON that they have written anew, and a text has many tokenisations.
//
// Bounded: the turns that were not used for longest leave. Shared by all requests to a model; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"
#include "serving/api/chat_answer.h"

namespace moesaic {

class Tokenizer;

// The text of a prompt, as the chat template rendered it. The hash is the same on every machine.
struct PromptKey {
  uint64_t hash = 0;
  uint64_t bytes = 0;

  bool operator==(const PromptKey&) const = default;
};
PromptKey PromptKeyOf(std::string_view text);

struct GeneratedTurn {
  PromptKey prompt;               // what it was generated behind
  std::vector<int32_t> tokens;    // the last one is the special token that ended it
  std::vector<AnswerItem> items;  // what they mean
};

class ReplayStore {
 public:
  explicit ReplayStore(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Found by the id of its first call; a turn without one is not kept.
  void Put(GeneratedTurn turn);
  // Null: not there.
  std::shared_ptr<const GeneratedTurn> Find(std::string_view call_id);
  size_t bytes() const;

  // All turns, the ones that were not used for longest first.
  std::vector<std::shared_ptr<const GeneratedTurn>> Turns() const;
  // Turns of another process, in that order, whose model had this vocabulary.
  void Restore(std::vector<GeneratedTurn> turns, uint64_t vocabulary);
  // What tokens are from now on: turns that were restored from another vocabulary, or have tokens
  // that it has not, leave.
  void UseVocabulary(const Tokenizer& tokenizer);
  // A hash of it; 0: not told yet.
  uint64_t vocabulary() const;

 private:
  struct Entry {
    std::string id;
    size_t bytes = 0;
    std::shared_ptr<const GeneratedTurn> turn;  // shared with who has found it
  };
  using Entries = std::list<Entry>;  // the one that was used last is first

  void PutLocked(GeneratedTurn turn) REQUIRES(mutex_);
  void Erase(Entries::iterator entry) REQUIRES(mutex_);

  const size_t max_bytes_;
  mutable Mutex mutex_;
  Entries entries_ GUARDED_BY(mutex_);
  std::map<std::string, Entries::iterator, std::less<>> by_id_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t vocabulary_ GUARDED_BY(mutex_) = 0;
};

}  // namespace moesaic
