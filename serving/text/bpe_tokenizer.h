// BpeTokenizer: the Tokenizer that a tokenizer.json with a BPE model describes.
//
// Encoding threads share it; each call borrows a scratch (buffers, word cache) from a small pool,
// so that threads share no cache line while they encode.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "serving/text/added_tokens.h"
#include "serving/text/bpe_model.h"
#include "serving/text/normalizer.h"
#include "serving/text/pre_tokenizer.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

class BpeTokenizer : public Tokenizer {
 public:
  struct Parts {
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    std::unique_ptr<BpeModel> model;
    std::vector<AddedToken> added_tokens;
    std::vector<int32_t> prefix;  // ids around a text, with add_special_tokens
    std::vector<int32_t> suffix;
    TokenTable table;
    DecodeRules rules;
    SpecialTokenIds special_ids;
  };
  explicit BpeTokenizer(Parts parts);
  ~BpeTokenizer() override;

  std::vector<int32_t> EncodeSegments(std::span<const TextSegment> segments,
                                      bool add_special_tokens) const override;

 private:
  struct Scratch;
  class Borrowed;

  static std::vector<AddedTokenMatcher::Entry> RawEntries(const std::vector<AddedToken>& tokens);
  std::vector<AddedTokenMatcher::Entry> NormalizedEntries(
      const std::vector<AddedToken>& tokens) const;
  void EncodeText(std::string_view text, bool at_start, Scratch& scratch,
                  std::vector<int32_t>& ids) const;
  void EncodeNormalized(std::string_view text, bool at_start, const std::vector<PlainRange>& plain,
                        Scratch& scratch, std::vector<int32_t>& ids) const;

  const Normalizer normalizer_;
  const PreTokenizer pre_tokenizer_;
  const std::unique_ptr<const BpeModel> model_;
  const std::vector<int32_t> prefix_;
  const std::vector<int32_t> suffix_;
  const AddedTokenMatcher raw_matcher_;         // on the text as it came
  const AddedTokenMatcher normalized_matcher_;  // on the normalised text
  // Special tokens that are looked for in normalised text, as they are written: they are looked for
  // in the text as it came where some of it is plain, because ranges do not survive normalisation.
  const AddedTokenMatcher raw_special_matcher_;

  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_ GUARDED_BY(mutex_);
};

}  // namespace moesaic
