#include "serving/engine/output_processor.h"

#include <algorithm>
#include <utility>

namespace moesaic {
namespace {

// The output goes on from the prompt: rules for the beginning of a text do not apply to it.
DetokenizerOptions DetokenizerOptionsOf(const EngineRequest& request) {
  return {.skip_special = request.skip_special_tokens,
          .shown_special = request.shown_special_tokens,
          .continues_text = true};
}

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

OutputProcessor::OutputProcessor(const Tokenizer& tokenizer, const EngineRequest& request,
                                 std::span<const int32_t> eos_token_ids, int64_t max_output_tokens)
    : tokenizer_(tokenizer),
      request_(request),
      max_output_tokens_(max_output_tokens),
      detokenizer_(tokenizer, DetokenizerOptionsOf(request)),
      stops_(request.stop) {
  if (!request.ignore_eos) end_tokens_.assign(eos_token_ids.begin(), eos_token_ids.end());
  end_tokens_.insert(end_tokens_.end(), request.stop_token_ids.begin(),
                     request.stop_token_ids.end());
}

std::optional<FinishReason> OutputProcessor::Append(GeneratedToken token) {
  const int32_t id = token.token;
  delta_.tokens.push_back(std::move(token));
  delta_.token_ends.push_back(text_bytes_);
  ++output_tokens_;
  const bool may_stop = output_tokens_ > request_.min_tokens;
  if (may_stop && std::find(end_tokens_.begin(), end_tokens_.end(), id) != end_tokens_.end()) {
    return FinishReason::kStop;
  }
  piece_.clear();
  detokenizer_.Add(id, &piece_);
  const std::vector<int32_t>& shown = request_.shown_special_tokens;
  const std::string_view text = tokenizer_.TokenBytes(id);
  text_bytes_ += piece_.size();
  delta_.token_ends.back() = text_bytes_;
  if (std::find(shown.begin(), shown.end(), id) != shown.end() && piece_.ends_with(text)) {
    delta_.special_offsets.push_back(text_bytes_ - text.size());
  }
  if (!may_stop) {
    delta_.text += piece_;
  } else if (stops_.Add(piece_, &delta_.text)) {
    delta_.stop_text = request_.stop[*stops_.matched()];
    if (request_.include_stop_in_output) delta_.text += delta_.stop_text;
    return FinishReason::kStop;
  }
  if (output_tokens_ >= max_output_tokens_) return FinishReason::kLength;
  return std::nullopt;
}

void OutputProcessor::Finish() {
  if (stops_.matched()) return;
  piece_.clear();
  detokenizer_.Finish(&piece_);
  // What was held back may still complete a stop string.
  if (stops_.Add(piece_, &delta_.text)) {
    delta_.stop_text = request_.stop[*stops_.matched()];
  } else {
    stops_.Finish(&delta_.text);
  }
}

OutputDelta OutputProcessor::Take() { return std::exchange(delta_, {}); }

}  // namespace moesaic
