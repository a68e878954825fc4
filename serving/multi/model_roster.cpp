#include "serving/multi/model_roster.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

ModelRoster::ModelRoster(uint64_t memory_bytes, const std::vector<Rules>& rules)
    : memory_bytes_(memory_bytes) {
  for (const Rules& one : rules) {
    Model& model = models_.emplace_back();
    model.rules = one;
    model.idle_ns = one.idle_ns;
  }
}

uint64_t ModelRoster::free_bytes() const {
  uint64_t taken = leaving_bytes_;
  for (const Model& model : models_) taken += model.bytes;
  return memory_bytes_ - std::min(memory_bytes_, taken);
}

ModelRoster::Room ModelRoster::RoomFor(size_t model, std::span<const uint8_t> busy) const {
  CHECK(!models_[model].loaded());
  const MemoryNeed& need = models_[model].rules.need;
  const uint64_t free = free_bytes();
  if (free >= need.least_bytes) {
    return {Room::Kind::kThere, std::min(free, need.most_bytes), 0};
  }
  if (free + leaving_bytes_ >= need.least_bytes) return {Room::Kind::kWait, 0, 0};
  std::optional<size_t> victim;
  uint64_t may_come = free + leaving_bytes_;
  const auto order = [&](size_t i) { return std::tuple(busy[i], models_[i].used_at_ns); };
  for (size_t i = 0; i < models_.size(); ++i) {
    const Model& other = models_[i];
    if (!other.loaded() || !other.rules.may_leave || other.rules.pin) continue;
    may_come += other.bytes;
    if (!victim || order(i) < order(*victim)) victim = i;
  }
  // Nobody is unloaded in vain.
  if (!victim || may_come < need.least_bytes) return {};
  return {Room::Kind::kUnload, 0, *victim};
}

void ModelRoster::BeginLoad(size_t model, uint64_t bytes) {
  CHECK(!models_[model].loaded());
  CHECK_LE(bytes, free_bytes());
  models_[model].state = ModelState::kLoading;
  models_[model].bytes = bytes;
  models_[model].why_failed.clear();
}

void ModelRoster::Loaded(size_t model, int64_t now_ns) {
  CHECK(models_[model].state == ModelState::kLoading);
  models_[model].state = ModelState::kResident;
  models_[model].idle_ns = models_[model].rules.idle_ns;
  models_[model].used_at_ns = now_ns;
}

void ModelRoster::Failed(size_t model, std::string why, bool leaving) {
  CHECK(!models_[model].loaded());
  models_[model].state = ModelState::kFailed;
  const uint64_t bytes = std::exchange(models_[model].bytes, 0);
  if (leaving) leaving_bytes_ += bytes;
  models_[model].why_failed = std::move(why);
}

void ModelRoster::Resize(size_t model, uint64_t bytes) {
  CHECK(models_[model].loaded());
  CHECK_LE(bytes, free_bytes() + models_[model].bytes);
  models_[model].bytes = bytes;
}

void ModelRoster::Unload(size_t model) {
  CHECK(models_[model].loaded());
  models_[model].state = ModelState::kUnloaded;
  leaving_bytes_ += std::exchange(models_[model].bytes, 0);
}

void ModelRoster::Gone(uint64_t bytes) {
  CHECK_LE(bytes, leaving_bytes_);
  leaving_bytes_ -= bytes;
}

void ModelRoster::Use(size_t model, int64_t now_ns, std::optional<int64_t> idle_ns) {
  models_[model].used_at_ns = std::max(models_[model].used_at_ns, now_ns);
  models_[model].idle_ns = idle_ns.value_or(models_[model].rules.idle_ns);
}

int64_t ModelRoster::IdleAtNs(const Model& model) const {
  if (!model.loaded() || model.rules.pin || model.idle_ns == kNever) return kNever;
  return model.idle_ns > kNever - model.used_at_ns ? kNever : model.used_at_ns + model.idle_ns;
}

int64_t ModelRoster::NextIdleNs() const {
  int64_t next = kNever;
  for (const Model& model : models_) next = std::min(next, IdleAtNs(model));
  return next;
}

std::optional<size_t> ModelRoster::IdleAt(int64_t now_ns) const {
  for (size_t i = 0; i < models_.size(); ++i) {
    const int64_t at = IdleAtNs(models_[i]);
    if (at != kNever && at <= now_ns) return i;
  }
  return std::nullopt;
}

}  // namespace moesaic
