// Sizes and rates as people write them: "5MiB", "2.5 GB", "25%".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moesaic {

// "18.9 MiB", "512 B".
std::string FormatBytes(uint64_t bytes);
std::string FormatRate(double bytes_per_s);  // "12.3 GB/s"
std::string FormatCount(double count);       // "11.06 M"

// A byte count with an optional unit: B, K/KB/KiB, M.., G.., T.. (KB is 1000, K and KiB are 1024; a
// bare number is bytes; a fraction is allowed). `what` names the flag or key in the error message.
// Throws Error(kInvalidArgument).
uint64_t ParseBytes(std::string_view text, std::string_view what);

// A byte count as ParseBytes reads it, as short as it can be exactly: "16MiB", "1500", "0".
std::string SizeText(uint64_t bytes);

// The number of a percentage from 0% to 100%: "25%", "12.5%". Throws as ParseBytes.
double ParsePercent(std::string_view text, std::string_view what);

// a * b and a + b for sizes read from files: throw Error(kCorrupt) with `what` when they overflow.
uint64_t CheckedMul(uint64_t a, uint64_t b, std::string_view what);
uint64_t CheckedAdd(uint64_t a, uint64_t b, std::string_view what);

// Rounds up to a multiple; `multiple` > 0.
constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace moesaic
