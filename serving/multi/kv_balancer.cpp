#include "serving/multi/kv_balancer.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"

namespace moesaic {

KvBalancer::KvBalancer(size_t models, KvBalancerOptions options)
    : options_(options), models_(models) {}

void KvBalancer::Observe(size_t model, const KvInUse& kv, int64_t now_ns) {
  Model& m = models_[model];
  CHECK(kv.block_bytes > 0 && kv.slab_blocks > 0);
  if (!m.seen) {
    m.seen = true;
    m.first_ns = now_ns;
  } else if (now_ns > m.observed_ns) {
    const double seconds = static_cast<double>(now_ns - m.observed_ns) * 1e-9;
    const double waited_s = static_cast<double>(kv.waited_us - m.kv.waited_us) * 1e-6;
    const double keep = std::exp2(-seconds / options_.half_life_s);
    m.waiting_last = waited_s / seconds;
    m.waiting = keep * m.waiting + (1 - keep) * m.waiting_last;
  }
  m.kv = kv;
  m.observed_ns = now_ns;
  m.uses.push_back({now_ns, kv.most_used, kv.revived});
  const auto window_ns = static_cast<int64_t>(options_.unused_s * 1e9);
  while (m.uses.front().at_ns < now_ns - window_ns) m.uses.pop_front();
}

uint64_t KvBalancer::SlabBytes(size_t model) const {
  const KvInUse& kv = models_[model].kv;
  return static_cast<uint64_t>(kv.slab_blocks) * kv.block_bytes;
}

double KvBalancer::Value(size_t model) const {
  const Model& m = models_[model];
  if (!m.seen || m.waiting < options_.least_waiting || m.kv.usable + m.kv.slab_blocks > m.kv.most) {
    return 0;
  }
  // As those that run.
  const double blocks_of_one = static_cast<double>(std::max<int64_t>(1, m.kv.most_used)) /
                               static_cast<double>(std::max<int64_t>(1, m.kv.running));
  const double room = static_cast<double>(m.kv.slab_blocks) / std::max(1.0, blocks_of_one);
  return std::min({m.waiting, m.waiting_last, room}) / static_cast<double>(SlabBytes(model));
}

int64_t KvBalancer::SpareSlabs(size_t model) const {
  const Model& m = models_[model];
  const auto window_ns = static_cast<int64_t>(options_.unused_s * 1e9);
  if (!m.seen || m.observed_ns - m.first_ns < window_ns || m.waiting >= options_.least_waiting) {
    return 0;
  }
  int64_t used = 0;
  for (const Use& use : m.uses) used = std::max(used, use.blocks);
  const auto found = static_cast<int64_t>(m.uses.back().revived - m.uses.front().revived);
  const int64_t needed = std::max(m.kv.least, used + found + m.kv.slab_blocks);
  return std::max<int64_t>(0, m.kv.usable - needed) / m.kv.slab_blocks;
}

}  // namespace moesaic
