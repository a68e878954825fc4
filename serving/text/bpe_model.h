// BpeModel: the "model" of a BPE tokenizer.json: splits a word into symbols and merges neighbours
// in the order of the merge table.
//
// Immutable; safe from any thread with a BpeScratch per thread. A word of n symbols costs
// O(n log n), whatever it holds.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_fields.h"
#include "serving/text/vocabulary.h"
#include "serving/text/word_cache.h"

namespace moesaic {

struct BpeScratch {
  struct Symbol {
    uint32_t id;
    int32_t previous;  // indices into `symbols`; -1 at the ends
    int32_t next;
    bool merged;  // it has become part of the symbol before it
  };
  struct Candidate {
    uint64_t order;  // rank << 32 | position: the smallest is merged first
    uint32_t merged_id;
  };
  std::vector<uint32_t> initial;
  std::vector<uint32_t> ranks;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  WordCache cache;
};

class BpeModel {
 public:
  // `raw_bytes`: words come as plain bytes and the vocabulary is in the byte-level alphabet.
  BpeModel(const JsonFields& node, bool raw_bytes);

  // True when a model of this description can take words as raw bytes: it adds nothing to the
  // symbols at a word's ends and does not fall back to byte tokens.
  static bool AllowsRawBytes(const JsonFields& node);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Appends the ids of `word` (not empty; valid UTF-8 unless raw bytes). Throws
  // Error(kInvalidArgument) for an unknown character when the vocabulary lacks the unk_token.
  void Encode(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint32_t left = UINT32_MAX;  // free slot
    uint32_t right = 0;
    uint32_t rank = 0;
    uint32_t merged_id = 0;
  };

  void LoadVocabulary(const JsonFields& node);
  void LoadMerges(const JsonFields& node);
  // Every two tokens that are a token together are merged, those of the lowest id first.
  void MergeById();
  void ReserveMerges(size_t count);
  void FindBoundaryCharacter();
  const Merge* FindMerge(uint32_t left, uint32_t right) const;
  void InsertMerge(const Merge& merge);
  size_t MergeSlot(uint32_t left, uint32_t right) const {
    return ((left * 0x9E3779B97F4A7C15ull) ^ (right * 0xC2B2AE3D27D4EB4Full)) >> merge_shift_;
  }

  void EncodePart(std::string_view part, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void InitialSymbols(std::string_view word, std::vector<uint32_t>& symbols) const;
  void MergeShort(BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void MergeLong(BpeScratch& scratch, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary_;
  Vocabulary byte_words_;      // raw bytes -> id, for ignore_merges
  std::vector<Merge> merges_;  // open addressing, a power of two
  int merge_shift_ = 63;
  bool raw_bytes_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  int32_t unk_id_ = kNoToken;
  std::optional<std::string> missing_unk_;  // the unk_token, when the vocabulary lacks it
  std::string prefix_;                      // of every symbol but a word's first
  std::string suffix_;                      // of a word's last symbol
  std::array<int32_t, 256> byte_ids_{};     // the token of a byte: byte-level, or <0xHH>
  bool has_all_bytes_ = false;
  // U+2581 where no token holds it behind another character: then no merge crosses the place before
  // it, and long texts can be cut (and cached) there.
  bool cut_at_metaspace_ = false;
};

}  // namespace moesaic
