#include "tracer/eam_collection.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/check.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {
namespace {

constexpr uint32_t kMaxCount = 255;
constexpr uint64_t kScoreLimit = uint64_t{1} << 31;  // what find_above takes

size_t Size(int64_t n) { return static_cast<size_t>(n); }

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Whole blocks; an odd number of them, so that the columns of one layer do not compete for the same
// sets of a cache.
int64_t StrideFor(int capacity) {
  const int64_t blocks = RoundUp(capacity, kColumnBlock) / kColumnBlock;
  return (blocks | 1) * kColumnBlock;
}

AlignedBuffer Zeroed(int64_t bytes) {
  AlignedBuffer buffer(Size(bytes));
  buffer.Zero();
  return buffer;
}

}  // namespace

EamCollection::EamCollection(int num_layers, int num_experts, int capacity,
                             const CpuKernels& kernels)
    : kernels_(&kernels),
      num_layers_(num_layers),
      num_experts_(num_experts),
      capacity_(capacity),
      stride_(StrideFor(capacity)) {
  CHECK_GT(num_layers, 0);
  CHECK_GT(num_experts, 0);
  CHECK_GT(capacity, 0);
  const int64_t cells = int64_t{num_layers} * num_experts;
  columns_ = Zeroed(cells * stride_);
  rows_ = Zeroed(cells * capacity);
  inverse_norms_ = Zeroed(num_layers * stride_ * int64_t{sizeof(float)});
  scales_.resize(Size(capacity));
  staged_.resize(Size(cells));
  nearest_ = std::make_unique<EamMatcher>(*this, 1);
}

EamCollection::~EamCollection() = default;

uint64_t EamCollection::memory_bytes() const {
  return columns_.bytes() + rows_.bytes() + inverse_norms_.bytes() +
         scales_.size() * sizeof(float) + staged_.size() + nearest_->memory_bytes();
}

int EamCollection::Insert(const ExpertActivationMatrix& eam) {
  CHECK_EQ(eam.num_layers(), num_layers_);
  CHECK_EQ(eam.num_experts(), num_experts_);
  uint32_t largest = 0;
  for (int layer = 0; layer < num_layers_; ++layer) {
    for (const uint32_t count : eam.Row(layer)) largest = std::max(largest, count);
  }
  if (largest == 0) return -1;
  const double scale = std::max(1.0, static_cast<double>(largest) / kMaxCount);
  size_t cell = 0;
  for (int layer = 0; layer < num_layers_; ++layer) {
    for (const uint32_t count : eam.Row(layer)) {
      staged_[cell++] = static_cast<uint8_t>(std::lround(count / scale));
    }
  }
  const int entry = size_ < capacity_ ? size_++ : Nearest(eam).entry;
  Write(entry, staged_, static_cast<float>(scale));
  return entry;
}

EamMatch EamCollection::Nearest(const ExpertActivationMatrix& eam) {
  CHECK_EQ(eam.num_layers(), num_layers_);
  nearest_->Begin();
  for (int layer = 0; layer < num_layers_; ++layer) nearest_->ObserveRow(layer, eam.Row(layer));
  const std::span<const EamMatch> best = nearest_->Best(1);
  return best.empty() ? EamMatch{} : best.front();
}

void EamCollection::Clear() {
  columns_.Zero();
  rows_.Zero();
  inverse_norms_.Zero();
  size_ = 0;
  ++generation_;
}

std::span<const uint8_t> EamCollection::Counts(int entry) const {
  CHECK_GE(entry, 0);
  CHECK_LT(entry, size_);
  const int64_t cells = int64_t{num_layers_} * num_experts_;
  return {rows_.as<uint8_t>() + entry * cells, Size(cells)};
}

std::span<const uint8_t> EamCollection::Row(int entry, int layer) const {
  CHECK_GE(layer, 0);
  CHECK_LT(layer, num_layers_);
  return Counts(entry).subspan(Size(int64_t{layer} * num_experts_), Size(num_experts_));
}

float EamCollection::scale(int entry) const {
  CHECK_GE(entry, 0);
  CHECK_LT(entry, size_);
  return scales_[Size(entry)];
}

ExpertActivationMatrix EamCollection::Entry(int entry) const {
  ExpertActivationMatrix eam(num_layers_, num_experts_);
  for (int layer = 0; layer < num_layers_; ++layer) {
    const std::span<const uint8_t> row = Row(entry, layer);
    for (int e = 0; e < num_experts_; ++e) {
      if (row[Size(e)] == 0) continue;
      const double count = std::round(static_cast<double>(row[Size(e)]) * scale(entry));
      eam.Add(layer, e, static_cast<uint32_t>(std::min(count, 4294967295.0)));
    }
  }
  return eam;
}

void EamCollection::Restore(std::span<const uint8_t> counts, float scale) {
  CHECK_LT(size_, capacity_);
  CHECK_EQ(counts.size(), staged_.size());
  CHECK(std::isfinite(scale) && scale > 0);
  Write(size_++, counts, scale);
}

bool EamCollection::PredictRow(int layer, std::span<const EamMatch> matches,
                               std::span<float> row) const {
  CHECK_EQ(row.size(), Size(num_experts_));
  std::fill(row.begin(), row.end(), 0.0f);
  for (const EamMatch& match : matches) {
    const std::span<const uint8_t> counts = Row(match.entry, layer);
    const float tokens = scale(match.entry);
    for (size_t e = 0; e < row.size(); ++e) row[e] += tokens * static_cast<float>(counts[e]);
  }
  float sum = 0;
  for (const float tokens : row) sum += tokens;
  if (sum == 0) return false;
  for (float& share : row) share /= sum;
  return true;
}

const uint8_t* EamCollection::Column(int layer, int expert) const {
  return columns_.as<uint8_t>() + (int64_t{layer} * num_experts_ + expert) * stride_;
}

void EamCollection::Write(int entry, std::span<const uint8_t> counts, float scale) {
  std::copy(counts.begin(), counts.end(),
            rows_.as<uint8_t>() + entry * static_cast<int64_t>(counts.size()));
  uint8_t* column = columns_.as<uint8_t>() + entry;
  uint64_t norm_squared = 0;
  for (int layer = 0; layer < num_layers_; ++layer) {
    for (int e = 0; e < num_experts_; ++e, column += stride_) {
      const uint64_t count = counts[Size(int64_t{layer} * num_experts_ + e)];
      *column = static_cast<uint8_t>(count);
      norm_squared += count * count;
    }
    inverse_norms_.as<float>()[layer * stride_ + entry] =
        norm_squared == 0 ? 0.0f
                          : static_cast<float>(1.0 / std::sqrt(static_cast<double>(norm_squared)));
  }
  scales_[Size(entry)] = scale;
  ++generation_;
}

EamMatcher::EamMatcher(const EamCollection& collection, int max_matches)
    : collection_(&collection),
      max_matches_(max_matches),
      generation_(collection.generation()),
      scores_(Zeroed(collection.stride_ * int64_t{sizeof(uint32_t)})),
      tokens_(Size(collection.num_experts())),
      columns_(kMaxColumnWeightSum),
      weights_(kMaxColumnWeightSum) {
  CHECK_GT(max_matches, 0);
  used_.reserve(tokens_.size());
  best_.reserve(Size(max_matches) + 1);
}

uint64_t EamMatcher::memory_bytes() const {
  return scores_.bytes() + used_.capacity() * sizeof(Used) + tokens_.size() * sizeof(uint32_t) +
         columns_.size() * sizeof(const uint8_t*) + weights_.size() +
         best_.capacity() * sizeof(EamMatch);
}

void EamMatcher::Begin() {
  generation_ = collection_->generation();
  std::fill_n(scores_.as<uint32_t>(), RoundUp(collection_->size(), kColumnBlock), 0u);
  last_layer_ = -1;
  norm_squared_ = 0;
  weight_sum_ = 0;
  shift_ = 0;
}

void EamMatcher::ObserveRow(int layer, std::span<const uint32_t> counts) {
  CHECK_EQ(counts.size(), tokens_.size());
  used_.clear();
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0) used_.push_back({static_cast<int32_t>(e), counts[e]});
  }
  AddRow(layer);
}

void EamMatcher::ObserveExperts(int layer, std::span<const int32_t> experts) {
  used_.clear();
  for (const int32_t expert : experts) {
    CHECK_GE(expert, 0);
    CHECK_LT(Size(expert), tokens_.size());
    if (tokens_[Size(expert)]++ == 0) used_.push_back({expert, 0});
  }
  for (Used& used : used_) {
    used.tokens = tokens_[Size(used.expert)];
    tokens_[Size(used.expert)] = 0;
  }
  AddRow(layer);
}

void EamMatcher::AddRow(int layer) {
  CHECK_GT(layer, last_layer_);
  CHECK_LT(layer, collection_->num_layers());
  CHECK_EQ(generation_, collection_->generation());
  last_layer_ = layer;
  for (const Used& used : used_) norm_squared_ += static_cast<double>(used.tokens) * used.tokens;
  if (collection_->size() == 0) return;
  MakeRoom();
  // Counts above the kernel's largest weight are added digit by digit, in base 128.
  uint32_t largest = 0;
  for (const Used& used : used_) largest = std::max(largest, used.tokens);
  for (int digit_shift = 0; digit_shift < 32 && largest >> digit_shift != 0; digit_shift += 7) {
    AddDigit(layer, digit_shift);
  }
}

// A score is at most 255 times the tokens added. When the next row could take one to 2^31, all that
// was added is halved: it costs the last bit of sums of at least 2^23 tokens.
void EamMatcher::MakeRoom() {
  uint64_t row_sum = 0;
  for (const Used& used : used_) row_sum += used.tokens;
  int halvings = 0;
  // The 1 rounds the row's halves up.
  const auto bound = [&](int more) {
    return kMaxCount * ((weight_sum_ >> more) + (row_sum >> (shift_ + more)) + used_.size());
  };
  while (bound(halvings) >= kScoreLimit) ++halvings;
  if (halvings > 0) {
    uint32_t* scores = scores_.as<uint32_t>();
    for (int64_t i = 0; i < RoundUp(collection_->size(), kColumnBlock); ++i) scores[i] >>= halvings;
    weight_sum_ >>= halvings;
    shift_ += halvings;
  }
  if (shift_ == 0) {
    weight_sum_ += row_sum;
    return;
  }
  for (Used& used : used_) {
    used.tokens =
        static_cast<uint32_t>((uint64_t{used.tokens} + (uint64_t{1} << (shift_ - 1))) >> shift_);
    weight_sum_ += used.tokens;
  }
}

void EamMatcher::AddDigit(int layer, int digit_shift) {
  const int64_t n = RoundUp(collection_->size(), kColumnBlock);
  int64_t gathered = 0;
  int weight_sum = 0;
  const auto flush = [&] {
    collection_->kernels_->add_columns(columns_.data(), weights_.data(), gathered, digit_shift,
                                       scores_.as<uint32_t>(), n);
    gathered = 0;
    weight_sum = 0;
  };
  for (const Used& used : used_) {
    const int weight = static_cast<int>(used.tokens >> digit_shift & kMaxColumnWeight);
    if (weight == 0) continue;
    if (weight_sum + weight > kMaxColumnWeightSum) flush();
    columns_[Size(gathered)] = collection_->Column(layer, used.expert);
    weights_[Size(gathered)] = static_cast<uint8_t>(weight);
    ++gathered;
    weight_sum += weight;
  }
  if (gathered > 0) flush();
}

std::span<const EamMatch> EamMatcher::Best(int n) {
  CHECK_GT(n, 0);
  CHECK_LE(n, max_matches_);
  CHECK_EQ(generation_, collection_->generation());
  const uint32_t* scores = scores_.as<uint32_t>();
  const float* inverse_norms =
      collection_->inverse_norms_.as<float>() + std::max(last_layer_, 0) * collection_->stride_;
  const auto product = [&](int64_t i) {
    return static_cast<float>(static_cast<int32_t>(scores[i])) * inverse_norms[i];
  };
  // What an entry must exceed to be in the list. Any n entries, whatever they hold by now, bound
  // the n-th best from below (behind the last entry everything is 0); those found last, a layer or
  // an iteration ago, are likely to be good ones still.
  float threshold = 0;
  if (best_.size() >= Size(n)) {
    float least = std::numeric_limits<float>::max();
    for (const EamMatch& match : best_) least = std::min(least, product(match.entry));
    threshold = std::nextafter(least, 0.0f);
  }
  best_.clear();
  if (norm_squared_ == 0) return best_;
  const int64_t end = RoundUp(collection_->size(), kColumnBlock);
  const auto next = [&](int64_t from) {
    return collection_->kernels_->find_above(scores, inverse_norms, from, end, threshold);
  };
  for (int64_t i = next(0); i < end; i = next(i + 1)) {
    const float value = product(i);
    const auto at =
        std::upper_bound(best_.begin(), best_.end(), value,
                         [](float v, const EamMatch& match) { return v > match.similarity; });
    best_.insert(at, {static_cast<int32_t>(i), value});
    if (best_.size() > Size(n)) best_.pop_back();
    if (best_.size() == Size(n)) threshold = best_.back().similarity;
  }
  const double scale = std::ldexp(1.0, shift_) / std::sqrt(norm_squared_);
  for (EamMatch& match : best_) {
    match.similarity = static_cast<float>(std::min(1.0, match.similarity * scale));
  }
  return best_;
}

}  // namespace moesaic
