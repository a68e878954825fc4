// StateSection: something learned that outlives the process, as one named part of a state file
// (state_checkpoint.h). The collection of EAMs is one, a predictor's weights another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace moesaic {

// Thread contract: called on the thread that owns what is learned, or any (any_thread).
class StateSection {
 public:
  virtual ~StateSection() = default;

  // Names the section in the file; constant. Lower case, "eam-collection".
  virtual std::string_view name() const = 0;
  // Of the bytes that Save writes.
  virtual uint32_t version() const = 0;
  // Save and Load may be called by any thread; so it is not copied while the owner of the others
  // waits.
  virtual bool any_thread() const { return false; }
  // Opaque to the file; StateFields is a convenient form.
  virtual std::vector<std::byte> Save() const = 0;
  // Takes over what Save of the given version wrote. On an Error (kCorrupt, kUnsupported: a version
  // or a shape that does not fit) everything stays as it was.
  virtual void Load(uint32_t version, std::span<const std::byte> bytes) = 0;
};

}  // namespace moesaic
