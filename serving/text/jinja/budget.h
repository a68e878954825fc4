// Budget: what one rendering may spend. A template that loops or grows without end fails with a
// clear message instead of taking the process with it. Belongs to one rendering, one thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moesaic::jinja {

struct Limits {
  // A step is one evaluated node, one element looked at or 64 bytes copied. Templates of known
  // models use under 100 steps a message, but some look ahead from every tool call, which makes
  // sessions of thousands of calls quadratic.
  uint64_t steps = 50'000'000;
  // Bytes of all values created, freed or not: bounds the memory held, and leaves room for
  // templates that build their text by repeated concatenation.
  uint64_t allocated_bytes = uint64_t{512} << 20;
  size_t output_bytes = size_t{128} << 20;
  // Nested expressions, blocks and macro calls together; bounds the stack.
  int depth = 600;
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  // Both throw RenderFailure when the limit is passed.
  void Charge(uint64_t steps) {
    steps_ += steps;
    if (steps_ > limits_.steps) [[unlikely]]
      FailSteps();
  }
  void ChargeBytes(uint64_t bytes) {
    if (bytes > limits_.allocated_bytes - allocated_bytes_) [[unlikely]]
      FailBytes(bytes);
    allocated_bytes_ += bytes;
    Charge(bytes / 64);
  }
  const Limits& limits() const { return limits_; }

 private:
  [[noreturn]] void FailSteps() const;
  [[noreturn]] void FailBytes(uint64_t bytes) const;

  Limits limits_;
  uint64_t steps_ = 0;
  uint64_t allocated_bytes_ = 0;
};

}  // namespace moesaic::jinja
