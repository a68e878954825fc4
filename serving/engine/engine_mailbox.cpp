#include "serving/engine/engine_mailbox.h"

#include <algorithm>
#include <span>
#include <utility>

namespace moesaic {

std::vector<RequestId> EngineMailbox::Post(std::vector<std::unique_ptr<Sequence>> sequences) {
  std::vector<RequestId> ids;
  ids.reserve(sequences.size());
  const MutexLock lock(mutex_);
  for (auto& sequence : sequences) {
    sequence->id = ++last_id_;
    ids.push_back(sequence->id);
    mail_.arrived.push_back(std::move(sequence));
  }
  wake_.NotifyAll();
  return ids;
}

void EngineMailbox::Cancel(RequestId id) {
  const MutexLock lock(mutex_);
  mail_.cancelled.push_back(id);
  wake_.NotifyAll();
}

void EngineMailbox::PostUse(std::function<void()> use) {
  const MutexLock lock(mutex_);
  mail_.uses.push_back(std::move(use));
  wake_.NotifyAll();
}

void EngineMailbox::Wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  wake_.NotifyAll();
}

void EngineMailbox::Stop() {
  const MutexLock lock(mutex_);
  stop_ = true;
  wake_.NotifyAll();
}

EngineStatus EngineMailbox::Status() const {
  const MutexLock lock(mutex_);
  EngineStatus status = status_;
  status.waiting += static_cast<int64_t>(mail_.arrived.size());
  status.draining = draining();
  if (!status.not_ready.empty()) {
    asked_while_not_ready_ = true;
    wake_.NotifyAll();
  }
  return status;
}

StepStats EngineMailbox::Stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

bool EngineMailbox::is_urgent() const {
  const MutexLock lock(mutex_);
  return stop_ || !mail_.cancelled.empty() || !mail_.uses.empty() || HasForeground();
}

bool EngineMailbox::HasForeground() const {
  return std::any_of(mail_.arrived.begin(), mail_.arrived.end(),
                     [](const auto& sequence) { return !sequence->request.background; });
}

bool EngineMailbox::empty() const {
  const MutexLock lock(mutex_);
  return mail_.arrived.empty();
}

EngineMailbox::Mail EngineMailbox::Take(bool idle, Clock::time_point until) {
  const MutexLock lock(mutex_);
  while (idle && !stop_ && mail_.arrived.empty() && mail_.cancelled.empty() && mail_.uses.empty() &&
         !asked_while_not_ready_ && !woken_) {
    if (until == Clock::time_point::max()) {
      wake_.Wait(mutex_);
    } else if (!wake_.WaitUntil(mutex_, until)) {
      break;
    }
  }
  Mail taken = std::exchange(mail_, {});
  taken.stop = stop_;
  woken_ = false;
  taken.asked_while_not_ready = std::exchange(asked_while_not_ready_, false);
  return taken;
}

void EngineMailbox::AddStats(const StepStats& stats) {
  const MutexLock lock(mutex_);
  stats_ += stats;
}

void EngineMailbox::SetNotReady(std::string why, std::string code) {
  const MutexLock lock(mutex_);
  status_.not_ready = std::move(why);
  status_.not_ready_code = std::move(code);
}

void EngineMailbox::Publish(const Scheduler& scheduler, const KvManager& kv,
                            const EngineStep::Experts& experts) {
  const MutexLock lock(mutex_);
  status_.running = scheduler.running();
  status_.waiting = scheduler.waiting();
  status_.preemptions = scheduler.preemptions();
  status_.kv_usage = kv.usage();
  status_.expert_slots = experts.slots;
  status_.experts_resident = experts.resident;
  status_.devices.assign(experts.devices.begin(), experts.devices.end());
  status_.links.assign(experts.links.begin(), experts.links.end());
}

}  // namespace moesaic
