#include "serving/text/bpe_model.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "serving/text/byte_level.h"
#include "serving/text/unicode.h"

namespace moesaic {
namespace {

constexpr std::string_view kMetaspaceUtf8 = "\xE2\x96\x81";
constexpr size_t kShortWordSymbols = 32;  // up to here a scan beats the heap

std::string ByteToken(int byte) { return fmt::format("<0x{:02X}>", byte); }

// True when `token` holds U+2581 behind any other character.
bool HasInnerMetaspace(std::string_view token) {
  while (token.starts_with(kMetaspaceUtf8)) token.remove_prefix(kMetaspaceUtf8.size());
  return token.find(kMetaspaceUtf8) != std::string_view::npos;
}

bool Later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.order > b.order;
}

}  // namespace

bool BpeModel::AllowsRawBytes(const JsonFields& node) {
  return node.OptionalString("continuing_subword_prefix").value_or("").empty() &&
         node.OptionalString("end_of_word_suffix").value_or("").empty() &&
         !node.OptionalBool("byte_fallback").value_or(false);
}

BpeModel::BpeModel(const JsonFields& node, bool raw_bytes) : raw_bytes_(raw_bytes) {
  ignore_merges_ = node.OptionalBool("ignore_merges").value_or(false);
  byte_fallback_ = node.OptionalBool("byte_fallback").value_or(false);
  fuse_unk_ = node.OptionalBool("fuse_unk").value_or(false);
  prefix_ = node.OptionalString("continuing_subword_prefix").value_or("");
  suffix_ = node.OptionalString("end_of_word_suffix").value_or("");
  LoadVocabulary(node.At("vocab"));
  if (const auto unk = node.Member("unk_token")) {
    // One that the vocabulary lacks is no error of the file, as in the reference implementation: a
    // vocabulary that has all bytes never needs it. A text that does is refused.
    unk_id_ = vocabulary_.Find(unk->String());
    if (unk_id_ == kNoToken) missing_unk_ = unk->String();
  }
  // Not of tokenizer.json: what tiktoken_tokenizer.cpp says of a vocabulary without merges.
  if (node.OptionalBool("merge_by_id").value_or(false)) {
    MergeById();
  } else {
    LoadMerges(node.At("merges"));
  }
  has_all_bytes_ = true;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    if (raw_bytes_) {
      const char raw = static_cast<char>(byte);
      AppendByteLevel({&raw, 1}, token);
    } else {
      token = ByteToken(byte);
    }
    byte_ids_[static_cast<size_t>(byte)] = vocabulary_.Find(token);
    has_all_bytes_ = has_all_bytes_ && byte_ids_[static_cast<size_t>(byte)] != kNoToken;
  }
  if (raw_bytes_ && ignore_merges_) {
    for (const auto& [token, id] : vocabulary_) {
      if (auto bytes = DecodeByteLevel(token)) byte_words_.Add(std::move(*bytes), id);
    }
  }
  FindBoundaryCharacter();
}

void BpeModel::LoadVocabulary(const JsonFields& node) {
  if (!node.value().is_object()) {
    node.Refuse("expected an object of token strings and ids");
  }
  vocabulary_.Reserve(node.value().size());
  std::vector<bool> used;
  for (const auto& [token, value] : node.value().items()) {
    if (!value.is_number_integer()) {
      node.Refuse(fmt::format("the id of \"{}\" is {}, not an integer", token, value.type_name()));
    }
    // Compare as what the parser read: a huge unsigned value must not wrap.
    const bool in_range = value.is_number_unsigned()
                              ? value.get<uint64_t>() <= static_cast<uint64_t>(kMaxTokenId)
                              : false;
    if (!in_range) {
      node.Refuse(
          fmt::format("the id of \"{}\" is {}, outside 0 to {}", token, value.dump(), kMaxTokenId));
    }
    const auto id = value.get<int32_t>();
    if (used.size() <= static_cast<size_t>(id)) used.resize(static_cast<size_t>(id) + 1);
    if (used[static_cast<size_t>(id)]) {
      node.Refuse(fmt::format("id {} (of \"{}\") occurs twice", id, token));
    }
    used[static_cast<size_t>(id)] = true;
    vocabulary_.Add(token, id);
  }
}

void BpeModel::ReserveMerges(size_t count) {
  const size_t slots = std::bit_ceil(count * 2 + 2);
  merges_.assign(slots, Merge{});
  merge_shift_ = 64 - std::countr_zero(slots);
}

void BpeModel::MergeById() {
  std::vector<Merge> merges;
  for (const auto& [token, id] : vocabulary_) {
    const std::string_view whole = token;
    for (size_t at = 0; at < whole.size();) {
      NextCodePoint(whole, at);  // of the byte-level alphabet, each of which is a byte
      if (at == whole.size()) break;
      const int32_t left = vocabulary_.Find(whole.substr(0, at));
      const int32_t right = vocabulary_.Find(whole.substr(at));
      if (left == kNoToken || right == kNoToken) continue;
      const auto rank = static_cast<uint32_t>(id);
      merges.push_back({static_cast<uint32_t>(left), static_cast<uint32_t>(right), rank, rank});
    }
  }
  ReserveMerges(merges.size());
  for (const Merge& merge : merges) InsertMerge(merge);
}

void BpeModel::LoadMerges(const JsonFields& node) {
  if (!node.value().is_array()) node.Refuse("expected an array");
  const size_t count = node.value().size();
  ReserveMerges(count);
  const size_t prefix_bytes = prefix_.size();
  std::string joined;
  uint32_t rank = 0;
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& value = node.value()[i];
    std::string_view left;
    std::string_view right;
    if (value.is_string()) {
      const std::string_view text = value.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;  // the first line of a merges.txt
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        node.Element(i).Refuse(
            fmt::format("expected two tokens with one space, found \"{}\"", text));
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (value.is_array() && value.size() == 2 && value[0].is_string() &&
               value[1].is_string()) {
      left = value[0].get_ref<const std::string&>();
      right = value[1].get_ref<const std::string&>();
    } else {
      node.Element(i).Refuse("expected \"left right\" or [left, right]");
    }
    const auto find = [&](std::string_view token) {
      const int32_t id = vocabulary_.Find(token);
      if (id == kNoToken) {
        node.Element(i).Refuse(fmt::format("\"{}\" is not in model.vocab", token));
      }
      return static_cast<uint32_t>(id);
    };
    const uint32_t left_id = find(left);
    const uint32_t right_id = find(right);
    if (right.size() < prefix_bytes) {
      node.Element(i).Refuse("the right token lacks the subword prefix");
    }
    joined.assign(left);
    joined += right.substr(prefix_bytes);
    InsertMerge({left_id, right_id, rank++, find(joined)});
  }
}

void BpeModel::InsertMerge(const Merge& merge) {
  size_t slot = MergeSlot(merge.left, merge.right);
  // A pair that occurs twice has the later rank, as in the reference implementation.
  while (merges_[slot].left != UINT32_MAX &&
         (merges_[slot].left != merge.left || merges_[slot].right != merge.right)) {
    slot = (slot + 1) & (merges_.size() - 1);
  }
  merges_[slot] = merge;
}

const BpeModel::Merge* BpeModel::FindMerge(uint32_t left, uint32_t right) const {
  size_t slot = MergeSlot(left, right);
  while (merges_[slot].left != UINT32_MAX) {
    if (merges_[slot].left == left && merges_[slot].right == right) return &merges_[slot];
    slot = (slot + 1) & (merges_.size() - 1);
  }
  return nullptr;
}

void BpeModel::FindBoundaryCharacter() {
  if (raw_bytes_ || ignore_merges_ || !prefix_.empty() || !suffix_.empty()) return;
  if (vocabulary_.Find(kMetaspaceUtf8) == kNoToken) return;
  for (const auto& [token, id] : vocabulary_) {
    if (HasInnerMetaspace(token)) return;
  }
  cut_at_metaspace_ = true;
}

void BpeModel::Encode(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const int32_t id = (raw_bytes_ ? byte_words_ : vocabulary_).Find(word);
    if (id != kNoToken) {
      ids.push_back(id);
      return;
    }
  }
  if (!cut_at_metaspace_) {
    EncodePart(word, scratch, ids);
    return;
  }
  size_t begin = 0;
  while (begin < word.size()) {
    size_t pos = begin;
    while (word.substr(pos).starts_with(kMetaspaceUtf8)) pos += kMetaspaceUtf8.size();
    const size_t end = std::min(word.find(kMetaspaceUtf8, pos), word.size());
    EncodePart(word.substr(begin, end - begin), scratch, ids);
    begin = end;
  }
}

void BpeModel::EncodePart(std::string_view part, BpeScratch& scratch,
                          std::vector<int32_t>& ids) const {
  const bool cacheable = part.size() <= WordCache::kMaxWordBytes;
  uint64_t hash = 0;
  if (cacheable) {
    hash = WordCache::Hash(part);
    const std::span<const int32_t> known = scratch.cache.Find(part, hash);
    if (known.data() != nullptr) {
      ids.insert(ids.end(), known.begin(), known.end());
      return;
    }
  }
  const size_t first = ids.size();
  scratch.initial.clear();
  InitialSymbols(part, scratch.initial);
  if (scratch.initial.size() <= kShortWordSymbols) {
    MergeShort(scratch, ids);
  } else {
    MergeLong(scratch, ids);
  }
  if (cacheable) scratch.cache.Insert(part, hash, std::span(ids).subspan(first));
}

void BpeModel::InitialSymbols(std::string_view word, std::vector<uint32_t>& symbols) const {
  if (raw_bytes_ && has_all_bytes_) {
    for (const char c : word) {
      symbols.push_back(static_cast<uint32_t>(byte_ids_[static_cast<unsigned char>(c)]));
    }
    return;
  }
  // A run of unknown characters is held back: it is one token when they are fused.
  bool unknown = false;
  std::string decorated;
  size_t pos = 0;
  while (pos < word.size()) {
    const size_t begin = pos;
    int32_t id = kNoToken;
    if (raw_bytes_) {
      id = byte_ids_[static_cast<unsigned char>(word[pos++])];
    } else {
      NextCodePoint(word, pos);
      std::string_view symbol = word.substr(begin, pos - begin);
      if ((begin > 0 && !prefix_.empty()) || (pos == word.size() && !suffix_.empty())) {
        decorated.assign(begin > 0 ? prefix_ : "");
        decorated += symbol;
        if (pos == word.size()) decorated += suffix_;
        symbol = decorated;
      }
      id = vocabulary_.Find(symbol);
      if (id == kNoToken && byte_fallback_) {
        const auto byte_id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
        if (std::all_of(symbol.begin(), symbol.end(),
                        [&](char c) { return byte_id(c) != kNoToken; })) {
          for (const char c : symbol) symbols.push_back(static_cast<uint32_t>(byte_id(c)));
          continue;
        }
      }
    }
    if (id != kNoToken) {
      if (unknown) symbols.push_back(static_cast<uint32_t>(unk_id_));
      unknown = false;
      symbols.push_back(static_cast<uint32_t>(id));
    } else if (unk_id_ != kNoToken) {
      if (unknown && !fuse_unk_) symbols.push_back(static_cast<uint32_t>(unk_id_));
      unknown = true;
    } else if (missing_unk_) {
      Fail(ErrorKind::kInvalidArgument,
           "the text has a character that the tokenizer does not know, and the token \"{}\" that "
           "stands for such characters (model.unk_token in tokenizer.json) is not in its "
           "vocabulary; "
           "leave the character out",
           *missing_unk_);
    }
  }
  if (unknown) symbols.push_back(static_cast<uint32_t>(unk_id_));
}

// Scans for the best pair after every merge: quadratic, but in at most kShortWordSymbols.
void BpeModel::MergeShort(BpeScratch& scratch, std::vector<int32_t>& ids) const {
  std::vector<uint32_t>& symbols = scratch.initial;
  std::vector<uint32_t>& ranks = scratch.ranks;  // of the pair that begins here
  size_t count = symbols.size();
  if (count == 0) return;
  ranks.assign(count, UINT32_MAX);
  const auto rank_at = [&](size_t i) {
    if (i + 1 >= count) return UINT32_MAX;
    const Merge* merge = FindMerge(symbols[i], symbols[i + 1]);
    return merge == nullptr ? UINT32_MAX : merge->rank;
  };
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_at(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == UINT32_MAX) break;
    symbols[best] = FindMerge(symbols[best], symbols[best + 1])->merged_id;
    const auto hole = static_cast<ptrdiff_t>(best + 1);
    symbols.erase(symbols.begin() + hole);
    ranks.erase(ranks.begin() + hole);
    --count;
    ranks[best] = rank_at(best);
    if (best > 0) ranks[best - 1] = rank_at(best - 1);
  }
  for (const uint32_t id : symbols) ids.push_back(static_cast<int32_t>(id));
}

// A linked list of symbols and a heap of pairs; pairs that have changed since they were pushed are
// recognised when they are popped.
void BpeModel::MergeLong(BpeScratch& scratch, std::vector<int32_t>& ids) const {
  using Candidate = BpeScratch::Candidate;
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  std::vector<Candidate>& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const auto count = static_cast<int32_t>(scratch.initial.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols.push_back(
        {scratch.initial[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1, false});
  }
  const auto at = [&](int32_t i) -> BpeScratch::Symbol& { return symbols[static_cast<size_t>(i)]; };
  const auto candidate = [&](int32_t i, Candidate* found) {
    const Merge* merge = FindMerge(at(i).id, at(at(i).next).id);
    if (merge == nullptr) return false;
    *found = {static_cast<uint64_t>(merge->rank) << 32 | static_cast<uint32_t>(i),
              merge->merged_id};
    return true;
  };
  Candidate found;
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (candidate(i, &found)) heap.push_back(found);
  }
  std::make_heap(heap.begin(), heap.end(), Later);
  const auto push = [&](int32_t i) {
    if (i < 0 || at(i).next < 0 || !candidate(i, &found)) return;
    heap.push_back(found);
    std::push_heap(heap.begin(), heap.end(), Later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), Later);
    const Candidate top = heap.back();
    heap.pop_back();
    const auto position = static_cast<int32_t>(static_cast<uint32_t>(top.order));
    BpeScratch::Symbol& left = at(position);
    if (left.merged || left.next < 0) continue;
    BpeScratch::Symbol& right = at(left.next);
    const Merge* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->merged_id != top.merged_id) continue;
    left.id = top.merged_id;
    right.merged = true;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = position;
    push(left.previous);
    push(position);
  }
  for (const BpeScratch::Symbol& symbol : symbols) {
    if (!symbol.merged) ids.push_back(static_cast<int32_t>(symbol.id));
  }
}

}  // namespace moesaic
