// The binary form of a routing trace: what writer and reader share.
//
//   file:    magic "MOETRACE", u32 version, u32 header bytes, header, u64 XXH64 of all before it
//   header:  JSON object: the header line of the JSON Lines form, and weight_bits
//   block:   u32 kBlockMagic, u32 payload bytes, u64 XXH64 of the payload, payload
//   payload: records, none of which spans two blocks:
//     1 sequence: id, domain, extra (texts: varint bytes, then UTF-8), varint first_pos + 1;
//                 sequences are numbered in the order of these records
//     2 tokens:   varint sequence, varint n, u8 flags (kWithTokenIds, kWithWeights,
//                 kPrefillToken), then the ids of the tokens (u8 bits, n of them), then n * layers
//                 * top_k expert ids of expert_bits each, then as many weights of weight_bits each
//     3 text:     varint token id, text: what the id stands for
// Integers are little-endian; varints are base 128, low digits first; runs of equally wide values
// are packed from the low bit on and end on a whole byte. A block is written by one write(2), so
// that a recorder that is killed loses at most the last one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace moesaic {

constexpr std::string_view kTraceMagic = "MOETRACE";
constexpr uint32_t kTraceVersion = 1;
constexpr uint32_t kBlockMagic = 0x4b4c424d;  // "MBLK"
constexpr size_t kBlockHeaderBytes = 16;

enum class TraceRecord : uint8_t { kSequence = 1, kTokens = 2, kText = 3 };

constexpr uint8_t kWithTokenIds = 1;
constexpr uint8_t kWithWeights = 2;
constexpr uint8_t kPrefillToken = 4;

inline int ExpertBits(int32_t num_experts) {
  return num_experts <= 2 ? 1 : std::bit_width(static_cast<uint32_t>(num_experts - 1));
}

// Appends to a vector that the caller has reserved room in.
class BytePacker {
 public:
  explicit BytePacker(std::vector<std::byte>& out) : out_(out) {}
  void Byte(uint8_t value) { out_.push_back(static_cast<std::byte>(value)); }
  void Fixed(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) Byte(static_cast<uint8_t>(value >> (8 * i)));
  }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) Byte(static_cast<uint8_t>(value | 0x80));
    Byte(static_cast<uint8_t>(value));
  }
  void Text(std::string_view text) {
    Varint(text.size());
    const auto bytes = std::as_bytes(std::span(text));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  // Each value has at most `bits` (1 to 32) bits; EndRun pads to a whole byte.
  void Bits(uint32_t value, int bits) {
    pending_ |= uint64_t{value} << pending_bits_;
    for (pending_bits_ += bits; pending_bits_ >= 8; pending_bits_ -= 8, pending_ >>= 8) {
      Byte(static_cast<uint8_t>(pending_));
    }
  }
  void EndRun() {
    if (pending_bits_ > 0) Byte(static_cast<uint8_t>(pending_));
    pending_ = 0;
    pending_bits_ = 0;
  }

 private:
  std::vector<std::byte>& out_;
  uint64_t pending_ = 0;
  int pending_bits_ = 0;
};

// Reads what BytePacker wrote from untrusted bytes: past their end everything is 0 and ok() false.
class ByteUnpacker {
 public:
  explicit ByteUnpacker(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  bool done() const { return at_ == bytes_.size(); }
  size_t left() const { return bytes_.size() - at_; }
  uint8_t Byte() {
    if (at_ == bytes_.size()) {
      ok_ = false;
      return 0;
    }
    return static_cast<uint8_t>(bytes_[at_++]);
  }
  uint64_t Fixed(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= uint64_t{Byte()} << (8 * i);
    return value;
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      const uint8_t byte = Byte();
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  std::string_view Text() {
    const uint64_t bytes = Varint();
    if (bytes > left()) {
      ok_ = false;
      return {};
    }
    const auto* first = reinterpret_cast<const char*>(bytes_.data() + at_);
    at_ += bytes;
    return {first, bytes};
  }
  // Whether `count` values of `bits` bits are there; asked before room is made for them.
  bool HasRun(uint64_t count, int bits) {
    if (count > uint64_t{left()} * 8 / static_cast<uint64_t>(bits)) ok_ = false;
    return ok_;
  }
  uint32_t Bits(int bits) {
    while (pending_bits_ < bits) {
      pending_ |= uint64_t{Byte()} << pending_bits_;
      pending_bits_ += 8;
    }
    const auto value = static_cast<uint32_t>(pending_ & ((uint64_t{1} << bits) - 1));
    pending_ >>= bits;
    pending_bits_ -= bits;
    return value;
  }
  void EndRun() {
    pending_ = 0;
    pending_bits_ = 0;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool ok_ = true;
  uint64_t pending_ = 0;
  int pending_bits_ = 0;
};

}  // namespace moesaic
