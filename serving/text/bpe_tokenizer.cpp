#include "serving/text/bpe_tokenizer.h"

#include <utility>

#include "core/base/error.h"
#include "serving/text/segments.h"

namespace moesaic {

struct BpeTokenizer::Scratch {
  RegexScratch regex;
  PreTokenizerScratch pre;
  BpeScratch bpe;
  std::vector<AddedTokenMatcher::Part> raw_parts;
  std::vector<AddedTokenMatcher::Part> normalized_parts;
  std::vector<PlainRange> part_plain;

  // Gives back what one huge text has blown up.
  void Trim() {
    constexpr size_t kKeptPieces = 1 << 16;
    if (pre.pieces.capacity() > kKeptPieces || pre.next_pieces.capacity() > kKeptPieces) {
      pre = {};
    }
    if (bpe.symbols.capacity() > kKeptPieces) {
      bpe.symbols = {};
      bpe.heap = {};
      bpe.initial = {};
    }
  }
};

// A scratch for one call: from the pool, or a new one when all are in use.
class BpeTokenizer::Borrowed {
 public:
  explicit Borrowed(const BpeTokenizer& owner) : owner_(owner) {
    {
      MutexLock lock(owner_.mutex_);
      if (!owner_.idle_.empty()) {
        scratch_ = std::move(owner_.idle_.back());
        owner_.idle_.pop_back();
      }
    }
    if (!scratch_) scratch_ = std::make_unique<Scratch>();
  }
  ~Borrowed() {
    scratch_->pre.owned.clear();
    scratch_->Trim();
    MutexLock lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(scratch_));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  Scratch& operator*() { return *scratch_; }

 private:
  const BpeTokenizer& owner_;
  std::unique_ptr<Scratch> scratch_;
};

BpeTokenizer::BpeTokenizer(Parts parts)
    : Tokenizer(std::move(parts.table), std::move(parts.rules), parts.special_ids),
      normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      model_(std::move(parts.model)),
      prefix_(std::move(parts.prefix)),
      suffix_(std::move(parts.suffix)),
      raw_matcher_(RawEntries(parts.added_tokens)),
      normalized_matcher_(NormalizedEntries(parts.added_tokens)),
      raw_special_matcher_([&] {
        std::vector<AddedToken> tokens;
        for (AddedToken token : parts.added_tokens) {
          token.normalized = token.normalized && !token.special;
          tokens.push_back(std::move(token));
        }
        return RawEntries(tokens);
      }()) {}

BpeTokenizer::~BpeTokenizer() = default;

std::vector<AddedTokenMatcher::Entry> BpeTokenizer::RawEntries(
    const std::vector<AddedToken>& tokens) {
  std::vector<AddedTokenMatcher::Entry> entries;
  for (const AddedToken& token : tokens) {
    if (!token.normalized) entries.push_back({token.content, token});
  }
  return entries;
}

std::vector<AddedTokenMatcher::Entry> BpeTokenizer::NormalizedEntries(
    const std::vector<AddedToken>& tokens) const {
  std::vector<AddedTokenMatcher::Entry> entries;
  RegexScratch scratch;
  for (const AddedToken& token : tokens) {
    if (!token.normalized) continue;
    bool stripped = false;
    std::string pattern = normalizer_.Normalize(token.content, scratch, &stripped);
    if (!pattern.empty()) entries.push_back({std::move(pattern), token});
  }
  return entries;
}

std::vector<int32_t> BpeTokenizer::EncodeSegments(std::span<const TextSegment> segments,
                                                  bool add_special_tokens) const {
  const JoinedText joined(segments);
  Borrowed borrowed(*this);
  Scratch& scratch = *borrowed;
  std::vector<int32_t> ids;
  ids.reserve(joined.text().size() / 3 + prefix_.size() + suffix_.size());
  if (add_special_tokens) ids = prefix_;

  // With a normaliser the plain ranges are known in the text as it came only.
  const bool all_before = !normalizer_.empty() && !joined.plain().empty();
  const AddedTokenMatcher& matcher = all_before ? raw_special_matcher_ : raw_matcher_;
  PlainRangeCursor plain_ranges(joined.plain());
  scratch.raw_parts.clear();
  matcher.Split(joined.text(), joined.plain(), scratch.raw_parts);
  for (const AddedTokenMatcher::Part& part : scratch.raw_parts) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
      continue;
    }
    const std::string_view text = joined.text().substr(part.begin, part.end - part.begin);
    const bool at_start = part.begin == 0;
    std::vector<PlainRange>& plain = scratch.part_plain;
    plain.clear();
    if (!normalizer_.empty()) {
      bool stripped = false;
      const std::string normalized = normalizer_.Normalize(text, scratch.regex, &stripped);
      if (all_before) plain.push_back({0, normalized.size()});
      EncodeNormalized(normalized, at_start && !stripped, plain, scratch, ids);
      continue;
    }
    plain_ranges.Take(part.begin, part.end, plain);
    EncodeNormalized(text, at_start, plain, scratch, ids);
  }
  if (add_special_tokens) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

void BpeTokenizer::EncodeNormalized(std::string_view text, bool at_start,
                                    const std::vector<PlainRange>& plain, Scratch& scratch,
                                    std::vector<int32_t>& ids) const {
  scratch.normalized_parts.clear();
  normalized_matcher_.Split(text, plain, scratch.normalized_parts);
  for (const AddedTokenMatcher::Part& part : scratch.normalized_parts) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
    } else {
      EncodeText(text.substr(part.begin, part.end - part.begin), at_start && part.begin == 0,
                 scratch, ids);
    }
  }
}

void BpeTokenizer::EncodeText(std::string_view text, bool at_start, Scratch& scratch,
                              std::vector<int32_t>& ids) const {
  scratch.pre.owned.clear();
  scratch.pre.pieces.clear();
  scratch.pre.pieces.push_back({text, at_start});
  pre_tokenizer_.Run(scratch.pre, scratch.regex);
  for (const TextPiece& piece : scratch.pre.pieces) model_->Encode(piece.text, scratch.bpe, ids);
}

}  // namespace moesaic
