// OutputConstraint: the grammar that an output is held to, and where in the output it begins.
// ConstraintState: how far one sequence has come in it.
//
// A constraint is immutable and shared by the choices of a request; a state is its sequence's, used
// by one thread at a time. A preempted sequence keeps it: tokens are computed again, not chosen.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/grammar/grammar.h"

namespace moesaic {

struct OutputConstraint {
  std::shared_ptr<const Grammar> grammar;
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
  bool ended() const { return at_ == At::kGrammar && match_->ended(); }
  // All tokens may come next.
  bool free() const { return at_ == At::kReleased; }

 private:
  enum class At { kBefore, kBegin, kGrammar, kReleased };

  void BeginBehind(std::string_view marker);
  void TakeFreeText(std::string_view bytes, bool forced);

  const std::shared_ptr<const OutputConstraint> constraint_;
  const std::unique_ptr<GrammarMatch> match_;
  At at_ = At::kBegin;
  bool may_think_ = false;
  std::string_view marker_;  // what the free text ends with
  std::string text_;         // that may be the marker's beginning
  std::vector<int32_t> words_;
};

}  // namespace moesaic
