// Reading an expert store; the writer is in expert_store_writer.cpp.
#include "core/io/expert_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/aligned_buffer.h"
#include "core/base/check.h"
#include "core/base/comma_list.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/io/expert_store_json.h"
#include "core/io/expert_wire.h"
#include "core/io/stripe_schedule.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostJsonBytes = 64 << 20;

}  // namespace

ExpertStoreDescription DescribeExpertStore(const fs::path& directory) {
  const fs::path json_file = directory / "store.json";
  std::error_code ignored;
  if (!fs::exists(json_file, ignored)) {
    Fail(ErrorKind::kNotFound,
         "{}: is not an expert store (it has no store.json); make one with "
         "`moesaic pack`",
         directory.string());
  }
  ExpertStoreDescription store =
      ParseExpertStoreJson(ReadTextFile(json_file, kMostJsonBytes), json_file.string());
  const File data(ExpertStoreDataFile(directory));
  const uint64_t expected = ExpertStoreBytes(store.header);
  if (data.size_bytes() != expected) {
    Fail(ErrorKind::kCorrupt,
         "{}: has {} bytes, expected {} ({} experts of {}); write the store again "
         "with `moesaic pack`",
         data.path().string(), data.size_bytes(), expected, ExpertStoreCount(store.header),
         store.header.layout.slot_bytes);
  }
  return store;
}

fs::path ExpertStoreDataFile(const fs::path& directory) { return directory / "experts.bin"; }

std::vector<fs::path> ExpertStoresOf(const fs::path& setting) {
  std::error_code ignored;
  const std::string text = setting.string();
  const bool one = text.find(',') == std::string::npos && !IsExpertPeer(text);
  if (one || fs::exists(setting, ignored)) return {setting};
  std::vector<fs::path> stores;
  for (std::string_view rest = text; !rest.empty();) {
    fs::path store = TakeItem(rest);
    if (store.empty() || (rest.empty() && text.back() == ',')) {
      Fail(ErrorKind::kInvalidArgument,
           "--expert-store {}: a directory is missing beside a comma; write DIR,DIR", text);
    }
    if (IsExpertPeer(store.string())) ParseExpertPeer(store.string());
    for (const fs::path& other : stores) {
      if ((store / "").lexically_normal() != (other / "").lexically_normal() &&
          !fs::equivalent(store, other, ignored)) {
        continue;
      }
      Fail(ErrorKind::kInvalidArgument,
           "--expert-store {}: {} and {} are the same directory; name each store once", text,
           other.string(), store.string());
    }
    stores.push_back(std::move(store));
  }
  std::stable_partition(stores.begin(), stores.end(),
                        [](const fs::path& store) { return !IsExpertPeer(store.string()); });
  if (IsExpertPeer(stores.front().string())) {
    Fail(ErrorKind::kInvalidArgument,
         "--expert-store {}: a server alone is not enough; name a copy of its store on a disk of "
         "this machine in front: DIR,tcp://HOST:PORT",
         text);
  }
  if (stores.size() > static_cast<size_t>(kMostStripeLinks)) {
    Fail(ErrorKind::kInvalidArgument, "--expert-store: {} stores are named, {} is the most",
         stores.size(), kMostStripeLinks);
  }
  return stores;
}

size_t CountLocalStores(std::span<const fs::path> stores) {
  return static_cast<size_t>(std::count_if(stores.begin(), stores.end(), [](const fs::path& store) {
    return !IsExpertPeer(store.string());
  }));
}

ExpertStoreIdentity IdentityOf(const ExpertStoreDescription& store) {
  const ExpertStoreHeader& header = store.header;
  const std::string shape =
      fmt::format("{} {} {} {}", header.model_type, header.num_experts, header.layout.slot_bytes,
                  fmt::join(header.sparse_layers, ","));
  return {Hash64(std::as_bytes(std::span(store.checksums)), Hash64(shape)),
          ExpertStoreBytes(header)};
}

std::string WhyNotSameExperts(const ExpertStoreDescription& a, const ExpertStoreDescription& b) {
  const ExpertStoreHeader& x = a.header;
  const ExpertStoreHeader& y = b.header;
  if (x.model_type != y.model_type || x.sparse_layers != y.sparse_layers ||
      x.num_experts != y.num_experts) {
    return fmt::format("one has {} x {} experts of {}, the other {} x {} of {}",
                       x.sparse_layers.size(), x.num_experts, x.model_type, y.sparse_layers.size(),
                       y.num_experts, y.model_type);
  }
  const auto type = [](const ExpertStoreHeader& header) {
    return header.layout.sections.empty() ? "nothing"
                                          : DTypeName(header.layout.sections.front().dtype);
  };
  if (x.layout.slot_bytes != y.layout.slot_bytes ||
      x.layout.sections.size() != y.layout.sections.size() ||
      std::string_view(type(x)) != type(y)) {
    return fmt::format("one has experts of {} bytes ({}), the other of {} ({})",
                       x.layout.slot_bytes, type(x), y.layout.slot_bytes, type(y));
  }
  if (a.checksums != b.checksums) return "their experts have different weights";
  if (x.source_fingerprint != y.source_fingerprint) {
    return "they were made of different copies of the checkpoint; make one of them, and copy it";
  }
  return {};
}

ExpertStoreHeader OpenExpertStore(const fs::path& directory) {
  return DescribeExpertStore(directory).header;
}

Extent ExpertStoreExtent(const ExpertStoreHeader& header, ExpertId id) {
  const auto layer = std::lower_bound(header.sparse_layers.begin(), header.sparse_layers.end(),
                                      static_cast<int32_t>(id.layer));
  CHECK(layer != header.sparse_layers.end() && *layer == static_cast<int32_t>(id.layer));
  CHECK_LT(static_cast<int32_t>(id.index), header.num_experts);
  const auto position = static_cast<uint64_t>(layer - header.sparse_layers.begin()) *
                            static_cast<uint64_t>(header.num_experts) +
                        id.index;
  return {0, position * header.layout.slot_bytes, header.layout.slot_bytes};
}

void CheckExpert(const ExpertStoreDescription& store, const fs::path& data_file, size_t position,
                 std::span<const std::byte> slot) {
  const ExpertStoreHeader& header = store.header;
  const uint64_t bytes = header.layout.slot_bytes;
  if (slot.size() == bytes && Hash64(slot) == store.checksums[position]) return;
  const auto experts = static_cast<size_t>(header.num_experts);
  Fail(ErrorKind::kCorrupt,
       "{}: expert {} of layer {} (bytes {} to {}) does not have the checksum that store.json "
       "gives: the file is damaged; run `moesaic pack` again, with --force",
       data_file.string(), position % experts, header.sparse_layers[position / experts],
       position * bytes, (position + 1) * bytes);
}

void VerifyExpertStore(const fs::path& directory) {
  const ExpertStoreDescription store = DescribeExpertStore(directory);
  const File data(ExpertStoreDataFile(directory));
  AlignedBuffer slot(store.header.layout.slot_bytes);
  for (size_t position = 0; position < store.checksums.size(); ++position) {
    const size_t read = data.ReadAt(position * slot.bytes(), slot.span());
    CheckExpert(store, data.path(), position, slot.span().first(read));
  }
}

}  // namespace moesaic
