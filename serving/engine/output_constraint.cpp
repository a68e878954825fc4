#include "serving/engine/output_constraint.h"

#include <algorithm>
#include <array>
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
  // Bit i of a word, to be compared in vectors, without a branch for each token.
  static constexpr std::array<uint32_t, kWordBits> kBits = [] {
    std::array<uint32_t, kWordBits> bits{};
    for (size_t i = 0; i < kWordBits; ++i) bits[i] = uint32_t{1} << i;
    return bits;
  }();
  for (size_t first = 0; first < logits.size(); first += kWordBits) {
    const auto word = static_cast<uint32_t>(words[first / kWordBits]);
    if (word == ~uint32_t{0}) continue;
    const size_t count = std::min(kWordBits, logits.size() - first);
    float* const row = logits.data() + first;
    if (word == 0) {
      std::fill_n(row, count, kNever);
    } else if (count == kWordBits) {
      for (size_t i = 0; i < kWordBits; ++i) row[i] = (word & kBits[i]) != 0 ? row[i] : kNever;
    } else {
      for (size_t i = 0; i < count; ++i) row[i] = (word & kBits[i]) != 0 ? row[i] : kNever;
    }
  }
}

}  // namespace

ConstraintState::ConstraintState(std::shared_ptr<const OutputConstraint> constraint)
    : constraint_(std::move(constraint)),
      may_think_(!constraint_->thinking_tokens.empty()),
      in_reasoning_(constraint_->begins_in_reasoning) {
  if (constraint_->grammar == nullptr) return;
  match_ = std::make_shared<MaskedMatch>(*constraint_->grammar);
  at_ = At::kBegin;
  if (!constraint_->begins_behind.empty()) BeginBehind(constraint_->begins_behind);
}

void ConstraintState::BeginBehind(std::string_view marker) {
  at_ = At::kFree;
  marker_ = marker;
  text_.clear();
}

void ConstraintState::Mask(std::span<const int32_t> forbidden, std::span<float> logits) {
  if (at_ == At::kFree) {
    const std::span<const int32_t> ends = free() ? forbidden : constraint_->grammar->end_tokens();
    for (const int32_t token : ends) {
      if (token >= 0 && static_cast<size_t>(token) < logits.size()) {
        logits[static_cast<size_t>(token)] = kNever;
      }
    }
    return;
  }
  const std::span<int32_t> words = match_->Mask();
  const size_t tail = logits.size() % kWordBits;  // bits of no token
  if (tail != 0) {
    words.back() =
        static_cast<int32_t>(static_cast<uint32_t>(words.back()) & ((uint32_t{1} << tail) - 1));
  }
  if (at_ == At::kBegin) {
    if (may_think_) {
      for (const int32_t token : constraint_->thinking_tokens) Set(words, token, true);
    }
    for (const int32_t token : constraint_->releasing_tokens) Set(words, token, true);
  }
  if (!AllowsAny(words)) {
    Fail(ErrorKind::kInternal,
         "the output's grammar allows nothing here that this model has tokens for");
  }
  std::vector<int32_t> kept;
  for (const int32_t token : forbidden) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size() || !Allows(words, token)) continue;
    Set(words, token, false);
    kept.push_back(token);
  }
  if (!kept.empty() && !AllowsAny(words)) {
    for (const int32_t token : kept) Set(words, token, true);
  }
  Apply(words, logits);
}

// What comes first in the text.
ConstraintState::Found ConstraintState::Find() const {
  Found found;
  const auto look = [&](std::string_view text, Found::What what, const HeldCall* call = nullptr) {
    const size_t at = text.empty() ? std::string::npos : text_.find(text);
    if (at < found.at) found = {at, text.size(), what, call};
  };
  look(marker_, Found::What::kMarker);
  for (const HeldCall& call : constraint_->calls) {
    if (!in_reasoning_ || call.also_in_reasoning) look(call.begin, Found::What::kCall, &call);
  }
  if (in_reasoning_) {
    look(constraint_->reasoning_end, Found::What::kReasoningEnd);
  } else {
    look(constraint_->reasoning_begin, Found::What::kReasoningBegin);
  }
  return found;
}

// Nothing was found: as much is kept as may be the beginning of something.
void ConstraintState::KeepTail() {
  size_t longest = std::max(
      {marker_.size(), constraint_->reasoning_begin.size(), constraint_->reasoning_end.size()});
  for (const HeldCall& call : constraint_->calls) longest = std::max(longest, call.begin.size());
  if (text_.size() >= longest) text_.erase(0, text_.size() - std::max<size_t>(longest, 1) + 1);
}

void ConstraintState::TakeFreeText(std::string_view bytes, bool forced) {
  text_ += bytes;
  for (Found found = Find(); found.at != std::string::npos; found = Find()) {
    text_.erase(0, found.at + found.bytes);
    switch (found.what) {
      case Found::What::kMarker:
        return BeginGrammar(std::exchange(text_, {}), forced);
      case Found::What::kCall:
        // What goes on otherwise in the same token has not begun a call.
        if (!forced && BeginCall(*found.call, text_)) return;
        break;
      case Found::What::kReasoningBegin:
        in_reasoning_ = true;
        break;
      case Found::What::kReasoningEnd:
        in_reasoning_ = false;
        break;
    }
  }
  KeepTail();
}

// `rest`: of a token that goes on behind the marker: line breaks, as a rule.
void ConstraintState::BeginGrammar(std::string_view rest, bool forced) {
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
  at_ = At::kBegin;
  may_think_ = false;
  marker_ = {};
  in_reasoning_ = false;
  if (rest.empty() || forced) return;
  at_ = At::kGrammar;
  if (!match_->AcceptText(rest)) {
    Fail(ErrorKind::kInternal,
         "a token that goes beyond the end of thinking does not fit the "
         "output's grammar");
  }
}

// The call is whole: other calls may follow, and text.
bool ConstraintState::EndsFree(MaskedMatch& call) const {
  return !constraint_->call_ends_output && call.complete();
}

bool ConstraintState::BeginCall(const HeldCall& call, std::string_view rest) {
  auto match = std::make_shared<MaskedMatch>(*call.grammar);
  if (!rest.empty() && !match->AcceptText(rest)) return false;
  // A grammar that has not begun yet does not come any more: the model calls in its place.
  match_ = std::move(match);
  at_ = EndsFree(*match_) ? At::kFree : At::kCall;
  marker_ = {};
  in_reasoning_ = false;
  text_.clear();
  return true;
}

void ConstraintState::Append(int32_t token, std::string_view bytes, bool forced) {
  const bool looks = !marker_.empty() || !constraint_->calls.empty();
  if (at_ == At::kFree) return looks ? TakeFreeText(bytes, forced) : void();
  if (forced) return;
  if (at_ == At::kBegin) {
    const auto among = [token](const std::vector<int32_t>& tokens) {
      return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
    };
    if (may_think_ && among(constraint_->thinking_tokens)) {
      BeginBehind(constraint_->thinking_end);
      in_reasoning_ = true;
      return;
    }
    if (among(constraint_->releasing_tokens)) {
      at_ = At::kFree;
      if (!constraint_->calls.empty()) TakeFreeText(bytes, false);
      return;
    }
    at_ = At::kGrammar;
  }
  if (!match_->Accept(token)) {
    Fail(ErrorKind::kInternal, "token {} does not fit the output's grammar", token);
  }
  if (at_ == At::kCall && EndsFree(*match_)) at_ = At::kFree;
}

}  // namespace moesaic
