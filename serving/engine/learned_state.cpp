#include "serving/engine/learned_state.h"

#include <pthread.h>
#include <sys/stat.h>

#include <system_error>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "tracer/model_fingerprint.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

std::vector<StateSection*> With(std::vector<StateSection*> sections, StateSection* more,
                                const std::vector<std::shared_ptr<StateSection>>& kept) {
  sections.push_back(more);
  for (const std::shared_ptr<StateSection>& section : kept) {
    CHECK(section->any_thread());
    sections.push_back(section.get());
  }
  return sections;
}

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void CheckStatePlace(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    Fail(ErrorKind::kInvalidArgument, "--state-file {}: is not a file", file.string());
  }
  const fs::path directory = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (!fs::is_directory(directory, error)) {
    Fail(ErrorKind::kInvalidArgument, "--state-file {}: there is no directory {}; make it first",
         file.string(), directory.string());
  }
  try {
    CheckStateFile(file);
  } catch (const Error& refused) {
    throw Error(refused.kind(), fmt::format("--state-file {}", refused.what()));
  }
}

LearnedState::LearnedState(fs::path file, double interval_s, const ModelConfig& config,
                           std::vector<StateSection*> learned, MetricsRegistry& metrics,
                           std::vector<std::shared_ptr<StateSection>> kept)
    : config_(config),
      interval_(interval_s),
      kept_(std::move(kept)),
      residency_section_(residency_, static_cast<int>(config.num_layers()),
                         static_cast<int>(config.num_experts())),
      checkpoint_(std::move(file), FingerprintOf(config),
                  With(std::move(learned), &residency_section_, kept_)),
      saved_at_(metrics.GetGauge("moe_state_saved_timestamp_seconds",
                                 "When the state file was last written, in seconds since 1970; its "
                                 "age is time() less this")),
      bytes_(metrics.GetGauge("moe_state_file_bytes", "Size of the state file")),
      copy_seconds_(metrics.GetGauge(
          "moe_state_copy_seconds", "How long steps waited for the last copy of what was learned")),
      saves_(metrics.GetCounter("moe_state_saves_total", "Times the state file was written",
                                {{"result", "ok"}})),
      failures_(metrics.GetCounter("moe_state_saves_total", "Times the state file was written",
                                   {{"result", "failed"}})),
      writer_([this] { WriterThread(); }) {}

LearnedState::~LearnedState() { CloseWriter(); }

void LearnedState::Restore() {
  const StateLoadResult result = checkpoint_.Load();
  for (const std::string& problem : result.problems) {
    LogWarn("{}; the file is kept under another name when the first state is saved", problem);
  }
  struct stat file;
  if (result.sections_loaded == 0 || stat(checkpoint_.file().c_str(), &file) != 0) return;
  saved_at_.Set(static_cast<double>(file.st_mtim.tv_sec));
  bytes_.Set(static_cast<double>(file.st_size));
  LogInfo("{}: {} part{} of what was learned restored ({}, {:.0f} s old), {} experts to load",
          checkpoint_.file().string(), result.sections_loaded,
          result.sections_loaded == 1 ? "" : "s", FormatBytes(static_cast<uint64_t>(file.st_size)),
          UnixSeconds() - static_cast<double>(file.st_mtim.tv_sec), residency_.experts.size());
}

std::vector<ExpertId> LearnedState::LastResidents() const {
  std::vector<ExpertId> experts;
  for (const ResidentExpert& resident : residency_.experts) {
    if (resident.id.stack == Stack::kDecoder && config_.is_sparse(resident.id.layer)) {
      experts.push_back(resident.id);
    }
  }
  return experts;
}

std::optional<LearnedState::Clock::time_point> LearnedState::DueAt() const {
  if (!learned_anything_ || interval_.count() <= 0) return std::nullopt;
  return last_try_ + std::chrono::duration_cast<Clock::duration>(interval_);
}

StoredState LearnedState::Copy(std::vector<ResidentExpert> residents) {
  const Clock::time_point begin = Clock::now();
  residency_.experts = std::move(residents);
  StoredState snapshot = checkpoint_.Snapshot();
  learned_anything_ = false;
  copy_seconds_.Set(std::chrono::duration<double>(Clock::now() - begin).count());
  return snapshot;
}

void LearnedState::Save(std::vector<ResidentExpert> residents) {
  last_try_ = Clock::now();
  {
    MutexLock lock(mutex_);
    if (writing_) return;
  }
  StoredState snapshot = Copy(std::move(residents));
  MutexLock lock(mutex_);
  pending_ = std::move(snapshot);
  writing_ = true;
  changed_.NotifyAll();
}

void LearnedState::SaveAndClose(std::vector<ResidentExpert> residents) {
  CloseWriter();
  {
    MutexLock lock(mutex_);
    if (!learned_anything_ && !failed_) return;
  }
  Write(Copy(std::move(residents)));
}

void LearnedState::CloseWriter() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  if (writer_.joinable()) writer_.join();
}

void LearnedState::WriterThread() {
  pthread_setname_np(pthread_self(), "state-writer");
  for (;;) {
    std::optional<StoredState> snapshot;
    {
      MutexLock lock(mutex_);
      while (!pending_ && !stop_) changed_.Wait(mutex_);
      if (!pending_) return;
      snapshot = std::exchange(pending_, std::nullopt);
    }
    Write(std::move(*snapshot));
    MutexLock lock(mutex_);
    writing_ = false;
  }
}

void LearnedState::Write(StoredState snapshot) {
  try {
    const StateWriteResult written = checkpoint_.Write(std::move(snapshot));
    if (!written.aside.empty()) {
      LogWarn("{}: what could not be used is now {}", checkpoint_.file().string(),
              written.aside.string());
    }
    saved_at_.Set(UnixSeconds());
    bytes_.Set(static_cast<double>(written.bytes));
    saves_.Add();
    MutexLock lock(mutex_);
    failed_ = false;
  } catch (const Error& error) {
    LogWarn("what was learned is not saved: {}", error.what());
    failures_.Add();
    MutexLock lock(mutex_);
    failed_ = true;
  }
}

}  // namespace moesaic
