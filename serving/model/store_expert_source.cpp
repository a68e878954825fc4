// Experts of one store, or of several with the same experts (expert_sources.h).
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/logging.h"
#include "core/io/async_reader.h"
#include "core/io/expert_store.h"
#include "core/io/expert_wire.h"
#include "core/io/remote_reader.h"
#include "serving/model/expert_sources.h"
#include "serving/model/experts_of_model.h"

namespace moesaic {
namespace {

bool SameLayout(const ExpertLayout& a, const ExpertLayout& b) {
  const auto same_section = [](const ExpertSection& x, const ExpertSection& y) {
    return x.name == y.name && x.dtype == y.dtype && x.format == y.format && x.rows == y.rows &&
           x.cols == y.cols && x.offset == y.offset && x.bytes == y.bytes &&
           x.gguf_types == y.gguf_types;
  };
  return a.blob_bytes == b.blob_bytes && a.slot_bytes == b.slot_bytes &&
         std::equal(a.sections.begin(), a.sections.end(), b.sections.begin(), b.sections.end(),
                    same_section);
}

class StoreExpertSource : public ExpertSource {
 public:
  // `stores`: one, or several with the same experts, as those of `remotes`.
  StoreExpertSource(const ModelConfig& config, ExpertStoreDescription description,
                    std::span<const std::filesystem::path> stores, std::vector<RemoteStore> remotes)
      : store_(std::move(description)),
        remotes_(std::move(remotes)),
        checked_(store_.checksums.size()),
        damaged_(store_.checksums.size()),
        said_damaged_(stores.size() + remotes_.size()) {
    for (const std::filesystem::path& store : stores) {
      places_.push_back({ExpertStoreDataFile(store)});
    }
    const ExpertStoreHeader& header = store_.header;
    first_of_layer_.assign(static_cast<size_t>(config.num_layers()), -1);
    for (const int32_t layer : header.sparse_layers) {
      first_of_layer_[static_cast<size_t>(layer)] = static_cast<int64_t>(extents_.size());
      for (int32_t e = 0; e < header.num_experts; ++e) {
        ExpertId id;
        id.layer = static_cast<uint16_t>(layer);
        id.index = static_cast<uint16_t>(e);
        extents_.push_back(ExpertStoreExtent(header, id));
      }
    }
  }

  const std::vector<std::filesystem::path>& files() const override { return places_.front(); }
  std::span<const std::vector<std::filesystem::path>> replicas() const override {
    if (places_.size() == 1 && remotes_.empty()) return {};
    return places_;
  }
  std::span<const RemoteStore> remotes() const override { return remotes_; }
  uint32_t DamagedReplicas(ExpertId id) const override {
    return damaged_[Position(id)].load(std::memory_order_relaxed);
  }
  const ExpertLayout& layout() const override { return store_.header.layout; }
  bool HasLayer(int64_t layer) const override {
    return first_of_layer_[static_cast<size_t>(layer)] >= 0;
  }
  std::span<const Extent> Extents(ExpertId id) const override {
    return {extents_.data() + Position(id), 1};
  }
  bool direct() const override { return true; }
  bool MustCheck(ExpertId id) const override {
    return links() > 1 || !checked_[Position(id)].load(std::memory_order_relaxed);
  }
  bool Check(ExpertId id, std::span<std::byte> slot) const override {
    const size_t position = Position(id);
    if (links() > 1) {
      if (Hash64(slot) == store_.checksums[position]) return true;
      ReadFromAnyStore(position, slot);
      return false;
    }
    CheckExpert(store_, files().front(), position, slot);
    checked_[position].store(true, std::memory_order_relaxed);
    return true;
  }
  void Pack(ExpertId, std::span<const std::span<const std::byte>>,
            std::span<std::byte>) const override {
    CHECK(false);  // a store's extent is the blob
  }

 private:
  size_t Position(ExpertId id) const {
    const int64_t first = first_of_layer_[id.layer];
    CHECK_GE(first, 0);
    return static_cast<size_t>(first) + id.index;
  }

  // Of links(): stores here, and behind them those of servers.
  std::string LinkName(size_t link) const {
    if (link < places_.size()) return places_[link].front().parent_path().string();
    return ExpertPeerName(remotes_[link - places_.size()].peer);
  }

  // How an expert is in one of the stores.
  struct Looked {
    std::string wrong;  // empty: as it was written
    bool damaged = false;
  };
  Looked LookInto(size_t link, size_t position, std::span<std::byte> slot) const {
    const bool here = link < places_.size();
    try {
      if (here) {
        const std::filesystem::path& path = places_[link].front();
        const size_t bytes = File(path).ReadAt(extents_[position].offset, slot);
        CheckExpert(store_, path, position, slot.first(bytes));
      } else {
        ReadFromServer(remotes_[link - places_.size()], position, slot);
        CheckExpert(store_, LinkName(link), position, slot);
      }
    } catch (const Error& error) {
      // That a server is not there does not mean that its copy is damaged.
      return {error.what(), here || error.kind() == ErrorKind::kCorrupt};
    }
    return {};
  }

  void ReadFromServer(const RemoteStore& remote, size_t position, std::span<std::byte> slot) const {
    const std::unique_ptr<AsyncReader> reader = MakeRemoteReader(remote, 1);
    reader->Submit({.offset = extents_[position].offset,
                    .bytes = static_cast<uint32_t>(slot.size()),
                    .destination = slot.data()});
    std::vector<ReadCompletion> done;
    while (done.empty()) reader->Wait(done, -1);
    const int64_t result = done.front().result;
    if (result == static_cast<int64_t>(slot.size())) return;
    Fail(ErrorKind::kIo, "{}: {}", ExpertPeerName(remote.peer),
         result < 0 ? ErrnoMessage(static_cast<int>(-result)) : "its file is too short");
  }

  // A part of the bytes was damaged. Looks at each store by itself, through the page cache: that is
  // slow and happens about once for each damaged expert, which is then not read from there. Servers
  // are asked only while it is not known who has damaged bytes, or who has the right ones.
  void ReadFromAnyStore(size_t position, std::span<std::byte> slot) const {
    std::vector<Looked> looked;
    looked.reserve(links());
    bool right = false;
    uint32_t damaged = 0;
    for (size_t link = 0; link < links(); ++link) {
      if (link >= places_.size() && right && damaged != 0) break;
      looked.push_back(LookInto(link, position, slot));
      right = right || looked.back().wrong.empty();
      if (looked.back().damaged) damaged |= uint32_t{1} << link;
    }
    for (size_t link = 0; link < looked.size(); ++link) {
      if (!looked[link].wrong.empty() || !LookInto(link, position, slot).wrong.empty()) continue;
      damaged_[position].store(damaged, std::memory_order_relaxed);
      for (size_t other = 0; other < looked.size(); ++other) {
        if (!looked[other].damaged || said_damaged_[other].exchange(true)) continue;
        LogWarn("{}; it is read from {}, as are others of which that is so", looked[other].wrong,
                LinkName(link));
      }
      return;
    }
    Fail(ErrorKind::kCorrupt, "{} (and no other store has it)", looked.front().wrong);
  }

  std::vector<std::vector<std::filesystem::path>> places_;  // [stores] the file with the experts
  ExpertStoreDescription store_;
  std::vector<RemoteStore> remotes_;  // of which this may be read as well
  std::vector<int64_t> first_of_layer_;
  std::vector<Extent> extents_;  // in the file's order
  // Likewise: the bytes were found right. The data that goes with it passes through the reader's
  // lock; here only the flag itself has to be whole.
  mutable std::vector<std::atomic<bool>> checked_;
  // Likewise: bits of links in which the expert was found damaged.
  mutable std::vector<std::atomic<uint32_t>> damaged_;
  mutable std::vector<std::atomic<bool>> said_damaged_;  // [links]
};

struct OpenStore {
  std::filesystem::path path;
  ExpertStoreDescription description;
};

// One of several may be on a disk that is gone: the others have the same experts. Throws when none
// can be opened.
std::vector<OpenStore> OpenStores(std::span<const std::filesystem::path> stores) {
  std::vector<OpenStore> open;
  open.reserve(stores.size());
  for (size_t s = 0; s < stores.size(); ++s) {
    try {
      open.push_back({stores[s], DescribeExpertStore(stores[s])});
    } catch (const Error& error) {
      if (open.empty() && s + 1 == stores.size()) throw;
      LogWarn("{}; experts are read without this store", error.what());
    }
  }
  return open;
}

// What --dtype calls experts of this type, where that is not its name.
const char* NameOf(const ModelConfig& config, DType dtype) {
  if (dtype == DType::kMxfp4) return TraitsOf(WeightType::kMxfp4F32).dtype;
  const bool mxfp4 = dtype == DType::kGguf && config.tensors.HasMxfp4Experts();
  return mxfp4 ? TraitsOf(WeightType::kMxfp4).dtype : DTypeName(dtype);
}

// Why the store cannot serve this model; empty when it can.
std::string WhyNotCurrent(const ModelConfig& config, WeightType type, uint64_t fingerprint,
                          const ExpertStoreHeader& header) {
  if (header.model_type != config.model_type || header.num_experts != config.num_experts() ||
      header.sparse_layers != LayersWithExperts(config)) {
    return "it was made for another model";
  }
  const ExpertLayout wanted = MakeCpuExpertLayout(config, type);
  if (!SameLayout(header.layout, wanted)) {
    const DType found = header.layout.sections.empty() ? wanted.sections.front().dtype
                                                       : header.layout.sections.front().dtype;
    if (found == wanted.sections.front().dtype) return "its weights have another layout";
    return fmt::format("its weights are {} and not {} (--dtype)", NameOf(config, found),
                       NameOf(config, wanted.sections.front().dtype));
  }
  if (header.source_fingerprint != fingerprint)
    return "the checkpoint has changed since it was made";
  return {};
}

}  // namespace

std::unique_ptr<ExpertSource> MakeStoreExpertSource(const ModelConfig& config, WeightType type,
                                                    uint64_t fingerprint,
                                                    std::span<const std::filesystem::path> stores,
                                                    const std::string& key) {
  std::vector<OpenStore> open = OpenStores(stores.first(CountLocalStores(stores)));
  for (const OpenStore& store : open) {
    const std::string why = WhyNotSameExperts(open.front().description, store.description);
    if (why.empty()) continue;
    Fail(ErrorKind::kInvalidArgument,
         "expert stores {} and {} do not have the same experts: {}; name stores of one model, such "
         "as copies of one directory",
         open.front().path.string(), store.path.string(), why);
  }
  const std::string why = WhyNotCurrent(config, type, fingerprint, open.front().description.header);
  if (!why.empty()) {
    const std::string store = open.front().path.string();
    Fail(ErrorKind::kInvalidArgument,
         "expert store {}: {}; rebuild it with `moesaic pack MODEL --dtype {} -o {}` or leave "
         "--expert-store out",
         store, why, TraitsOf(type).dtype, store);
  }
  std::vector<std::filesystem::path> paths;
  paths.reserve(open.size());
  for (const OpenStore& store : open) paths.push_back(store.path);
  // The same, and with what a store does not say.
  ExpertStoreDescription description = std::move(open.front().description);
  const ExpertStoreIdentity identity = IdentityOf(description);
  std::vector<RemoteStore> remotes;
  remotes.reserve(stores.size());
  for (const std::filesystem::path& peer : stores.subspan(CountLocalStores(stores))) {
    remotes.push_back({.peer = ParseExpertPeer(peer.string()), .key = key, .store = identity});
  }
  description.header.layout = MakeCpuExpertLayout(config, type);
  return std::make_unique<StoreExpertSource>(config, std::move(description), paths,
                                             std::move(remotes));
}

bool StoreIsCoded(std::span<const std::filesystem::path> stores) {
  stores = stores.first(CountLocalStores(stores));
  for (size_t s = 0;; ++s) {
    try {
      const ExpertLayout layout = OpenExpertStore(stores[s]).layout;
      return !layout.sections.empty() && layout.sections.front().dtype == DType::kBf16Coded;
    } catch (const Error&) {
      if (s + 1 == stores.size()) throw;  // the one before may be on a disk that is gone
    }
  }
}

bool ExpertStoreIsCurrent(const ModelConfig& config, WeightType type, uint64_t fingerprint,
                          const std::filesystem::path& store) {
  if (!std::filesystem::exists(store)) return false;
  try {
    return WhyNotCurrent(config, type, fingerprint, OpenExpertStore(store)).empty();
  } catch (const Error&) {
    return false;  // unreadable: not current, and `pack` writes it anew
  }
}

}  // namespace moesaic
