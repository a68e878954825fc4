// AlignedBuffer: owned memory whose start is aligned (a page by default, so that O_DIRECT reads can
// land in it) and which asks for huge pages when it is large. Move-only; not zeroed unless asked
// for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace moesaic {

// Has the kernel give the memory of these bytes now, not when they are first written: a fresh huge
// page may take 2 ms in a virtual machine whose host has taken it back. Their contents stay. Best
// effort: false when the kernel does not. Any thread.
bool PopulatePages(std::byte* begin, size_t bytes);

class AlignedBuffer {
 public:
  static constexpr size_t kPageBytes = 4096;
  static constexpr size_t kHugePageBytes = size_t{2} << 20;

  AlignedBuffer() = default;
  // Throws Error(kResourceExhausted) when the memory cannot be had.
  explicit AlignedBuffer(size_t bytes, size_t alignment = kPageBytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }
  std::span<std::byte> span() { return {data_, bytes_}; }
  void Zero();
  // PopulatePages of a part.
  bool Populate(size_t begin, size_t bytes);
  // Gives the memory of these bytes, and of those behind them up to the end of their last huge
  // page, back to the kernel: whole pages of the kind that the buffer asked for. What was there is
  // lost; written again, they take memory again. Best effort. Any thread.
  void GiveBack(size_t begin, size_t bytes);

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace moesaic
