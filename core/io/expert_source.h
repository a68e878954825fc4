// ExpertSource: where an expert's bytes are on disk and how they become its blob. Two kinds
// (docs/architecture.md): an unmodified checkpoint, whose extents are packed on arrival, and an
// expert store, whose one aligned extent is the blob.
//
// Thread contract: const and safe from any thread once made. The implementations live in
// serving/model (they know tensor names and call kernels); the loader (prefetch) only sees this
// interface.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/expert_id.h"
#include "core/io/expert_layout.h"
#include "core/io/remote_reader.h"

namespace moesaic {

// An expert could not be read, or what was read is not that expert.
class ExpertError : public Error {
 public:
  ExpertError(ErrorKind kind, std::string message, ExpertId expert)
      : Error(kind, std::move(message)), expert_(expert) {}
  ExpertId expert() const { return expert_; }

 private:
  ExpertId expert_;
};

class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  // The files that extents refer to, by index.
  virtual const std::vector<std::filesystem::path>& files() const = 0;
  // Where the same files are several times, on disks that share the reading: each place's files, in
  // the order of files(), which are the first one's. Empty: there is one place.
  virtual std::span<const std::vector<std::filesystem::path>> replicas() const { return {}; }
  // Servers on other machines that share the reading of the one file. Where there are some,
  // replicas() are there as well, even when they are only one; links are these and then those.
  virtual std::span<const RemoteStore> remotes() const { return {}; }
  // From how many places it is read at once, at least one.
  size_t links() const { return std::max<size_t>(replicas().size() + remotes().size(), 1); }
  // A bit for each of replicas() and remotes() in which this expert is known to be damaged.
  virtual uint32_t DamagedReplicas(ExpertId /*id*/) const { return 0; }
  // Uniform over the model's layers; slots are of layout().slot_bytes.
  virtual const ExpertLayout& layout() const = 0;
  // Whether a layer of the model has experts; the functions below are called for those only.
  virtual bool HasLayer(int64_t layer) const { return layer >= 0; }
  // The extents of an expert, in the order in which Pack wants them; none when Pack makes the blob
  // from nothing (random weights). Does not allocate.
  virtual std::span<const Extent> Extents(ExpertId id) const = 0;
  // True: the expert has one extent, at a multiple of 4 KiB and slot_bytes long, which is the blob;
  // it can be read straight into a slot and Pack is never called.
  virtual bool direct() const = 0;
  // Makes the blob from the extents' bytes (pieces[i] holds extent i). `slot` is slot_bytes long,
  // 64-byte aligned. Called on an I/O thread. Throws Error(kCorrupt) when the bytes cannot be an
  // expert.
  virtual void Pack(ExpertId id, std::span<const std::span<const std::byte>> pieces,
                    std::span<std::byte> slot) const = 0;

  // Of a direct source: whether Check has to see the expert's bytes before they are used. True
  // until it has found them right once: a file that was right is not looked at again. Where there
  // are replicas it is true for ever, and who reads remembers what was right of each.
  virtual bool MustCheck(ExpertId /*id*/) const { return false; }
  // `slot` as it was read. Called on an I/O thread. Throws Error(kCorrupt) when these are not the
  // bytes that were written for the expert. Where there are replicas, one that has the right bytes
  // is looked for first: false when `slot` has got these.
  virtual bool Check(ExpertId /*id*/, std::span<std::byte> /*slot*/) const { return true; }

  // What failed, and what its user can do about it, when a reader could not read a piece of the
  // expert's extents for that reason: for a message.
  virtual std::string FailedRead(ExpertId id, const Extent& piece, const std::string& why) const;
};

}  // namespace moesaic
