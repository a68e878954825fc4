// MemorySize: how much memory a part may have, as people write it: a size ("8GiB"), a share of
// something ("25%"), or "auto", which leaves it to the program. What a share is of, and what "auto"
// comes to, is known to who uses it.
//
// Plain value. It keeps its spelling, so that messages and printed settings say what was written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moesaic {

class MemorySize {
 public:
  MemorySize() = default;  // auto
  // From text as settings have it, so that code writes `options.kv_memory = "8MiB"`. Throws
  // Error(kInvalidArgument).
  // NOLINTNEXTLINE(google-explicit-constructor)
  MemorySize(const char* text) : MemorySize(Parse(text, "memory size")) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  MemorySize(const std::string& text) : MemorySize(Parse(text, "memory size")) {}

  // `what` names the flag or key in the message. Throws Error(kInvalidArgument).
  static MemorySize Parse(std::string_view text, std::string_view what);

  bool is_auto() const { return kind_ == Kind::kAuto; }
  bool is_share() const { return kind_ == Kind::kShare; }
  bool is_all() const { return is_share() && percent_ == 100; }
  const std::string& text() const { return text_; }

  // The size, or the share of `whole_bytes`, rounded down. CHECKs that it is not auto.
  uint64_t BytesOf(uint64_t whole_bytes) const;

  // As they are written: "50%" of 8 GiB differs from "4GiB".
  friend bool operator==(const MemorySize& a, const MemorySize& b) { return a.text_ == b.text_; }

 private:
  enum class Kind { kAuto, kBytes, kShare };
  Kind kind_ = Kind::kAuto;
  uint64_t bytes_ = 0;
  double percent_ = 0;
  std::string text_ = "auto";
};

}  // namespace moesaic
