#include "serving/simulate/shared_simulator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "serving/engine/turn_order.h"
#include "serving/multi/expert_pools.h"
#include "serving/multi/memory_shares.h"
#include "serving/multi/model_roster.h"
#include "serving/simulate/simulated_model.h"

namespace moesaic {
namespace {

constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();

uint64_t AllExpertBytes(const SharedModel& model) {
  const RoutingTraceHeader& header = model.trace->header;
  return static_cast<uint64_t>(header.num_layers) * static_cast<uint64_t>(header.num_experts) *
         model.expert_bytes;
}

// A token's experts of a layer have room, besides what the model keeps in any case.
uint64_t LeastExpertBytes(const SharedModel& model) {
  const auto least = static_cast<uint64_t>(model.trace->header.top_k) * model.expert_bytes;
  return std::min(AllExpertBytes(model), std::max(least, model.floor_bytes));
}

MemoryNeed NeedOf(const SharedModel& model) {
  return {model.other_bytes + LeastExpertBytes(model), model.other_bytes + AllExpertBytes(model)};
}

class SharedSimulation {
 public:
  SharedSimulation(std::span<const SharedModel> models, std::span<const SharedRequest> requests,
                   const SharedOptions& options, const CpuKernels& kernels)
      : requests_(requests),
        options_(options),
        kernels_(kernels),
        balance_at_ns_(options.sharing == MemorySharing::kPool ? ExpertPools::kPeriodNs
                                                               : kNothing) {
    Check(models);
    result_.latency_ns.resize(requests.size());
    result_.models.resize(models.size());
    seats_.resize(models.size());
    for (size_t i = 0; i < models.size(); ++i) {
      seats_[i].model = models[i];
      turns_.Join(0);
    }
    if (options.sharing == MemorySharing::kPool) SetUpPool();
    if (options.sharing == MemorySharing::kSplit) SetUpSplit();
    if (options.sharing == MemorySharing::kSwap) SetUpSwap();
  }

  SharedResult Run();

 private:
  struct Seat {
    SharedModel model;
    std::unique_ptr<SimulatedModel> loaded;
    int64_t sequences = 0;       // requests that have come
    std::deque<size_t> waiting;  // for it to be loaded
    bool leaving = false;
    bool asked = false;  // for a turn
  };
  struct OnLink {
    size_t model = 0;
    SimulatedModel::Moving moving;
    int64_t end_ns = 0;
  };

  void Check(std::span<const SharedModel> models) const;
  void SetUpPool();
  void SetUpSplit();
  void SetUpSwap();
  void Put(size_t model, uint64_t bytes, bool moves);
  [[noreturn]] void FailTooSmall(uint64_t needed_bytes) const;

  int64_t Now() const { return clock_.NowNs(); }
  bool one_server() const { return options_.sharing != MemorySharing::kSplit; }
  void Settle();
  void LoadNext();
  void Unload(size_t model);
  void Leave(size_t model);
  void BeginSteps();
  void UseLink();
  int64_t NextEventNs() const;
  void AdvanceTo(int64_t then_ns);
  void TakeArrivals();
  void TakeFromLink();
  void GoOn();
  void Balance();
  void CountMemory(uint64_t bytes);

  const std::span<const SharedRequest> requests_;
  const SharedOptions options_;
  const CpuKernels& kernels_;
  VirtualClock clock_;
  std::vector<Seat> seats_;
  TurnOrder turns_;  // of one server
  std::optional<ExpertPools> pools_;
  std::optional<ModelRoster> roster_;
  std::optional<size_t> loading_;
  std::optional<OnLink> on_link_;
  size_t last_on_link_ = 0;
  size_t next_request_ = 0;
  size_t ended_ = 0;
  int64_t balance_at_ns_;
  std::vector<size_t> ending_;
  SharedResult result_;
};

void SharedSimulation::Check(std::span<const SharedModel> models) const {
  if (options_.link_bytes_per_s == 0) {
    Fail(ErrorKind::kInvalidArgument, "--link-rate must be more than 0");
  }
  for (const SharedModel& model : models) {
    const RoutingTrace& trace = *model.trace;
    if (model.expert_bytes == 0) {
      Fail(ErrorKind::kInvalidArgument, "--expert-size must be more than 0");
    }
    const auto empty = [&](const TraceSequence& sequence) { return sequence.experts.empty(); };
    if (trace.sequences.empty() ||
        std::any_of(trace.sequences.begin(), trace.sequences.end(), empty)) {
      Fail(ErrorKind::kInvalidArgument, "--trace: a trace, or a sequence of it, has no tokens");
    }
  }
  for (const SharedRequest& request : requests_) {
    CHECK_LT(request.model, models.size());
    CHECK(request.prompt_tokens > 0 && request.answer_tokens > 0);
  }
}

void SharedSimulation::FailTooSmall(uint64_t needed_bytes) const {
  Fail(ErrorKind::kInvalidArgument,
       "--memory: {} are too little; '{}' needs {} with the experts that the models keep in any "
       "case (--min-experts)",
       FormatBytes(options_.memory_bytes), NameOf(kMemorySharings, options_.sharing),
       FormatBytes(needed_bytes));
}

// In so much memory, of all kinds.
void SharedSimulation::Put(size_t model, uint64_t bytes, bool moves) {
  const SharedModel& of = seats_[model].model;
  const uint64_t expert_bytes = std::min(bytes - of.other_bytes, AllExpertBytes(of));
  const auto slots = static_cast<int64_t>(expert_bytes / of.expert_bytes);
  const auto all = static_cast<int64_t>(AllExpertBytes(of) / of.expert_bytes);
  seats_[model].loaded =
      std::make_unique<SimulatedModel>(of, options_, slots, moves ? all : 0, kernels_, clock_);
  if (options_.preload && !roster_) seats_[model].loaded->Fill();
  ++result_.models[model].loads;
}

void SharedSimulation::SetUpPool() {
  std::vector<MemoryNeed> needs;
  std::vector<ExpertPools::Rules> rules;
  uint64_t least = 0;
  for (const Seat& seat : seats_) {
    needs.push_back(NeedOf(seat.model));
    rules.push_back({.pool = 0, .floor_bytes = LeastExpertBytes(seat.model)});
    least += needs.back().least_bytes;
  }
  const std::vector<uint64_t> shares = ShareMemory(options_.memory_bytes, needs);
  if (shares.empty()) FailTooSmall(least);
  pools_.emplace(rules, options_.balancer);
  for (size_t i = 0; i < seats_.size(); ++i) {
    Put(i, shares[i], true);
    std::vector<uint32_t> uses;
    const SlotsInUse slots = seats_[i].loaded->LookAtSlots(uses);
    pools_->Loaded(
        i, seats_[i].model.other_bytes + static_cast<uint64_t>(slots.held) * slots.slot_bytes,
        seats_[i].loaded.get());
  }
}

void SharedSimulation::SetUpSplit() {
  const uint64_t part = options_.memory_bytes / seats_.size();
  uint64_t least = 0;
  for (const Seat& seat : seats_) {
    least = std::max(least, NeedOf(seat.model).least_bytes);
  }
  if (part < least) FailTooSmall(least * seats_.size());
  for (size_t i = 0; i < seats_.size(); ++i) Put(i, part, false);
  CountMemory(part * seats_.size());
}

void SharedSimulation::SetUpSwap() {
  std::vector<ModelRoster::Rules> rules;
  uint64_t least = 0;
  for (const Seat& seat : seats_) {
    MemoryNeed need = NeedOf(seat.model);
    least = std::max(least, need.least_bytes);
    need.least_bytes = std::min(need.most_bytes, options_.memory_bytes);
    rules.push_back({.need = need, .may_leave = true});
  }
  if (options_.memory_bytes < least) FailTooSmall(least);
  roster_.emplace(options_.memory_bytes, rules);
}

SharedResult SharedSimulation::Run() {
  while (ended_ < requests_.size()) {
    Settle();
    const int64_t next_ns = NextEventNs();
    CHECK_LT(next_ns, kNothing);  // somebody can go on
    AdvanceTo(std::min(next_ns, balance_at_ns_));
    TakeArrivals();
    TakeFromLink();
    GoOn();
    if (Now() >= balance_at_ns_) Balance();
  }
  for (size_t i = 0; i < seats_.size(); ++i) {
    SharedResult::Model& model = result_.models[i];
    if (seats_[i].loaded) seats_[i].loaded->CountInto(model);
    if (pools_) model.given_bytes = pools_->held(i).given_bytes;
  }
  result_.end_ns = Now();
  return std::move(result_);
}

// --- what begins without time passing

void SharedSimulation::Settle() {
  if (roster_) LoadNext();
  BeginSteps();
  UseLink();
}

// One after the other, as the registry of a server does it: who has waited longest comes first.
void SharedSimulation::LoadNext() {
  if (loading_) return;
  std::optional<size_t> next;
  for (size_t i = 0; i < seats_.size(); ++i) {
    if (seats_[i].waiting.empty()) continue;
    if (!next || seats_[i].waiting.front() < seats_[*next].waiting.front()) next = i;
  }
  while (next && !seats_[*next].loaded) {
    std::vector<uint8_t> busy;
    busy.reserve(seats_.size());
    for (const Seat& seat : seats_) {
      busy.push_back(seat.loaded && seat.loaded->has_work() ? 1 : 0);
    }
    const ModelRoster::Room room = roster_->RoomFor(*next, busy);
    CHECK(room.kind != ModelRoster::Room::Kind::kTooLittle);
    if (room.kind == ModelRoster::Room::Kind::kWait) return;
    if (room.kind == ModelRoster::Room::Kind::kUnload) {
      Unload(room.victim);
      continue;
    }
    roster_->BeginLoad(*next, room.bytes);
    CountMemory(roster_->memory_bytes() - roster_->free_bytes());
    Put(*next, room.bytes, false);
    seats_[*next].loaded->BeginLoading();
    loading_ = next;
  }
}

void SharedSimulation::Unload(size_t model) {
  roster_->Unload(model);
  seats_[model].leaving = true;
  if (!seats_[model].loaded->has_work()) Leave(model);
}

// It has answered what it had begun.
void SharedSimulation::Leave(size_t model) {
  Seat& seat = seats_[model];
  seat.loaded->CountInto(result_.models[model]);
  result_.models[model].expert_bytes = 0;
  if (on_link_ && on_link_->model == model) on_link_.reset();  // for nobody
  seat.loaded.reset();
  seat.leaving = false;
  roster_->Gone(roster_->leaving_bytes());
}

void SharedSimulation::BeginSteps() {
  for (size_t i = 0; i < seats_.size(); ++i) {
    Seat& seat = seats_[i];
    if (!seat.loaded || seat.loaded->loading() || seat.loaded->in_step()) continue;
    if (!seat.loaded->has_work()) continue;
    if (!one_server()) {
      seat.loaded->BeginStep();
    } else if (!std::exchange(seat.asked, true)) {
      turns_.Wait(static_cast<int>(i));
    }
  }
  while (const std::optional<int> next = turns_.Next(Now())) {
    Seat& seat = seats_[static_cast<size_t>(*next)];
    seat.asked = false;
    seat.loaded->BeginStep();
  }
}

void SharedSimulation::UseLink() {
  for (size_t step = 1; step <= seats_.size() && !on_link_; ++step) {
    const size_t model = (last_on_link_ + step) % seats_.size();
    if (!seats_[model].loaded) continue;
    const auto moving = seats_[model].loaded->NextPacket();
    if (!moving) continue;
    const auto ns = static_cast<int64_t>(static_cast<double>(moving->bytes) * 1e9 /
                                         static_cast<double>(options_.link_bytes_per_s));
    on_link_ = OnLink{model, *moving, Now() + std::max<int64_t>(1, ns)};
    last_on_link_ = model;
  }
}

// --- time

int64_t SharedSimulation::NextEventNs() const {
  int64_t next_ns = kNothing;
  if (next_request_ < requests_.size()) {
    next_ns = std::max(Now(), requests_[next_request_].at_ns);
  }
  if (on_link_) next_ns = std::min(next_ns, on_link_->end_ns);
  if (loading_) {
    const int64_t reads_from_ns = seats_[*loading_].loaded->reads_from_ns();
    if (reads_from_ns > Now()) next_ns = std::min(next_ns, reads_from_ns);
  }
  double least = -1;
  int computing = 0;
  for (const Seat& seat : seats_) {
    if (!seat.loaded || !seat.loaded->computes()) continue;
    ++computing;
    least = computing == 1 ? seat.loaded->work_ns() : std::min(least, seat.loaded->work_ns());
  }
  if (computing == 0) return next_ns;
  const double left = std::ceil(std::max(0.0, least) * computing);
  return std::min(next_ns, Now() + static_cast<int64_t>(left));
}

void SharedSimulation::AdvanceTo(int64_t then_ns) {
  const int64_t ns = then_ns - Now();
  clock_.AdvanceNs(ns);
  const auto computing =
      static_cast<double>(std::count_if(seats_.begin(), seats_.end(), [](const Seat& seat) {
        return seat.loaded && seat.loaded->computes();
      }));
  for (Seat& seat : seats_) {
    if (seat.loaded && seat.loaded->computes()) {
      seat.loaded->Work(static_cast<double>(ns) / computing);
    }
  }
}

void SharedSimulation::TakeArrivals() {
  for (; next_request_ < requests_.size() && requests_[next_request_].at_ns <= Now();
       ++next_request_) {
    const SharedRequest& request = requests_[next_request_];
    Seat& seat = seats_[request.model];
    if (roster_) roster_->Use(request.model, Now());
    if (!seat.loaded || seat.leaving || seat.loaded->loading()) {
      seat.waiting.push_back(next_request_);
    } else {
      seat.loaded->Add(next_request_, seat.sequences++, request);
    }
  }
}

void SharedSimulation::TakeFromLink() {
  if (!on_link_ || on_link_->end_ns > Now()) return;
  const OnLink arrived = *std::exchange(on_link_, std::nullopt);
  Seat& seat = seats_[arrived.model];
  seat.loaded->Arrived(arrived.moving);
  if (loading_ != arrived.model || seat.loaded->loading()) return;
  loading_.reset();
  roster_->Loaded(arrived.model, Now());
  for (const size_t number : std::exchange(seat.waiting, {})) {
    seat.loaded->Add(number, seat.sequences++, requests_[number]);
  }
}

void SharedSimulation::GoOn() {
  constexpr double kOver = 1e-3;  // nanoseconds: what rounding leaves
  for (size_t i = 0; i < seats_.size(); ++i) {
    Seat& seat = seats_[i];
    const int member = static_cast<int>(i);
    if (!seat.loaded || !seat.loaded->in_step()) continue;
    if (seat.loaded->blocked()) {
      if (!seat.loaded->Ready()) continue;
      if (one_server()) turns_.Resume(member, Now());
    } else if (seat.loaded->work_ns() > kOver) {
      continue;
    }
    ending_.clear();
    seat.loaded->Go(ending_);
    for (const size_t number : ending_) {
      result_.latency_ns[number] = Now() - requests_[number].at_ns;
    }
    ended_ += ending_.size();
    if (one_server()) {
      if (seat.loaded->blocked()) turns_.Block(member, Now());
      if (!seat.loaded->in_step()) {
        turns_.End(member, Now());
        if (!seat.loaded->has_work()) turns_.Rest(member);
      }
    }
    if (seat.leaving && !seat.loaded->has_work()) Leave(i);
  }
}

// --- memory that moves

void SharedSimulation::Balance() {
  balance_at_ns_ = Now() + ExpertPools::kPeriodNs;
  pools_->Look(Now());
  const auto held = [&] {
    uint64_t bytes = 0;
    for (size_t i = 0; i < seats_.size(); ++i) bytes += pools_->held(i).bytes;
    return bytes;
  };
  CountMemory(held());
  pools_->Move(options_.memory_bytes - held());
  CountMemory(held());
}

void SharedSimulation::CountMemory(uint64_t bytes) {
  CHECK_LE(bytes, options_.memory_bytes);
  result_.most_bytes = std::max(result_.most_bytes, bytes);
}

}  // namespace

SharedResult SimulateShared(std::span<const SharedModel> models,
                            std::span<const SharedRequest> requests, const SharedOptions& options,
                            const CpuKernels& kernels) {
  CHECK(!models.empty());
  return SharedSimulation(models, requests, options, kernels).Run();
}

}  // namespace moesaic
