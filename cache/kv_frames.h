// KvFrames: which of a store's blocks (kv_store.h) have a copy in host memory. Bookkeeping over the
// numbers of frames, each of which has room for one block: a plain state machine.
//
// A frame is free, held, or kept: nobody holds it, and its block stays until the frame is needed
// for another one, the least recently released first. Free frames are taken in ascending order as
// long as nothing has come back, and kept ones in the order in which they were released, so that
// blocks that were read one behind the other tend to lie one behind the other, too.
//
// Thread contract: none of its own. No allocation after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace moesaic {

class KvFrames {
 public:
  static constexpr int32_t kNone = -1;

  struct Taken {
    int32_t frame = kNone;
    int32_t left = kNone;  // the slot whose block it had; kNone: it was free
  };

  explicit KvFrames(int64_t frames);

  int64_t frames() const { return static_cast<int64_t>(frames_.size()); }
  // That Take would find: free ones and kept ones.
  int64_t available() const { return available_; }
  int64_t kept() const { return kept_; }  // of these

  // A frame for the block of this slot, which the caller holds; nullopt: all are held.
  std::optional<Taken> Take(int32_t slot);
  void Hold(int32_t frame);     // once more
  void Release(int32_t frame);  // kept, once nobody holds it
  // A frame that nobody holds has no block any more.
  void Drop(int32_t frame);
  int holds(int32_t frame) const { return frames_[static_cast<size_t>(frame)].holds; }
  int32_t slot(int32_t frame) const { return frames_[static_cast<size_t>(frame)].slot; }

 private:
  // Those that nobody holds are a list: the free ones, then the kept ones.
  struct Frame {
    int32_t slot = kNone;  // kNone: free
    int holds = 0;
    int32_t previous = kNone;
    int32_t next = kNone;
  };

  Frame& At(int32_t frame) { return frames_[static_cast<size_t>(frame)]; }
  void Unlink(int32_t frame);
  void Link(int32_t frame, bool front);

  std::vector<Frame> frames_;
  int32_t first_ = kNone;
  int32_t last_ = kNone;
  int64_t available_ = 0;
  int64_t kept_ = 0;
};

}  // namespace moesaic
