#include "cache/kv_frames.h"

#include "core/base/check.h"

namespace moesaic {

KvFrames::KvFrames(int64_t frames) : frames_(static_cast<size_t>(frames)) {
  CHECK_LT(frames, int64_t{1} << 31);
  for (int64_t frame = 0; frame < frames; ++frame) Link(static_cast<int32_t>(frame), false);
}

std::optional<KvFrames::Taken> KvFrames::Take(int32_t slot) {
  CHECK_GE(slot, 0);
  if (first_ == kNone) return std::nullopt;
  const int32_t taken = first_;
  Unlink(taken);
  Frame& frame = At(taken);
  const int32_t left = frame.slot;
  frame.slot = slot;
  frame.holds = 1;
  return Taken{taken, left};
}

void KvFrames::Hold(int32_t frame) {
  CHECK_GE(slot(frame), 0);
  if (At(frame).holds == 0) Unlink(frame);
  ++At(frame).holds;
}

void KvFrames::Release(int32_t frame) {
  CHECK_GT(holds(frame), 0);
  if (--At(frame).holds == 0) Link(frame, false);
}

void KvFrames::Drop(int32_t frame) {
  CHECK_EQ(holds(frame), 0);
  if (slot(frame) == kNone) return;
  Unlink(frame);
  At(frame).slot = kNone;
  Link(frame, true);
}

void KvFrames::Unlink(int32_t frame) {
  Frame& f = At(frame);
  (f.previous == kNone ? first_ : At(f.previous).next) = f.next;
  (f.next == kNone ? last_ : At(f.next).previous) = f.previous;
  f.previous = f.next = kNone;
  --available_;
  if (f.slot != kNone) --kept_;
}

void KvFrames::Link(int32_t frame, bool front) {
  Frame& f = At(frame);
  f.previous = front ? kNone : last_;
  f.next = front ? first_ : kNone;
  (f.previous == kNone ? first_ : At(f.previous).next) = frame;
  (f.next == kNone ? last_ : At(f.next).previous) = frame;
  ++available_;
  if (f.slot != kNone) ++kept_;
}

}  // namespace moesaic
