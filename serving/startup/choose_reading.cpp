#include "serving/startup/choose_reading.h"

#include <filesystem>
#include <string>

#include "core/base/logging.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// A smaller file comes out of some cache and says nothing of the disk.
constexpr uint64_t kLeastMeasuredBytes = uint64_t{256} << 20;

// The file that holds (most of) the experts.
fs::path ExpertFile(const ExpertSource& experts) {
  fs::path largest;
  uint64_t largest_bytes = 0;
  for (const fs::path& file : experts.files()) {
    const uint64_t bytes = fs::file_size(file);
    if (bytes > largest_bytes) {
      largest = file;
      largest_bytes = bytes;
    }
  }
  return fs::canonical(largest);
}

}  // namespace

bool ChooseReading(const ReadDemand& demand, const Machine& machine, EngineOptions& options) {
  if (options.io_depth > 0 && options.packet_bytes > 0) return false;
  if (demand.all_fit) return false;
  const fs::path file = ExpertFile(demand.experts);
  // A store's expert is one run, a checkpoint's three matrices.
  const uint64_t slot_bytes = demand.experts.layout().slot_bytes;
  const uint64_t read_bytes = options.expert_store.empty() ? slot_bytes / 3 : slot_bytes;
  std::string why = machine.why_no_profile;
  const DiskProfile* disk =
      machine.profile ? machine.profile->DiskFor(file.parent_path()) : nullptr;
  if (machine.profile && disk == nullptr) why = "the profile has no disk that holds the model";
  DiskProfile measured;
  if (disk == nullptr) {
    if (fs::file_size(file) < kLeastMeasuredBytes) return false;
    ProfilerOptions quick;
    quick.quick = true;
    quick.backend = options.io_backend;
    measured = MeasureDiskFile(file, quick);
    disk = &measured;
  }
  const DiskRate* rate = ChooseDiskRate(*disk, read_bytes, demand.use);
  if (rate == nullptr) return false;
  if (options.io_depth == 0) options.io_depth = rate->depth;
  if (options.packet_bytes == 0) options.packet_bytes = rate->block_bytes;
  LogDebug("reading experts in packets of {}, {} in flight ({}: {})",
           FormatBytes(options.packet_bytes), options.io_depth, FormatRate(rate->read.value),
           disk == &measured ? fmt::format("measured in brief, {}", why) : "from the profile");
  return true;
}

}  // namespace moesaic
