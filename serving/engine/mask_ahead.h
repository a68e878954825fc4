// MaskedMatch: a match in a grammar, with the mask of what may come next. MaskMaker: makes masks on
// a thread of its own, while the engine runs the step whose token they are for (and while it waits
// for that step's experts).
//
// A match is its sequence's, used by one thread at a time, beside the maker's: it may be handed to
// the maker between two tokens and is taken back where it is needed. When a mask is made changes
// nothing of it. A MaskMaker is owned by an engine; any thread may call.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "serving/grammar/grammar.h"

namespace moesaic {

class MaskedMatch {
 public:
  explicit MaskedMatch(const Grammar& grammar);

  // GrammarMatch::Fill's words, made ahead or now. The caller may change them. Waits where they are
  // being made; throws as Fill does.
  std::span<int32_t> Mask();
  bool Accept(int32_t token);
  bool AcceptText(std::string_view text);
  bool complete();
  bool ended() const { return ended_; }

 private:
  friend class MaskMaker;
  enum class State { kNone, kQueued, kBeingMade, kMade };

  bool SetQueued();
  void MakeIfQueued();
  // Afterwards the match and the words are the caller's. Whether the words are made.
  bool TakeBack();

  const std::unique_ptr<GrammarMatch> match_;
  std::vector<int32_t> words_;  // [vocab / 32]
  bool ended_ = false;          // told also while the match is in use elsewhere
  Mutex mutex_;
  CondVar made_;
  State state_ GUARDED_BY(mutex_) = State::kNone;
  std::optional<Error> error_ GUARDED_BY(mutex_);
};

class MaskMaker {
 public:
  MaskMaker() = default;
  ~MaskMaker();
  MaskMaker(const MaskMaker&) = delete;
  MaskMaker& operator=(const MaskMaker&) = delete;

  // Its next mask will be wanted, behind those that were queued before. Shared: the sequence may
  // end meanwhile. The first call starts the thread.
  void Queue(std::shared_ptr<MaskedMatch> match);

 private:
  void Work();

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<MaskedMatch>> queue_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace moesaic
