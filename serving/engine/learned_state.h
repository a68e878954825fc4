// LearnedState: keeps what an engine has learned, and which experts it holds, in a state file
// (tracer/state_checkpoint.h): restored before the first request, saved at intervals and at the
// end.
//
// Thread contract: owned and used by the engine's thread. A step waits for no more than a copy of
// what was learned; packing and writing happen on a thread of this object's own. A file that cannot
// be written is a message in the log and a count in the metrics, nothing else.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/metrics.h"
#include "core/base/mutex.h"
#include "core/config/model_config.h"
#include "tracer/residency_list.h"
#include "tracer/state_checkpoint.h"

namespace moesaic {

// Whether a state file can be kept there, before hours are spent on learning what goes into it.
// Throws Error(kInvalidArgument) when it never can, or when something else is there already, and
// Error(kIo) when that cannot be told. Nothing is changed.
void CheckStatePlace(const std::filesystem::path& file);

class LearnedState {
 public:
  using Clock = std::chrono::steady_clock;

  // config and learned (what there is besides the residency list) are borrowed; `kept`, of any
  // thread, are saved with it. interval_s 0: saved at the end only. `file` has passed
  // CheckStatePlace.
  LearnedState(std::filesystem::path file, double interval_s, const ModelConfig& config,
               std::vector<StateSection*> learned, MetricsRegistry& metrics,
               std::vector<std::shared_ptr<StateSection>> kept = {});
  // Waits for what is being written.
  ~LearnedState();
  LearnedState(const LearnedState&) = delete;
  LearnedState& operator=(const LearnedState&) = delete;

  // Takes over what the file holds. What is refused is told in the log, and set aside by the first
  // save.
  void Restore();
  // Experts of this model that the last process held, by descending worth.
  std::vector<ExpertId> LastResidents() const;

  // Something was learned since the last save.
  void Learned() { learned_anything_ = true; }
  // When the next save is due; nullopt: not before more is learned.
  std::optional<Clock::time_point> DueAt() const;
  // Copies what was learned and has it written. While the last copy is still being written nothing
  // is done until an interval later.
  void Save(std::vector<ResidentExpert> residents);
  // The last save; returns when it is done.
  void SaveAndClose(std::vector<ResidentExpert> residents);

 private:
  void WriterThread() EXCLUDES(mutex_);
  StoredState Copy(std::vector<ResidentExpert> residents);
  void Write(StoredState snapshot) EXCLUDES(mutex_);
  void CloseWriter() EXCLUDES(mutex_);

  const ModelConfig& config_;
  const std::chrono::duration<double> interval_;
  const std::vector<std::shared_ptr<StateSection>> kept_;  // shared with who serves the model
  ResidencyList residency_;
  ResidencyListSection residency_section_;
  StateCheckpoint checkpoint_;
  Clock::time_point last_try_ = Clock::now();
  bool learned_anything_ = false;  // that no save has taken

  Gauge& saved_at_;
  Gauge& bytes_;
  Gauge& copy_seconds_;
  Counter& saves_;
  Counter& failures_;

  Mutex mutex_;
  CondVar changed_;
  std::optional<StoredState> pending_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;
  bool failed_ GUARDED_BY(mutex_) = false;  // the last write
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread writer_;
};

}  // namespace moesaic
