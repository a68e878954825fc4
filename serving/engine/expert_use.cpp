#include "serving/engine/expert_use.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "tracer/eam_collection.h"

namespace moesaic {

std::vector<StateSection*> ExpertObservers::Learned() {
  std::vector<StateSection*> sections;
  if (predictor) sections = predictor->Sections();
  if (policy_counts) sections.push_back(&policy_counts->section());
  return sections;
}

ExpertUse::ExpertUse(ExpertObservers observers, int64_t top_k, ExpertProvider& experts,
                     std::function<const float*()> hidden)
    : observers_(std::move(observers)),
      top_k_(top_k),
      experts_(&experts),
      hidden_(std::move(hidden)) {
  CHECK(watches());
}

void ExpertUse::BeginTrace(Sequence& sequence) {
  if (!watches() || sequence.traced >= 0) return;
  sequence.traced = observers_.tracer->Begin();
  if (observers_.step_predictor) observers_.step_predictor->BeginRequest(sequence.traced);
  if (observers_.policy_counts) observers_.policy_counts->BeginRequest(sequence.traced);
}

// What of these slices was not observed before; from now on it was.
void ExpertUse::Observe(std::span<const ScheduledSlice> plan, const StepRows& rows,
                        Observed& observed) {
  observed.routing.clear();
  observed.requests.clear();
  observed.routed.clear();
  observed.begins.clear();
  for (size_t i = 0; i < plan.size(); ++i) {
    Sequence& sequence = *plan[i].sequence;
    const SequenceSlice& slice = rows.slices[i];
    const int64_t end = slice.start_position + slice.num_tokens;
    const int64_t begin = std::max(slice.start_position, sequence.observed_tokens);
    if (begin >= end) continue;
    const int64_t first_row = slice.first_row + begin - slice.start_position;
    const int64_t count = end - begin;
    observed.routing.push_back({sequence.traced, first_row, count, begin < sequence.prompt_tokens});
    observed.requests.push_back(
        {sequence.traced,
         count == 1 ? rows.tokens[static_cast<size_t>(first_row)] : Predictor::kUnknownToken,
         first_row, count});
    if (sequence.request.return_routed_experts) {
      ExpectRouted(sequence, {nullptr, begin, first_row, count, sequence.traced}, observed);
    }
    sequence.observed_tokens = end;
    observed.begins.emplace_back(&sequence, begin);
  }
  observers_.tracer->BeginIteration(observed.routing);
  if (observers_.policy_counts) {
    for (const StepRequest& request : observed.requests) {
      observers_.policy_counts->BeginIteration(request.request, request.num_rows);
    }
  }
}

void ExpertUse::BeginStep(std::span<const ScheduledSlice> plan, const StepRows& rows) {
  if (!watches()) return;
  plan_ = plan;
  rows_ = &rows;
  Observe(plan, rows, step_);
  if (observers_.recorder) observers_.recorder->BeginStep(std::ssize(rows.tokens));
  if (observers_.step_predictor) {
    observers_.step_predictor->BeginStep(step_.requests);
    observers_.recall->BeginStep(rows.tokens.size() == step_.requests.size());
    observers_.recall->Predicted(-1, *observers_.step_predictor);
    experts_->StepBegan();
  }
}

void ExpertUse::BeginBeside(Beside which, std::span<const ScheduledSlice> plan,
                            const StepRows& rows) {
  if (!watches()) return;
  CHECK(observes_layers());
  Observed& observed = Of(which);
  Observe(plan, rows, observed);
  if (observers_.step_predictor) observers_.step_predictor->BeginBeside(observed.requests);
}

void ExpertUse::ExpectRouted(Sequence& sequence, const RoutedSlice& slice, Observed& observed) {
  if (sequence.routed == nullptr) {
    const RequestTrace& trace = observers_.tracer->trace(sequence.traced);
    sequence.routed = std::make_shared<RoutedExperts>(trace.prefill.num_layers(), top_k_);
  }
  sequence.routed->Grow(slice.position + slice.num_rows);
  observed.routed.push_back(slice);
  observed.routed.back().routed = sequence.routed.get();
}

// A layer's routing, for all but the predictor.
void ExpertUse::Count(int64_t layer, const Observed& observed, std::span<const int32_t> experts,
                      std::span<const float> weights) {
  Routing routing;
  routing.layer = static_cast<int32_t>(layer);
  routing.top_k = static_cast<int32_t>(top_k_);
  routing.experts = experts;
  routing.weights = weights;
  routing.slices = observed.routing;
  observers_.tracer->Observe(routing);
  if (observers_.recorder) observers_.recorder->Observe(routing);
  for (const RoutedSlice& slice : observed.routed) {
    slice.routed->Set(slice.position, layer,
                      experts.subspan(static_cast<size_t>(slice.first_row * top_k_),
                                      static_cast<size_t>(slice.num_rows * top_k_)));
  }
  if (observers_.policy_counts) {
    observers_.policy_counts->BeginLayer(static_cast<int>(layer));
    for (const StepRequest& request : observed.requests) {
      observers_.policy_counts->Observe(request.request, request.Part(experts, top_k_));
    }
  }
}

void ExpertUse::OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                          std::span<float> weights) {
  if (observers_.replay) Replay(layer, batch, experts, weights);
  Count(layer, step_, experts, weights);
  if (observers_.step_predictor) Predict(static_cast<int>(layer), experts);
  if (live_ != nullptr && live_->counting()) {
    live_->CountUse(layer, experts);
    sample_();
  }
}

void ExpertUse::RoutedBeside(Beside which, int64_t layer, std::span<const int32_t> experts,
                             std::span<const float> weights) {
  if (!watches()) return;
  const Observed& observed = Of(which);
  Count(layer, observed, experts, weights);
  if (observers_.step_predictor) {
    observers_.step_predictor->ObserveBeside(observed.requests, static_cast<int>(layer), experts);
  }
  if (live_ != nullptr && live_->counting()) live_->CountUse(layer, experts);
}

void ExpertUse::TakeBackBeside(Beside which, Sequence& sequence) {
  if (sequence.traced < 0) return;
  for (const RoutingSlice& slice : Of(which).routing) {
    if (slice.request == sequence.traced) observers_.tracer->TakeBackIteration({&slice, 1});
  }
  for (const auto& [begun, begin] : Of(which).begins) {
    if (begun == &sequence) sequence.observed_tokens = begin;
  }
}

void ExpertUse::LeaveBeside(TracedRequest request) {
  const auto leaves = [request](const auto& part) { return part.request == request; };
  for (Observed& observed : beside_) {
    std::erase_if(observed.routing, leaves);
    std::erase_if(observed.requests, leaves);
    std::erase_if(observed.routed, leaves);
  }
}

void ExpertUse::EndBeside(Beside which) {
  Of(which) = {};
  if (observers_.state) observers_.state->Learned();
}

void ExpertUse::Replay(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                       std::span<float> weights) const {
  const auto top_k = static_cast<size_t>(top_k_);
  for (const SequenceSlice& slice : batch.slices) {
    const RequestId id = plan_[static_cast<size_t>(slice.request)].sequence->id;
    for (int64_t i = 0; i < slice.num_tokens; ++i) {
      const auto first = static_cast<size_t>(slice.first_row + i) * top_k;
      observers_.replay->Route(id, slice.start_position + i, layer, experts.subspan(first, top_k),
                               weights.subspan(first, top_k));
    }
  }
}

void ExpertUse::Predict(int layer, std::span<const int32_t> experts) {
  const auto start = Clock::now();
  StepPredictor& step_predictor = *observers_.step_predictor;
  const int number = step_predictor.layers().number(layer);
  if (observers_.gates) observers_.gates->Look(number, step_.requests, hidden_());
  observers_.recall->Used(number, experts);
  step_predictor.OnRouting(layer, experts);
  observers_.recall->Predicted(number, step_predictor);
  predict_ns_ += std::chrono::nanoseconds(Clock::now() - start).count();
}

void ExpertUse::EndStep(StepStats& stats) {
  if (!watches()) return;
  stats.predict_us = std::exchange(predict_ns_, 0) / 1000;
  if (observers_.recall) stats.recall = observers_.recall->Take();
  if (observers_.recorder) observers_.recorder->EndStep(plan_, *rows_);
  if (observers_.state) observers_.state->Learned();
}

void ExpertUse::StepGaveWay() {
  if (watches()) observers_.tracer->TakeBackIteration(step_.routing);
  for (const auto& [sequence, begin] : step_.begins) sequence->observed_tokens = begin;
  step_.begins.clear();
}

void ExpertUse::EndTrace(Sequence& sequence) {
  if (!watches() || sequence.traced < 0) return;
  const TracedRequest traced = std::exchange(sequence.traced, -1);
  LeaveBeside(traced);
  observers_.tracer->End(traced);
  if (observers_.policy_counts) observers_.policy_counts->EndRequest(traced);
  if (observers_.step_predictor) {
    observers_.step_predictor->EndRequest(traced);
    if (observers_.step_predictor->idle()) experts_->StopPrefetching();
  }
}

void ExpertUse::EndRequest(Sequence& sequence) {
  if (!watches()) return;
  EndTrace(sequence);
  if (observers_.recorder) observers_.recorder->EndRequest(sequence.id);
}

std::shared_ptr<const RequestTrace> ExpertUse::TraceOf(const Sequence& sequence) const {
  if (!watches() || sequence.traced < 0) return nullptr;
  return std::make_shared<const RequestTrace>(observers_.tracer->trace(sequence.traced));
}

std::shared_ptr<const RequestExperts> ExpertUse::ExpertsOf(
    std::shared_ptr<const RequestTrace> trace, bool nearest) const {
  auto experts = std::make_shared<RequestExperts>();
  EamCollection* const collection =
      observers_.predictor ? observers_.predictor->collection() : nullptr;
  experts->has_collection = collection != nullptr;
  if (nearest && collection != nullptr) {
    ExpertActivationMatrix whole = trace->prefill;
    whole += trace->decode;
    const EamMatch match = collection->Nearest(whole);
    if (match.similarity > 0) {
      experts->nearest = {match.entry, collection->size(), match.similarity,
                          collection->Entry(match.entry)};
    }
  }
  experts->trace = std::move(trace);
  return experts;
}

void ExpertUse::WithCollection(const std::function<void(EamCollection*)>& use) {
  EamCollection* const collection =
      observers_.predictor ? observers_.predictor->collection() : nullptr;
  const uint64_t before = collection != nullptr ? collection->generation() : 0;
  use(collection);
  if (collection != nullptr && collection->generation() != before && observers_.state) {
    observers_.state->Learned();
  }
}

std::vector<ResidentExpert> ExpertUse::Residents() const {
  return watches() ? experts_->Residents() : std::vector<ResidentExpert>();
}

ExpertUse::Clock::time_point ExpertUse::SaveDueAt() const {
  if (!observers_.state) return Clock::time_point::max();
  return observers_.state->DueAt().value_or(Clock::time_point::max());
}

void ExpertUse::SaveIfDue(Clock::time_point now) {
  if (SaveDueAt() <= now) observers_.state->Save(experts_->Residents());
}

void ExpertUse::SaveAndClose() {
  if (observers_.state) observers_.state->SaveAndClose(experts_->Residents());
}

}  // namespace moesaic
