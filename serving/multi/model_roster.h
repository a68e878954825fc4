// ModelRoster: which of a server's models are loaded, with how much of their memory, and which one
// leaves for another or because nobody has asked for it.
//
// A plain state machine: it loads nothing and takes the time as an argument. Owned and guarded by a
// ModelRegistry.
//
// A model that is unloaded gives its memory back only when the last request that it was answering
// has ended (Gone). Meanwhile it may be loaded once more.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "serving/api/model_state.h"
#include "serving/multi/memory_shares.h"

namespace moesaic {

class ModelRoster {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  struct Rules {
    MemoryNeed need;
    bool pin = false;          // never unloaded for another, nor when idle
    bool may_leave = false;    // for another: those that are loaded on demand
    int64_t idle_ns = kNever;  // without a request for so long it is unloaded
  };
  struct Model {
    Rules rules;
    ModelState state = ModelState::kUnloaded;
    uint64_t bytes = 0;  // that it has while it is loading or loaded
    int64_t used_at_ns = 0;
    int64_t idle_ns = kNever;  // as the last request has it
    std::string why_failed;
    bool loaded() const { return state == ModelState::kResident; }
  };

  ModelRoster(uint64_t memory_bytes, const std::vector<Rules>& rules);

  std::span<const Model> models() const { return models_; }
  uint64_t memory_bytes() const { return memory_bytes_; }
  uint64_t leaving_bytes() const { return leaving_bytes_; }
  uint64_t free_bytes() const;  // neither a model's nor about to be given back

  // What has to happen next for an absent model to be loaded.
  struct Room {
    enum class Kind {
      kThere,     // it can be loaded, with `bytes`
      kUnload,    // `victim` has to be unloaded first
      kWait,      // for memory that is being given back
      kTooLittle  // and nothing that may leave is left
    };
    Kind kind = Kind::kTooLittle;
    uint64_t bytes = 0;
    size_t victim = 0;
  };
  // `busy` [models]: is answering requests. Of those that may leave, one that is idle goes first,
  // then the one that was used longest ago.
  Room RoomFor(size_t model, std::span<const uint8_t> busy) const;

  void BeginLoad(size_t model, uint64_t bytes);
  void Loaded(size_t model, int64_t now_ns);
  // Its memory is free, unless there is something to end first (`leaving`; then Gone).
  void Failed(size_t model, std::string why, bool leaving = false);
  // A loaded one has so much from now on; together they have no more than there is.
  void Resize(size_t model, uint64_t bytes);
  // Its memory is being given back from now on.
  void Unload(size_t model);
  void Gone(uint64_t bytes);

  // A request uses the model. `idle_ns`: how long it stays after that one; nullopt: as its rules
  // say.
  void Use(size_t model, int64_t now_ns, std::optional<int64_t> idle_ns = std::nullopt);
  // When a model has been idle for as long as it may, the first one; kNever: none will.
  int64_t NextIdleNs() const;
  std::optional<size_t> IdleAt(int64_t now_ns) const;

 private:
  int64_t IdleAtNs(const Model& model) const;

  const uint64_t memory_bytes_;
  std::vector<Model> models_;
  uint64_t leaving_bytes_ = 0;
};

}  // namespace moesaic
