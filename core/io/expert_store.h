// The expert store file format, written by `moesaic pack`: one 4 KiB-aligned extent per expert,
// already in the target layout.
//
// A store is a directory with `experts.bin` (the blobs, layer after layer, expert after expert) and
// `store.json` (version, fingerprint of the checkpoint, layout, layers, counts, a checksum per
// expert). It is written to a temporary directory and renamed when complete, so that a killed
// `pack` leaves no half store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/expert_id.h"
#include "core/io/expert_layout.h"
#include "core/io/expert_wire.h"

namespace moesaic {

struct ExpertStoreHeader {
  uint64_t source_fingerprint = 0;  // Checkpoint::Fingerprint()
  std::string model_type;
  ExpertLayout layout;
  std::vector<int32_t> sparse_layers;  // layer numbers that have experts, ascending
  int32_t num_experts = 0;             // per sparse layer
};

// What store.json says.
struct ExpertStoreDescription {
  ExpertStoreHeader header;
  std::vector<uint64_t> checksums;  // Hash64 of each slot, in file order
};

class ExpertStoreWriter {
 public:
  // Throws Error(kIo / kResourceExhausted) when the directory cannot be made or the disk has too
  // little room.
  ExpertStoreWriter(const std::filesystem::path& directory, ExpertStoreHeader header);
  ~ExpertStoreWriter();  // removes what is unfinished
  ExpertStoreWriter(const ExpertStoreWriter&) = delete;
  ExpertStoreWriter& operator=(const ExpertStoreWriter&) = delete;

  // Blobs in order (layer-major); blob.size() == layout.slot_bytes.
  void Append(std::span<const std::byte> blob);
  // fsync, write store.json, rename into place, fsync the parent. CHECKs that all experts were
  // appended.
  void Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Compares every expert with its checksum. Throws Error(kCorrupt) naming the first one that
// differs, and as OpenExpertStore does.
void VerifyExpertStore(const std::filesystem::path& directory);

// Reads and checks store.json and the size of experts.bin. Throws Error(kNotFound, kCorrupt).
ExpertStoreHeader OpenExpertStore(const std::filesystem::path& directory);
ExpertStoreDescription DescribeExpertStore(const std::filesystem::path& directory);
// Compares the bytes of the expert at this position of the data file with its checksum. Throws
// Error(kCorrupt) that names the file, the expert and what to do.
void CheckExpert(const ExpertStoreDescription& store, const std::filesystem::path& data_file,
                 size_t position, std::span<const std::byte> slot);
std::filesystem::path ExpertStoreDataFile(const std::filesystem::path& directory);

// The stores of --expert-store: one directory, or several with commas between, which have the same
// experts, and behind them the addresses of servers of such stores (expert_wire.h). A name with a
// comma is one directory where there is such a one. Throws Error(kInvalidArgument) when a name is
// empty, two are the same directory, an address is none, or there are only addresses.
std::vector<std::filesystem::path> ExpertStoresOf(const std::filesystem::path& setting);
// Of these, the directories, which come first; the others are addresses.
size_t CountLocalStores(std::span<const std::filesystem::path> stores);
// What a store has, in a few bytes: hash of its checksums and their shape, and its file's size.
// Stores have the same one when they have the same experts.
ExpertStoreIdentity IdentityOf(const ExpertStoreDescription& store);
// Why two stores cannot stand for each other; empty when they have the same experts.
std::string WhyNotSameExperts(const ExpertStoreDescription& a, const ExpertStoreDescription& b);
// Extent of an expert in the data file: position is (index of its layer in sparse_layers) *
// num_experts + index. CHECKs that the layer is sparse.
Extent ExpertStoreExtent(const ExpertStoreHeader& header, ExpertId id);

}  // namespace moesaic
