// OutputConstraint: what an output is held to: the grammar of all of it, with where in the output
// that begins, and grammars of calls, which begin wherever the model begins one.
// ConstraintState: how far one sequence has come in it.
//
// A constraint is immutable and shared by the choices of a request; a state is its sequence's, used
// by one thread at a time (its masks may be made on another, mask_ahead.h). A preempted sequence
// keeps it: tokens are computed again, not chosen.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/engine/mask_ahead.h"
#include "serving/grammar/grammar.h"

namespace moesaic {

// A call that the model begins by itself, in free text.
struct HeldCall {
  std::string begin;
  bool also_in_reasoning = false;          // else reasoning only mentions it
  std::shared_ptr<const Grammar> grammar;  // from behind `begin`; once it is complete all is free
};

struct OutputConstraint {
  std::shared_ptr<const Grammar> grammar;  // null: only calls are held
  // The grammar begins behind this text, what comes before is free; empty: it begins at once.
  std::string begins_behind;
  // Where the grammar begins at once: tokens with which the model may think first. It ends with
  // `thinking_end`, and then the grammar begins.
  std::vector<int32_t> thinking_tokens;
  std::string thinking_end;
  // Tokens in place of the grammar's first, after which all is free: a call of a tool.
  std::vector<int32_t> releasing_tokens;
  // The output may end before the grammar begins.
  bool may_end_before = false;

  std::vector<HeldCall> calls;
  bool call_ends_output = false;  // nothing comes behind a call but an end token
  // Of the text in which calls are only mentioned; empty: there is none.
  std::string reasoning_begin;
  std::string reasoning_end;
  bool begins_in_reasoning = false;
};

class ConstraintState {
 public:
  explicit ConstraintState(std::shared_ptr<const OutputConstraint> constraint);

  // Sets the logits [vocab] of tokens that may not come next to minus infinity. `forbidden`: end
  // tokens that must not come yet; where the grammar allows no other they may all the same. Throws
  // Error when no token may come or the grammar fails.
  void Mask(std::span<const int32_t> forbidden, std::span<float> logits);
  // The sequence's next token, with its text. `forced`: it was not chosen under the mask (a budget
  // of thinking ended). Throws Error for a token that does not fit.
  void Append(int32_t token, std::string_view bytes, bool forced);
  // Nothing comes after what has been appended.
  bool ended() const { return at_ != At::kFree && match_->ended(); }
  // All tokens may come next.
  bool free() const { return at_ == At::kFree && (marker_.empty() || constraint_->may_end_before); }
  // Whose mask the next token is chosen under, to be made ahead; null: under none.
  std::shared_ptr<MaskedMatch> NextMask() const { return at_ == At::kFree ? nullptr : match_; }

 private:
  enum class At { kFree, kBegin, kGrammar, kCall };

  // What a piece of free text is looked through for.
  struct Found {
    size_t at = std::string::npos;
    size_t bytes = 0;
    enum class What { kMarker, kCall, kReasoningBegin, kReasoningEnd } what = What::kMarker;
    const HeldCall* call = nullptr;
  };

  void BeginBehind(std::string_view marker);
  Found Find() const;
  void KeepTail();
  void TakeFreeText(std::string_view bytes, bool forced);
  void BeginGrammar(std::string_view rest, bool forced);
  bool BeginCall(const HeldCall& call, std::string_view rest);
  bool EndsFree(MaskedMatch& call) const;

  const std::shared_ptr<const OutputConstraint> constraint_;
  std::shared_ptr<MaskedMatch> match_;  // of the grammar, or of the call; shared with a MaskMaker
  At at_ = At::kFree;
  bool may_think_ = false;
  bool in_reasoning_ = false;
  std::string_view marker_;  // what free text ends with; empty: nothing
  std::string text_;         // that may be the beginning of what is looked for
};

}  // namespace moesaic
