// KernelLaunch: the launch of a kernel with its arguments, as Stream::Launch takes it: a callable
// that is kept by value, because an emulated device runs it when its stream comes to it. It never
// allocates: what it holds is plain data of a limited size.
//
// Thread contract: a value.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

#include "core/device/launch_result.h"

struct CUstream_st;

namespace moesaic {

class KernelLaunch {
 public:
  static constexpr size_t kBytes = 320;  // of the arguments of the largest kernel, and some more

  // F: LaunchResult(CUstream_st*). The handle is the CUDA stream; null on an emulated device.
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, KernelLaunch>>>
  KernelLaunch(const F& launch)  // NOLINT: implicit on purpose
      : call_([](const std::byte* memory, CUstream_st* stream) -> LaunchResult {
          return (*std::launder(reinterpret_cast<const F*>(memory)))(stream);
        }) {
    static_assert(std::is_trivially_copyable_v<F> && std::is_trivially_destructible_v<F>);
    static_assert(sizeof(F) <= kBytes && alignof(F) <= alignof(std::max_align_t));
    new (memory_) F(launch);
  }

  LaunchResult operator()(CUstream_st* stream) const { return call_(memory_, stream); }

 private:
  alignas(std::max_align_t) std::byte memory_[kBytes] = {};
  LaunchResult (*call_)(const std::byte* memory, CUstream_st* stream);
};

}  // namespace moesaic
