// The state file: everything learned about a model's routing, so that a restarted process begins
// where the last one ended. One msgpack value:
//   ["moesaic-state", format version, XXH64 of the body, body]
//   body: binary, {"model": {fingerprint}, "sections": [[name, version, bytes], ...]}
// It is replaced as a whole (core/base/atomic_file.h): a process that is killed at any moment
// leaves the last good one. A state file that cannot be used (corrupt, of another model) is never
// overwritten: it is renamed to FILE.rejected-N before the first one is written. What does not
// begin like a state file is somebody else's (a model's config.json, say), and is left where it is:
// nothing is loaded or written then. An empty file is as none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tracer/model_fingerprint.h"
#include "tracer/state_section.h"

namespace moesaic {

struct StoredSection {
  std::string name;
  uint32_t version = 0;
  std::vector<std::byte> bytes;
};

struct StoredState {
  ModelFingerprint model;
  std::vector<StoredSection> sections;
};

// Untrusted bytes; `name` goes into messages. Throws Error: kCorrupt, kUnsupported (a newer
// format).
StoredState ParseState(std::span<const std::byte> bytes, std::string_view name);
// Takes the state apart while it packs, so that at most two copies of it are in memory.
std::vector<std::byte> PackState(StoredState state);
// Throws also Error(kNotFound, kIo).
StoredState ReadStateFile(const std::filesystem::path& file);
// Whether the file begins like a state file. False when it cannot be read.
bool IsStateFile(const std::filesystem::path& file);
// Whether there is a state file, by its beginning: false where there is none, or an empty file.
// Throws Error(kInvalidArgument) when it is something else, Error(kIo) when that cannot be told.
bool CheckStateFile(const std::filesystem::path& file);

struct StateLoadResult {
  bool found = false;       // there was a file
  int sections_loaded = 0;  // the others begin empty
  // Why the file, or a section of it, was refused; empty: all is well.
  std::vector<std::string> problems;
};

struct StateWriteResult {
  std::filesystem::path aside;  // the name that a refused file was given; empty: there was none
  uint64_t bytes = 0;           // of the file
};

// Saves sections to a file and restores them.
//
// Thread contract: Load and Snapshot are called by the thread that owns what is learned; Write may
// be called by another one meanwhile, but by one at a time.
class StateCheckpoint {
 public:
  // The sections are borrowed; CHECKs that their names differ.
  StateCheckpoint(std::filesystem::path file, ModelFingerprint model,
                  std::vector<StateSection*> sections);

  // Throws as CheckStateFile, and never for what a state file contains. A section that the file
  // lacks, or whose bytes do not fit, stays as it is. Sections of the file that nobody asked for
  // are ignored, and kept by Write.
  StateLoadResult Load();

  // A copy of what was learned, for Write to pack: of the sections that are of this thread alone.
  StoredState Snapshot() const;
  // Adds the other sections. Throws Error(kIo, kUnavailable), and as CheckStateFile; the file is
  // then as it was.
  StateWriteResult Write(StoredState snapshot);
  StateWriteResult Save() { return Write(Snapshot()); }

  const std::filesystem::path& file() const { return file_; }

 private:
  enum class Found { kUnknown, kUsable, kRefused };

  // Reads the file; a problem is added to the result. False: nothing to use.
  bool Read(StoredState& state, StateLoadResult& result) const;
  bool HasSection(std::string_view name) const;
  void CarryOver(StoredState& snapshot);

  std::filesystem::path file_;
  ModelFingerprint model_;
  std::vector<StateSection*> sections_;
  Found found_ = Found::kUnknown;  // what lies at file_ that Write would replace
  bool has_others_ = false;        // sections that nobody asked for
};

}  // namespace moesaic
