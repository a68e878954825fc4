// The binary routing trace reader. Checksums would stop the fuzzer at the door: those of the header
// and of the blocks are set right first.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "tracer/binary_trace.h"
#include "tracer/routing_trace_json.h"
#include "tracer/trace_format.h"

namespace moesaic {
namespace {

void Put(std::vector<std::byte>& bytes, size_t at, uint64_t value) {
  for (size_t i = 0; i < 8; ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
}

void SetChecksums(std::vector<std::byte>& bytes) {
  if (bytes.size() < 24) return;
  const uint64_t json_bytes = ByteUnpacker(std::span(bytes).subspan(12)).Fixed(4);
  if (json_bytes > bytes.size() - 24) return;
  size_t at = 16 + json_bytes;
  Put(bytes, at, Hash64(std::span<const std::byte>(bytes).first(at)));
  for (at += 8; at + kBlockHeaderBytes <= bytes.size();) {
    const uint64_t payload_bytes = ByteUnpacker(std::span(bytes).subspan(at + 4)).Fixed(4);
    if (payload_bytes > bytes.size() - at - kBlockHeaderBytes) return;
    const std::span<const std::byte> payload =
        std::span<const std::byte>(bytes).subspan(at + kBlockHeaderBytes, payload_bytes);
    Put(bytes, at + 8, Hash64(payload));
    at += kBlockHeaderBytes + payload_bytes;
  }
}

}  // namespace
}  // namespace moesaic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moesaic;
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size));
  std::vector<std::byte> bytes(input.begin(), input.end());
  SetChecksums(bytes);
  try {
    const RoutingTrace trace = ParseBinaryTrace(bytes, "fuzz");
    for (const TraceSequence& sequence : trace.sequences) FormatTraceSequence(trace, sequence);
  } catch (const Error&) {
  }
  return 0;
}
