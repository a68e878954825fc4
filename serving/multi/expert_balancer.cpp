#include "serving/multi/expert_balancer.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/base/check.h"

namespace moesaic {
namespace {

int64_t SlotsOf(uint64_t bytes, uint64_t slot_bytes) {
  return std::max<int64_t>(1, static_cast<int64_t>(bytes / slot_bytes));
}

}  // namespace

ExpertBalancer::ExpertBalancer(size_t models, BalancerOptions options)
    : options_(options), models_(models) {}

void ExpertBalancer::Forget(size_t model) { models_[model] = Model(); }

void ExpertBalancer::Observe(size_t model, const SlotsInUse& slots, std::span<const uint32_t> uses,
                             int64_t now_ns) {
  Model& m = models_[model];
  CHECK_GT(slots.slot_bytes, 0u);
  if (!m.seen || m.uses.size() != uses.size()) {
    m = Model();
    m.seen = true;
    m.uses_per_s.assign(uses.size(), 0);
  } else if (now_ns > m.observed_ns) {
    const double seconds = static_cast<double>(now_ns - m.observed_ns) * 1e-9;
    const double keep = std::exp2(-seconds / options_.half_life_s);
    for (size_t e = 0; e < uses.size(); ++e) {
      const uint32_t more = uses[e] - m.uses[e];
      m.uses_per_s[e] = keep * m.uses_per_s[e] + (1 - keep) * static_cast<double>(more) / seconds;
    }
    // By experts that came, not by time: while none are missing, what they cost is not forgotten.
    const auto loads = static_cast<double>(slots.loads - m.slots.loads);
    const double keep_cost = std::exp2(-loads / options_.half_life_loads);
    m.loads = keep_cost * m.loads + loads;
    m.blocked_s =
        keep_cost * m.blocked_s + static_cast<double>(slots.blocked_us - m.slots.blocked_us) * 1e-6;
    m.age_s += seconds;
  }
  m.slots = slots;
  m.uses.assign(uses.begin(), uses.end());
  m.observed_ns = now_ns;
  // Sums, the most used first. An average that began lately is too low by what it has not seen.
  m.most_used = m.uses_per_s;
  std::sort(m.most_used.begin(), m.most_used.end(), std::greater<>());
  const double seen = 1 - std::exp2(-m.age_s / options_.half_life_s);
  double sum = 0;
  for (double& rate : m.most_used) {
    if (seen > 0) sum += rate / seen;
    rate = sum;
  }
}

double ExpertBalancer::FetchSeconds(const Model& model) const {
  const double least = static_cast<double>(model.slots.slot_bytes) / options_.bytes_per_s;
  if (model.loads < 1) return least;
  return std::max(least, model.blocked_s / model.loads);
}

double ExpertBalancer::Value(const Model& model, int64_t from, int64_t to) const {
  const auto sum = [&](int64_t slots) {
    const int64_t at = std::min(slots, std::ssize(model.most_used));
    return at > 0 ? model.most_used[static_cast<size_t>(at - 1)] : 0.0;
  };
  if (to <= from) return 0;
  return std::max(0.0, sum(to) - sum(from)) * FetchSeconds(model) /
         (static_cast<double>(to - from) * static_cast<double>(model.slots.slot_bytes));
}

double ExpertBalancer::Loss(size_t model, int64_t slots) const {
  const Model& m = models_[model];
  return m.seen ? Value(m, m.slots.usable - slots, m.slots.usable) : 0;
}

double ExpertBalancer::Gain(size_t model) const {
  const Model& m = models_[model];
  if (!m.seen) return 0;
  const int64_t slots = SlotsOf(options_.most_slab_bytes, m.slots.slot_bytes);
  const int64_t to = std::min(m.slots.most, m.slots.usable + slots);
  return Value(m, m.slots.usable, to) * static_cast<double>(uint64_t{1} << 30);
}

uint64_t ExpertBalancer::SlabBytes(std::span<const size_t> models, uint64_t free_bytes) const {
  uint64_t pool_bytes = free_bytes;
  uint64_t largest_slot = 1;
  for (const size_t model : models) {
    const SlotsInUse& slots = models_[model].slots;
    pool_bytes += static_cast<uint64_t>(std::max(slots.held, slots.usable)) * slots.slot_bytes;
    largest_slot = std::max(largest_slot, slots.slot_bytes);
  }
  const uint64_t part = pool_bytes / static_cast<uint64_t>(options_.slabs_of_pool);
  return std::max(largest_slot, std::min(options_.most_slab_bytes, part));
}

std::vector<ExpertBalancer::Change> ExpertBalancer::Decide(std::span<const size_t> models,
                                                           uint64_t free_bytes) {
  const uint64_t slab_bytes = SlabBytes(models, free_bytes);
  std::vector<int64_t> slots;  // [of models] as decided so far
  slots.reserve(models.size());
  uint64_t returning_bytes = 0;
  for (const size_t model : models) {
    const SlotsInUse& now = models_[model].slots;
    CHECK(models_[model].seen);
    slots.push_back(now.usable);
    returning_bytes +=
        static_cast<uint64_t>(std::max<int64_t>(0, now.held - now.usable)) * now.slot_bytes;
  }
  struct Choice {
    size_t at = 0;      // of `models`
    int64_t count = 0;  // slots
    double value = 0;
  };
  const auto taker = [&] {
    std::optional<Choice> best;
    for (size_t i = 0; i < models.size(); ++i) {
      const Model& m = models_[models[i]];
      const int64_t count =
          std::min(SlotsOf(slab_bytes, m.slots.slot_bytes), m.slots.most - slots[i]);
      if (count <= 0 || !Settled(m)) continue;
      const double value = Value(m, slots[i], slots[i] + count);
      if (value > 0 && (!best || value > best->value)) best = {i, count, value};
    }
    return best;
  };
  const auto giver = [&](size_t but) {
    std::optional<Choice> best;
    for (size_t i = 0; i < models.size(); ++i) {
      const Model& m = models_[models[i]];
      // No less than a slab, so that what is taken can be handed out, but for the last of it.
      const uint64_t slot_bytes = m.slots.slot_bytes;
      const auto slab = static_cast<int64_t>((slab_bytes + slot_bytes - 1) / slot_bytes);
      const int64_t count = std::min(slab, slots[i] - m.slots.least);
      if (i == but || !Settled(m) || count <= 0) continue;
      const double value = Value(m, slots[i] - count, slots[i]);
      if (!best || value < best->value) best = {i, count, value};
    }
    return best;
  };

  // What is free goes where it saves most.
  std::vector<bool> changed(models.size(), false);
  uint64_t left_bytes = free_bytes;
  while (left_bytes >= slab_bytes) {
    const std::optional<Choice> to = taker();
    if (!to) break;
    slots[to->at] += to->count;
    changed[to->at] = true;
    left_bytes -= static_cast<uint64_t>(to->count) * models_[models[to->at]].slots.slot_bytes;
  }
  // What was taken is on its way, or nobody has use for it.
  if (left_bytes < slab_bytes && returning_bytes < slab_bytes) {
    std::vector<int64_t> then = slots;  // when what is taken has been handed out
    for (int i = 0; i < options_.most_slabs_at_a_time; ++i) {
      std::swap(slots, then);
      const std::optional<Choice> to = taker();
      const std::optional<Choice> from = to ? giver(to->at) : std::nullopt;
      std::swap(slots, then);
      if (!from) break;
      const Model& m = models_[models[to->at]];
      const double fill = FetchSeconds(m) / static_cast<double>(m.slots.slot_bytes);
      if (to->value <= options_.hysteresis * from->value ||
          (to->value - from->value) * options_.horizon_s <= fill) {
        break;
      }
      // Who has just got some is not asked for it.
      if (changed[from->at] && slots[from->at] > models_[models[from->at]].slots.usable) break;
      slots[from->at] -= from->count;
      changed[from->at] = true;
      then[from->at] -= from->count;
      then[to->at] += to->count;
    }
  }
  std::vector<Change> changes;
  for (size_t i = 0; i < models.size(); ++i) {
    if (changed[i]) changes.push_back({models[i], slots[i]});
  }
  return changes;
}

}  // namespace moesaic
