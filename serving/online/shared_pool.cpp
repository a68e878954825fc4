#include "serving/online/shared_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/base/logging.h"
#include "core/base/tensor.h"
#include "core/base/units.h"
#include "prefetch/link/shared_experts.h"
#include "serving/model/experts_of_model.h"
#include "serving/online/kv_store_plan.h"

namespace moesaic {
namespace {

// To be raised with every change to how an expert's weights lie in its blob, or to the memory that
// processes share (SharedSlots, Hello).
constexpr int kShareVersion = 1;

// The first process may have to read a large dense part before it makes the memory.
constexpr std::chrono::seconds kPatience{600};

// Slots that other processes keep out of, so that the cache can always fill some: what a layer of a
// token or two needs. None where nobody leaves.
int64_t ReservedSlots(const EnginePlan& plan, const ModelConfig& config) {
  if (plan.expert_slots >= config.num_sparse_layers() * config.num_experts()) return 0;
  const int64_t changing = std::clamp<int64_t>(plan.expert_slots / 4, 1, 2 * config.top_k());
  return std::min(plan.expert_slots, std::ssize(plan.placed.kept) + changing);
}

}  // namespace

std::string SharedPoolKey(const EngineOptions& options, const ModelFiles& files) {
  const ExpertLayout& layout = files.experts->layout();
  std::string key = fmt::format(
      "share {}; checkpoint {:016x}; config {:016x}; {} layers of {} experts, {} bytes each",
      kShareVersion, files.tensors->Fingerprint(), ConfigHash(options), files.config.num_layers(),
      files.config.num_experts(), layout.slot_bytes);
  for (const ExpertSection& section : layout.sections) {
    const auto types = std::as_bytes(std::span(section.gguf_types));
    key +=
        fmt::format("; {} {} {} {}x{} at {}", section.name, DTypeName(section.dtype),
                    static_cast<int>(section.format), section.rows, section.cols, section.offset);
    if (!types.empty()) key += fmt::format(" of types {:016x}", Hash64(types));
  }
  return key;
}

SharedPool::SharedPool(const EngineOptions& options, const EnginePlan& plan,
                       const ModelFiles& files, std::span<const NodeStretch> stretches)
    : name_(options.share_experts),
      key_(SharedPoolKey(options, files)),
      grid_(GridOf(files.config)),
      slot_bytes_(plan.slot_bytes) {
  CHECK(files.share != nullptr);
  if (plan.share == ShareRole::kReads) {
    LogInfo("experts are read in the memory shared as {}, which another process fills", name_);
    view_.emplace(*files.share, key_, kPatience);
    return;
  }
  CHECK(plan.share == ShareRole::kFills);
  memory_.emplace(*files.share, static_cast<uint64_t>(plan.expert_slots) * slot_bytes_,
                  SharedSlots::Bytes(grid_));
  TakePagesFromNodes(memory_->memory(), RepeatStretches(stretches, slot_bytes_, plan.expert_slots));
  filled_.emplace(grid_, memory_->control(), plan.expert_slots, ReservedSlots(plan, files.config),
                  slot_bytes_);
}

void SharedPool::Prepare(ExpertLoaderOptions& loading) {
  if (!memory_) return;
  loading.slot_memory = memory_->memory();
  loading.slot_stretches = {};  // they are on their nodes
  loading.readers = &*filled_;
}

std::unique_ptr<ExpertProvider> SharedPool::Share(std::unique_ptr<ExpertLoader> loader) {
  if (memory_) {
    memory_->Offer(key_, [this](int member) { filled_->MemberGone(member); });
    LogInfo("experts are shared as {}: {} of memory, which other processes read", name_,
            FormatBytes(memory_->memory().size()));
    return loader;
  }
  return std::make_unique<SharedExperts>(
      grid_,
      SharedSlotsView(grid_, view_->control(), view_->memory(), slot_bytes_, view_->member()),
      std::move(loader));
}

void SharedPool::Watch() {
  if (!view_ || !filler_lives_ || view_->FillerLives()) return;
  filler_lives_ = false;
  LogWarn(
      "the process that filled the shared experts {} has ended: what it left in memory is used on, "
      "the rest is read into slots of this process; the next process that starts fills new memory",
      name_);
}

}  // namespace moesaic
