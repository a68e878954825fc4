#include "serving/engine/output_constraint.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/error.h"

namespace moesaic {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr size_t kWordBits = 32;

bool Allows(std::span<const int32_t> words, int32_t token) {
  const auto at = static_cast<size_t>(token);
  return (static_cast<uint32_t>(words[at / kWordBits]) >> (at % kWordBits) & 1) != 0;
}

void Set(std::span<int32_t> words, int32_t token, bool allowed) {
  const auto at = static_cast<size_t>(token);
  const auto bit = uint32_t{1} << (at % kWordBits);
  auto word = static_cast<uint32_t>(words[at / kWordBits]);
  word = allowed ? word | bit : word & ~bit;
  words[at / kWordBits] = static_cast<int32_t>(word);
}

bool AllowsAny(std::span<const int32_t> words) {
  return std::any_of(words.begin(), words.end(), [](int32_t word) { return word != 0; });
}

void Apply(std::span<const int32_t> words, std::span<float> logits) {
  for (size_t first = 0; first < logits.size(); first += kWordBits) {
    const auto word = static_cast<uint32_t>(words[first / kWordBits]);
    if (word == ~uint32_t{0}) continue;
    const size_t count = std::min(kWordBits, logits.size() - first);
    for (size_t i = 0; i < count; ++i) {
      if ((word >> i & 1) == 0) logits[first + i] = kNever;
    }
  }
}

}  // namespace

ConstraintState::ConstraintState(std::shared_ptr<const OutputConstraint> constraint)
    : constraint_(std::move(constraint)),
      match_(constraint_->grammar->Start()),
      may_think_(!constraint_->thinking_tokens.empty()),
      words_((static_cast<size_t>(constraint_->grammar->vocab_size()) + kWordBits - 1) /
             kWordBits) {
  if (!constraint_->begins_behind.empty()) BeginBehind(constraint_->begins_behind);
}

void ConstraintState::BeginBehind(std::string_view marker) {
  at_ = At::kBefore;
  marker_ = marker;
  text_.clear();
}

void ConstraintState::Mask(std::span<const int32_t> forbidden, std::span<float> logits) {
  if (at_ == At::kReleased || at_ == At::kBefore) {
    const std::span<const int32_t> ends = at_ == At::kBefore && !constraint_->may_end_before
                                              ? constraint_->grammar->end_tokens()
                                              : forbidden;
    for (const int32_t token : ends) {
      if (token >= 0 && static_cast<size_t>(token) < logits.size()) {
        logits[static_cast<size_t>(token)] = kNever;
      }
    }
    return;
  }
  match_->Fill(words_);
  const size_t tail = logits.size() % kWordBits;  // bits of no token
  if (tail != 0) {
    words_.back() =
        static_cast<int32_t>(static_cast<uint32_t>(words_.back()) & ((uint32_t{1} << tail) - 1));
  }
  if (at_ == At::kBegin) {
    if (may_think_) {
      for (const int32_t token : constraint_->thinking_tokens) Set(words_, token, true);
    }
    for (const int32_t token : constraint_->releasing_tokens) Set(words_, token, true);
  }
  if (!AllowsAny(words_)) {
    Fail(ErrorKind::kInternal,
         "the output's grammar allows nothing here that this model has tokens for");
  }
  std::vector<int32_t> kept;
  for (const int32_t token : forbidden) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size() || !Allows(words_, token))
      continue;
    Set(words_, token, false);
    kept.push_back(token);
  }
  if (!kept.empty() && !AllowsAny(words_)) {
    for (const int32_t token : kept) Set(words_, token, true);
  }
  Apply(words_, logits);
}

void ConstraintState::TakeFreeText(std::string_view bytes, bool forced) {
  text_ += bytes;
  const size_t found = text_.find(marker_);
  if (found == std::string::npos) {
    if (text_.size() >= marker_.size()) text_.erase(0, text_.size() - marker_.size() + 1);
    return;
  }
  // The rest of a token that goes on behind the marker: line breaks, as a rule.
  std::string_view rest = std::string_view(text_).substr(found + marker_.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
  at_ = At::kBegin;
  may_think_ = false;
  if (rest.empty() || forced) return;
  at_ = At::kGrammar;
  if (!match_->AcceptText(rest)) {
    Fail(ErrorKind::kInternal,
         "a token that goes beyond the end of thinking does not fit the "
         "output's grammar");
  }
}

void ConstraintState::Append(int32_t token, std::string_view bytes, bool forced) {
  if (at_ == At::kReleased) return;
  if (at_ == At::kBefore) return TakeFreeText(bytes, forced);
  if (forced) return;
  if (at_ == At::kBegin) {
    const auto among = [token](const std::vector<int32_t>& tokens) {
      return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
    };
    if (may_think_ && among(constraint_->thinking_tokens)) {
      BeginBehind(constraint_->thinking_end);
      return;
    }
    if (among(constraint_->releasing_tokens)) {
      at_ = At::kReleased;
      return;
    }
    at_ = At::kGrammar;
  }
  if (!match_->Accept(token)) {
    Fail(ErrorKind::kInternal, "token {} does not fit the output's grammar", token);
  }
}

}  // namespace moesaic
