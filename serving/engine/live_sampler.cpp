#include "serving/engine/live_sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/check.h"

namespace moesaic {
namespace {

constexpr size_t kMostLogged = 8192;  // 32 KiB

int64_t MicrosecondsBetween(LiveSampler::Clock::time_point from,
                            LiveSampler::Clock::time_point to) {
  return std::chrono::duration_cast<std::chrono::microseconds>(to - from).count();
}

}  // namespace

LiveSampler::LiveSampler(LiveView& view, int64_t num_layers, int64_t num_experts,
                         Clock::time_point now)
    : view_(view),
      num_experts_(num_experts),
      cells_(static_cast<size_t>(num_layers * num_experts)),
      start_(now),
      not_before_(now) {}

void LiveSampler::BeginStep(int64_t tokens) {
  changed_ = true;
  counts_ = view_.watched();
  if (!counts_) {
    uses_.clear();  // who watches next sees what is used from then on
    logged_uses_.clear();
    return;
  }
  if (uses_.empty()) {
    uses_.assign(cells_, 0);
    logged_uses_.reserve(kMostLogged);
    weighted_uses_.assign(cells_, 0);
    weight_ = 0;
    tokens_ = 0;
  }
  tokens_ += tokens;
}

void LiveSampler::CountUse(int64_t layer, std::span<const int32_t> experts) {
  const auto first = static_cast<int32_t>(layer * num_experts_);
  for (const int32_t expert : experts) {
    if (logged_uses_.size() == kMostLogged) CountLogged();
    logged_uses_.push_back(first + expert);
  }
}

void LiveSampler::CountLogged() {
  for (const int32_t cell : logged_uses_) ++uses_[static_cast<size_t>(cell)];
  logged_uses_.clear();
}

void LiveSampler::Ended(const Sequence& sequence, std::string why, Clock::time_point now,
                        std::shared_ptr<const RequestTrace> trace) {
  changed_ = true;
  if (!view_.watched()) return ended_.clear();
  ended_.push_back({RequestOf(sequence, now), std::move(trace)});
  EndedRequest& ended = ended_.back();
  ended.listed.phase = LiveRequest::Phase::kEnded;
  ended.listed.ended = std::move(why);
  if (ended_.size() > kEndedRequests) ended_.pop_front();
}

std::shared_ptr<const RequestTrace> LiveSampler::TraceOf(RequestId id) const {
  for (const EndedRequest& ended : ended_) {
    if (ended.listed.id == id) return ended.trace;
  }
  return nullptr;
}

LiveSampler::Clock::time_point LiveSampler::DueAt() const {
  const bool wanted = view_.watched() && (changed_ || view_.asked());
  return wanted ? not_before_ : Clock::time_point::max();
}

LiveRequest LiveSampler::RequestOf(const Sequence& sequence, Clock::time_point now) {
  using Phase = LiveRequest::Phase;
  LiveRequest request;
  request.id = sequence.id;
  request.name = sequence.request.id;
  const bool prefills = sequence.computed_tokens < sequence.prompt_tokens;
  request.phase = !sequence.started ? Phase::kWaiting : prefills ? Phase::kPrefill : Phase::kDecode;
  request.prompt_tokens = sequence.prompt_tokens;
  request.cached_tokens = sequence.cached_tokens;
  request.computed_tokens = sequence.computed_tokens;
  request.output_tokens = sequence.output_tokens();
  request.max_tokens = sequence.request.max_tokens;
  request.age_us = MicrosecondsBetween(sequence.arrival, now);
  request.queue_us = sequence.started ? MicrosecondsBetween(sequence.arrival, sequence.started_at)
                                      : request.age_us;
  request.blocked_us = static_cast<int64_t>(sequence.experts.blocked_us);
  return request;
}

void LiveSampler::Sample(const State& state, Clock::time_point now) {
  view_.TakeAsked();
  changed_ = false;
  not_before_ = now + kInterval;
  LiveSample& sample = view_.Back();
  sample.time_us = MicrosecondsBetween(start_, now);
  sample.totals = state.totals;
  sample.running = state.scheduler.running();
  sample.waiting = state.scheduler.waiting();
  sample.preemptions = state.scheduler.preemptions();
  sample.kv_usage = state.kv.usage();
  sample.not_ready = state.not_ready;
  sample.expert_slots = state.expert_slots;
  FillExperts(state, sample);
  FillUse(sample);
  sample.requests.clear();
  state.scheduler.ForEach([&](Sequence& sequence) {
    if (sample.requests.size() < LiveSample::kMaxRequests - kEndedRequests) {
      sample.requests.push_back(RequestOf(sequence, now));
    }
  });
  for (auto ended = ended_.rbegin(); ended != ended_.rend(); ++ended) {
    sample.requests.push_back(ended->listed);
  }
  view_.Publish();
}

void LiveSampler::FillExperts(const State& state, LiveSample& sample) {
  sample.links.clear();
  sample.places.assign(cells_, ExpertPresence::kAbsent);
  if (state.provider == nullptr || !state.provider->Look(sample.places, sample.links)) {
    sample.places.clear();
    sample.left.clear();
    return;
  }
  sample.left.assign(cells_, 0);
  if (places_.size() == cells_) {
    for (size_t i = 0; i < cells_; ++i) {
      sample.left[i] =
          places_[i] == ExpertPresence::kResident && sample.places[i] != ExpertPresence::kResident
              ? 1
              : 0;
    }
  }
  places_ = sample.places;
}

void LiveSampler::FillUse(LiveSample& sample) {
  if (uses_.empty()) return sample.use.assign(cells_, 0);
  sample.use.resize(cells_);
  CountLogged();
  const auto kept =
      static_cast<float>(std::exp2(-static_cast<double>(tokens_) / LiveSample::kUseHalfLifeTokens));
  weight_ = weight_ * kept + static_cast<double>(tokens_);
  const float scale = weight_ > 0 ? static_cast<float>(1 / weight_) : 0.0f;
  for (size_t i = 0; i < cells_; ++i) {
    weighted_uses_[i] = weighted_uses_[i] * kept + static_cast<float>(std::exchange(uses_[i], 0));
    sample.use[i] = weighted_uses_[i] * scale;
  }
  tokens_ = 0;
}

}  // namespace moesaic
