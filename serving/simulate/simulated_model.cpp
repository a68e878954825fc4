#include "serving/simulate/simulated_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/check.h"
#include "prefetch/link/link_mover.h"

namespace moesaic {
namespace {

// Copies under way at once, at most; as many as a link of a server has.
constexpr int kLanes = 2 * kDefaultReadDepth;

int32_t PacketsOf(uint64_t bytes) {
  return static_cast<int32_t>((bytes + kDefaultPacketBytes - 1) / kDefaultPacketBytes);
}

}  // namespace

SimulatedModel::SimulatedModel(const SharedModel& model, const SharedOptions& options,
                               int64_t slots, int64_t most_slots, const CpuKernels& kernels,
                               const Clock& clock)
    : clock_(clock),
      model_(model),
      options_(options),
      trace_(*model.trace),
      shape_{trace_.header.num_layers, trace_.header.num_experts, trace_.header.top_k,
             static_cast<int>(options.most_seqs)},
      grid_(shape_.num_layers, shape_.num_experts),
      packets_(PacketsOf(model.expert_bytes)) {
  if (options.predictor != "none") {
    predictor_ = MakePredictor(options.predictor, shape_, kernels);
    step_predictor_ = std::make_unique<StepPredictor>(shape_, *predictor_, options.prefetch);
  }
  LinkParameters link;
  link.copies.assign(static_cast<size_t>(grid_.total()), {packets_, model.expert_bytes});
  link.slots = slots;
  link.most_slots = most_slots;
  link.slot_bytes = model.expert_bytes;
  link.lanes = static_cast<int>(std::min<int64_t>(kLanes, std::max(slots, most_slots)));
  link.max_packets = packets_;
  ExpertFlowOptions flow;
  flow.step_predictor = step_predictor_.get();
  flow.copy_ns = static_cast<int64_t>(static_cast<double>(model.expert_bytes) * 1e9 /
                                      static_cast<double>(options.link_bytes_per_s));
  flow_ = std::make_unique<ExpertFlow>(grid_, std::move(link), nullptr, flow);
  for (int slot = shape_.max_requests - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

// --- requests

void SimulatedModel::Add(size_t number, int64_t sequence, const SharedRequest& request) {
  Running running;
  running.number = number;
  running.sequence = &trace_.sequences[static_cast<size_t>(sequence) % trace_.sequences.size()];
  running.prompt_tokens = request.prompt_tokens;
  running.tokens = request.prompt_tokens + request.answer_tokens - 1;
  queue_.push_back(running);
}

int64_t SimulatedModel::TokenOf(const Running& request, int64_t position) const {
  return position % trace_.tokens(*request.sequence);
}

// --- steps

// A token of each that decodes, then prompts, the oldest first.
void SimulatedModel::PlanStep() {
  while (!queue_.empty() && !free_slots_.empty()) {
    running_.push_back(queue_.front());
    queue_.pop_front();
    running_.back().slot = free_slots_.back();
    free_slots_.pop_back();
    if (step_predictor_) step_predictor_->BeginRequest(running_.back().slot);
  }
  int64_t left = options_.step_tokens;
  for (Running& request : running_) {
    const bool decodes = request.computed >= request.prompt_tokens;
    request.in_step = decodes ? std::min<int64_t>(1, left) : 0;
    left -= request.in_step;
  }
  for (Running& request : running_) {
    if (request.computed >= request.prompt_tokens) continue;
    request.in_step = std::min(left, request.prompt_tokens - request.computed);
    left -= request.in_step;
  }
  step_.clear();
  int64_t rows = 0;
  for (const Running& request : running_) {
    if (request.in_step == 0) continue;
    const TraceSequence& sequence = *request.sequence;
    const auto last = static_cast<size_t>(TokenOf(request, request.computed + request.in_step - 1));
    step_.push_back(
        {request.slot,
         sequence.token_ids.empty() ? Predictor::kUnknownToken : sequence.token_ids[last], rows,
         request.in_step});
    rows += request.in_step;
  }
}

void SimulatedModel::BeginStep() {
  CHECK(state_ == State::kResting && has_work() && !loading_);
  PlanStep();
  ++counted_.steps;
  if (step_predictor_) {
    step_predictor_->BeginStep(step_);
    flow_->StepBegan(Now());
  }
  layer_ = 0;
  state_ = State::kDense;
  work_ns_ = static_cast<double>(model_.layer_compute_ns);
}

void SimulatedModel::OpenLayer() {
  routed_.clear();
  for (const Running& request : running_) {
    for (int64_t i = 0; i < request.in_step; ++i) {
      const auto experts =
          trace_.Experts(*request.sequence, TokenOf(request, request.computed + i), layer_);
      routed_.insert(routed_.end(), experts.begin(), experts.end());
    }
  }
  if (step_predictor_) step_predictor_->OnRouting(layer_, routed_);
  needed_.assign(routed_.begin(), routed_.end());
  std::sort(needed_.begin(), needed_.end());
  needed_.erase(std::unique(needed_.begin(), needed_.end()), needed_.end());
  for (ExpertIndex& expert : needed_) expert += layer_ * shape_.num_experts;
  counted_.expert_accesses += needed_.size();
  flow_->BeginLayer(needed_, Now());
  flow_->StartLoads(Now());
  taken_.clear();
  next_ = 0;
  TakeReady();
}

bool SimulatedModel::TakeReady() {
  flow_->TakeReady(taken_, Now());
  return next_ < taken_.size();
}

void SimulatedModel::Go(std::vector<size_t>& ended) {
  CHECK(in_step());
  if (std::exchange(blocked_, false)) counted_.blocked_ns += Now() - blocked_since_ns_;
  work_ns_ = 0;
  while (true) {
    if (state_ == State::kDense) {
      OpenLayer();
      state_ = State::kExperts;
    }
    if (computing_ != kNoExpert) flow_->Release(std::exchange(computing_, kNoExpert), Now());
    if (TakeReady()) {
      computing_ = taken_[next_++];
      work_ns_ = static_cast<double>(model_.expert_compute_ns);
      if (work_ns_ > 0) break;
      continue;
    }
    if (flow_->waiting() > 0) {
      blocked_ = true;
      blocked_since_ns_ = Now();
      break;
    }
    counted_.hits += flow_->EndLayer(Now()).hits;
    if (++layer_ == shape_.num_layers) {
      EndStep(ended);
      break;
    }
    state_ = State::kDense;
    work_ns_ = static_cast<double>(model_.layer_compute_ns);
    if (work_ns_ > 0) break;
  }
  CloseSlots();
}

void SimulatedModel::EndStep(std::vector<size_t>& ended) {
  state_ = State::kResting;
  for (Running& request : running_) {
    request.computed += std::exchange(request.in_step, 0);
    if (request.computed < request.tokens) continue;
    ended.push_back(request.number);
    if (step_predictor_) step_predictor_->EndRequest(request.slot);
    free_slots_.push_back(request.slot);
  }
  std::erase_if(running_, [](const Running& r) { return r.computed >= r.tokens; });
  if (!has_work()) flow_->StopPrefetching(Now());
}

// --- the link

// Layer after layer as far as there are slots, the first one last (LatencyStep::Preload).
std::vector<ExpertIndex> SimulatedModel::FirstExperts() const {
  std::vector<ExpertIndex> experts(
      static_cast<size_t>(std::min<int64_t>(flow_->slots(), grid_.total())));
  std::iota(experts.rbegin(), experts.rend(), ExpertIndex{0});
  return experts;
}

void SimulatedModel::Fill() {
  flow_->BeginPreload(FirstExperts(), Now());
  while (const auto packet = flow_->NextPacket(Now())) {
    if (flow_->CompletePacket(*packet, PacketResult::kOk, Now()) == TransferState::kDone) {
      flow_->Commit(packet->expert, Now());
    }
  }
  flow_->EndPreload();
}

void SimulatedModel::BeginLoading() {
  loading_ = true;
  reads_from_ns_ = Now() + model_.load_ns;
  left_to_load_ = model_.other_bytes;
  flow_->BeginPreload(FirstExperts(), Now());
}

std::optional<SimulatedModel::Moving> SimulatedModel::NextPacket() {
  if (Now() < reads_from_ns_) return std::nullopt;
  if (left_to_load_ > 0) {
    return Moving{std::min<uint64_t>(left_to_load_, kDefaultPacketBytes), std::nullopt};
  }
  const auto packet = flow_->NextPacket(Now());
  if (!packet) return std::nullopt;
  const auto packets = static_cast<uint64_t>(packets_);
  return Moving{(model_.expert_bytes + packets - 1) / packets, *packet};
}

void SimulatedModel::Arrived(const Moving& moved) {
  counted_.read_bytes += moved.bytes;
  if (!moved.packet) {
    left_to_load_ -= moved.bytes;
  } else if (flow_->CompletePacket(*moved.packet, PacketResult::kOk, Now()) ==
             TransferState::kDone) {
    flow_->Commit(moved.packet->expert, Now());
  }
  if (loading_ && left_to_load_ == 0 && flow_->cache().loading() == 0) {
    flow_->EndPreload();
    loading_ = false;
  }
  CloseSlots();
}

// --- the number of slots

void SimulatedModel::CloseSlots() {
  while (flow_->closing() && flow_->CloseSlot(Now())) {
  }
}

SlotsInUse SimulatedModel::LookAtSlots(std::vector<uint32_t>& uses) const {
  const std::span<const uint32_t> counted = flow_->uses();
  uses.assign(counted.begin(), counted.end());
  return {.slot_bytes = model_.expert_bytes,
          .held = flow_->slots(),
          .usable = flow_->cache().usable_slots(),
          .least = 1,
          .most = flow_->most_slots(),
          .loads = flow_->cache().counters().inserted,
          .blocked_us = static_cast<uint64_t>(counted_.blocked_ns / 1000)};
}

void SimulatedModel::SetSlots(int64_t slots) {
  flow_->SetSlots(slots, Now());
  CloseSlots();
}

void SimulatedModel::CountInto(SharedResult::Model& result) const {
  result.steps += counted_.steps;
  result.blocked_ns += counted_.blocked_ns;
  result.read_bytes += counted_.read_bytes;
  result.expert_accesses += counted_.expert_accesses;
  result.hits += counted_.hits;
  result.expert_bytes = static_cast<uint64_t>(flow_->slots()) * model_.expert_bytes;
}

}  // namespace moesaic
