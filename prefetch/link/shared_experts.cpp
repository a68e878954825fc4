#include "prefetch/link/shared_experts.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

SharedExperts::SharedExperts(const ExpertGrid& grid, const SharedSlotsView& pool,
                             std::unique_ptr<ExpertLoader> own)
    : grid_(grid),
      pool_(pool),
      own_(std::move(own)),
      pinned_in_place_(static_cast<size_t>(grid.total()), 0) {
  CHECK(own_ != nullptr);
  const auto of_layer = static_cast<size_t>(grid.num_experts());
  others_.reserve(static_cast<size_t>(grid.total()));
  ready_.reserve(of_layer);
  in_place_.reserve(of_layer);
}

SharedExperts::~SharedExperts() {
  for (const ExpertIndex expert : in_place_) {
    if (pinned_in_place_[static_cast<size_t>(expert)] != 0) pool_.Unpin(expert);
  }
}

void SharedExperts::BeginLayer(std::span<const ExpertId> needed, int64_t pairs) {
  CHECK(in_place_.empty());
  others_.clear();
  for (const ExpertId id : needed) {
    const ExpertIndex expert = grid_.Index(id);
    const std::byte* const blob = pool_.Pin(expert);
    if (blob == nullptr) {
      others_.push_back(id);
      continue;
    }
    pinned_in_place_[static_cast<size_t>(expert)] = 1;
    in_place_.push_back(expert);
    ready_.push_back({id, blob});
  }
  own_->BeginLayer(others_, pairs);
}

void SharedExperts::Expect(std::span<const ExpertId> experts) {
  others_.clear();
  for (const ExpertId id : experts) {
    if (!pool_.Has(grid_.Index(id))) others_.push_back(id);
  }
  own_->Expect(others_);
}

bool SharedExperts::IsResident(ExpertId expert) const {
  return pool_.Has(grid_.Index(expert)) || own_->IsResident(expert);
}

bool SharedExperts::HandOut(std::vector<PinnedExpert>& out) {
  if (ready_.empty()) return false;
  out.insert(out.end(), ready_.begin(), ready_.end());
  ready_.clear();
  return true;
}

bool SharedExperts::NextReady(std::vector<PinnedExpert>& out) {
  return HandOut(out) || own_->NextReady(out);
}

bool SharedExperts::TryNextReady(std::vector<PinnedExpert>& out) {
  return HandOut(out) || own_->TryNextReady(out);
}

void SharedExperts::Release(const PinnedExpert& expert) {
  const ExpertIndex index = grid_.Index(expert.id);
  if (std::exchange(pinned_in_place_[static_cast<size_t>(index)], uint8_t{0}) != 0) {
    pool_.Unpin(index);
  } else {
    own_->Release(expert);
  }
}

ExpertStats SharedExperts::EndLayer() {
  ExpertStats stats = own_->EndLayer();
  stats.hits += in_place_.size();
  for (const ExpertIndex expert : in_place_) {
    if (std::exchange(pinned_in_place_[static_cast<size_t>(expert)], uint8_t{0}) != 0) {
      pool_.Unpin(expert);
    }
  }
  in_place_.clear();
  ready_.clear();
  return stats;
}

// What is shared comes first: how much it is worth, the process that fills the memory knows.
std::vector<ResidentExpert> SharedExperts::Residents() const {
  std::vector<ResidentExpert> residents;
  for (ExpertIndex expert = 0; expert < grid_.total(); ++expert) {
    if (pool_.Has(expert)) residents.push_back({grid_.Id(expert), 0});
  }
  for (const ResidentExpert& own : own_->Residents()) {
    if (!pool_.Has(grid_.Index(own.id))) residents.push_back({own.id, 0});
  }
  return residents;
}

bool SharedExperts::Look(std::span<ExpertPresence> places, std::vector<LinkUse>& links) const {
  const bool known = own_->Look(places, links);
  for (ExpertIndex expert = 0; expert < grid_.total(); ++expert) {
    if (pool_.Has(expert)) places[static_cast<size_t>(expert)] = ExpertPresence::kResident;
  }
  return known;
}

}  // namespace moesaic
