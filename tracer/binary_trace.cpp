#include "tracer/binary_trace.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "tracer/trace_format.h"
#include "tracer/trace_writer.h"

namespace moesaic {
namespace {

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  RoutingTrace Parse() {
    ParseHeader();
    while (at_ < bytes_.size()) {
      if (!ParseBlock()) {
        CheckLast();
        trace_.lost_bytes = bytes_.size() - at_;
        break;
      }
    }
    return std::move(trace_);
  }

 private:
  [[noreturn]] void FailAt(size_t offset, const char* what) const {
    Fail(ErrorKind::kCorrupt, "{}: at byte {}: {}", name_, offset, what);
  }

  void ParseHeader() {
    ByteUnpacker start(bytes_.first(std::min<size_t>(bytes_.size(), 16)));
    for (const char c : kTraceMagic) {
      if (start.Byte() != static_cast<uint8_t>(c)) FailAt(0, "not a routing trace");
    }
    const uint64_t version = start.Fixed(4);
    const uint64_t json_bytes = start.Fixed(4);
    if (!start.ok()) FailAt(0, "the header is cut");
    if (version != kTraceVersion) {
      Fail(ErrorKind::kUnsupported, "{}: has version {}, this program reads {}", name_, version,
           kTraceVersion);
    }
    if (json_bytes + 8 > bytes_.size() - 16) FailAt(16, "the header is cut");
    const size_t end = 16 + json_bytes;
    if (ByteUnpacker(bytes_.subspan(end, 8)).Fixed(8) != Hash64(bytes_.first(end))) {
      FailAt(end, "the header's checksum is wrong");
    }
    trace_.header =
        ParseTraceHeader({reinterpret_cast<const char*>(bytes_.data()) + 16, json_bytes}, name_);
    per_token_ = trace_.header.experts_per_token();
    at_ = end + 8;
  }

  // False when the file's end, from here on, is what a killed recorder or a power cut leaves.
  bool ParseBlock() {
    const std::span<const std::byte> rest = bytes_.subspan(at_);
    if (rest.size() < kBlockHeaderBytes) return false;
    ByteUnpacker head(rest);
    const uint64_t magic = head.Fixed(4);
    const uint64_t payload_bytes = head.Fixed(4);
    const uint64_t hash = head.Fixed(8);
    if (magic != kBlockMagic) {
      const bool zeros =
          std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; });
      if (zeros) return false;
      FailAt(at_, "a block does not begin where one should");
    }
    if (payload_bytes > rest.size() - kBlockHeaderBytes) return false;
    const std::span<const std::byte> payload = rest.subspan(kBlockHeaderBytes, payload_bytes);
    const size_t end = at_ + kBlockHeaderBytes + payload_bytes;
    if (Hash64(payload) != hash) {
      if (end == bytes_.size()) return false;
      FailAt(at_, "a block's checksum is wrong");
    }
    ByteUnpacker records(payload);
    while (!records.done()) {
      ParseRecord(records);
      if (!records.ok()) FailAt(at_, "a record does not end in its block");
    }
    at_ = end;
    return true;
  }

  // A damaged block may claim to reach beyond the end of the file; whole ones behind it show that
  // it is not the last.
  void CheckLast() const {
    for (size_t at = at_ + 1; at + kBlockHeaderBytes < bytes_.size(); ++at) {
      if (bytes_[at] != std::byte{kBlockMagic & 0xff}) continue;
      ByteUnpacker head(bytes_.subspan(at));
      if (head.Fixed(4) != kBlockMagic) continue;
      const uint64_t payload_bytes = head.Fixed(4);
      const uint64_t hash = head.Fixed(8);
      const std::span<const std::byte> rest = bytes_.subspan(at + kBlockHeaderBytes);
      if (payload_bytes > 0 && payload_bytes <= rest.size() &&
          Hash64(rest.first(payload_bytes)) == hash) {
        FailAt(at_, "a block is damaged, but whole ones follow");
      }
    }
  }

  void ParseRecord(ByteUnpacker& in) {
    switch (static_cast<TraceRecord>(in.Byte())) {
      case TraceRecord::kSequence: {
        TraceSequence sequence;
        sequence.id = in.Text();
        sequence.domain = in.Text();
        sequence.extra = in.Text();
        sequence.first_pos = static_cast<int64_t>(in.Varint()) - 1;
        trace_.sequences.push_back(std::move(sequence));
        return;
      }
      case TraceRecord::kTokens:
        ParseTokens(in);
        return;
      case TraceRecord::kText: {
        const uint64_t id = in.Varint();
        const std::string_view text = in.Text();
        if (id > static_cast<uint64_t>(std::numeric_limits<int32_t>::max()) ||
            (in.ok() && !trace_.token_texts.Restore(static_cast<int32_t>(id), text))) {
          FailAt(at_, "a token number stands for two texts");
        }
        return;
      }
    }
    FailAt(at_, "an unknown record");
  }

  void ParseTokens(ByteUnpacker& in) {
    const uint64_t number = in.Varint();
    const uint64_t tokens = in.Varint();
    const uint8_t flags = in.Byte();
    if (!in.ok() || number >= trace_.sequences.size()) FailAt(at_, "tokens of no sequence");
    TraceSequence& sequence = trace_.sequences[number];
    const auto before = static_cast<uint64_t>(trace_.tokens(sequence));
    const bool ids = (flags & kWithTokenIds) != 0;
    const bool weights = (flags & kWithWeights) != 0;
    if (before > 0 && (ids == sequence.token_ids.empty() || weights == sequence.weights.empty())) {
      FailAt(at_, "only some tokens of a sequence have numbers or weights");
    }
    if (ids) {
      const int bits = in.Byte();
      if (bits < 1 || bits > 31) FailAt(at_, "token numbers of no width");
      if (!in.HasRun(tokens, bits)) return;
      for (uint64_t i = 0; i < tokens; ++i) {
        sequence.token_ids.push_back(static_cast<int32_t>(in.Bits(bits)));
      }
      in.EndRun();
    }
    // Bounded first, so that the product below cannot overflow.
    if (!in.HasRun(tokens, 1)) return;
    const uint64_t values = tokens * per_token_;
    const int expert_bits = ExpertBits(trace_.header.num_experts);
    if (!in.HasRun(values, expert_bits)) return;
    for (uint64_t i = 0; i < values; ++i) {
      const uint32_t expert = in.Bits(expert_bits);
      if (expert >= static_cast<uint32_t>(trace_.header.num_experts)) {
        FailAt(at_, "an expert's number is too large");
      }
      sequence.experts.push_back(static_cast<uint16_t>(expert));
    }
    in.EndRun();
    if (weights) ParseWeights(in, values, sequence);
    if ((flags & kPrefillToken) != 0 && trace_.header.phase == "mixed") {
      if (static_cast<uint64_t>(sequence.prefill_tokens) != before) {
        FailAt(at_, "a prompt's tokens follow those of an answer");
      }
      sequence.prefill_tokens += static_cast<int64_t>(tokens);
    }
  }

  void ParseWeights(ByteUnpacker& in, uint64_t values, TraceSequence& sequence) {
    const int bits = trace_.header.weight_bits;
    const double scale = trace_.header.weight_scale;
    if (bits < 1 || scale <= 0) FailAt(at_, "weights in a trace without a scale for them");
    if (!in.HasRun(values, bits)) return;
    for (uint64_t i = 0; i < values; ++i) {
      sequence.weights.push_back(static_cast<float>(static_cast<double>(in.Bits(bits)) / scale));
    }
    in.EndRun();
  }

  std::span<const std::byte> bytes_;
  std::string_view name_;
  size_t at_ = 0;
  size_t per_token_ = 0;
  RoutingTrace trace_;
};

// Bits for the largest weight of the trace in steps of 1 / weight_scale.
int WeightBits(const RoutingTrace& trace) {
  double largest = 1;
  for (const TraceSequence& sequence : trace.sequences) {
    for (const float weight : sequence.weights) {
      largest =
          std::max(largest, std::round(static_cast<double>(weight) * trace.header.weight_scale));
    }
  }
  return std::bit_width(static_cast<uint32_t>(std::min(largest, 4294967295.0)));
}

}  // namespace

bool IsBinaryTrace(const std::filesystem::path& path) {
  try {
    std::array<std::byte, kTraceMagic.size()> start;
    return File(path).ReadAt(0, start) == start.size() &&
           std::equal(start.begin(), start.end(), std::as_bytes(std::span(kTraceMagic)).begin());
  } catch (const Error&) {
    return false;
  }
}

RoutingTrace ParseBinaryTrace(std::span<const std::byte> bytes, std::string_view name) {
  return Parser(bytes, name).Parse();
}

RoutingTrace ReadBinaryTrace(const std::filesystem::path& path) {
  const File file(path);
  std::vector<std::byte> bytes(file.size_bytes());
  bytes.resize(file.ReadAt(0, bytes));
  return ParseBinaryTrace(bytes, path.string());
}

void WriteBinaryTrace(const std::filesystem::path& path, const RoutingTrace& trace) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  RoutingTraceHeader header = trace.header;
  header.weight_bits = header.weight_scale > 0 ? WeightBits(trace) : 0;
  try {
    RoutingTraceWriter writer(temporary, header, {.weights = header.weight_scale > 0});
    for (const auto& [id, text] : trace.token_texts.texts()) writer.TokenText(id, text);
    const auto per_token = header.experts_per_token();
    for (const TraceSequence& s : trace.sequences) {
      const int64_t number = writer.BeginSequence(s.id, s.domain, s.first_pos, s.extra);
      const std::span<const uint16_t> experts = s.experts;
      const std::span<const float> weights = s.weights;
      const std::span<const int32_t> ids = s.token_ids;
      const auto tokens = static_cast<size_t>(trace.tokens(s));
      constexpr size_t kTokensEach = 256;  // so that blocks stay small
      const bool all_prefill = header.phase == "prefill";
      const size_t prefill = all_prefill ? tokens : static_cast<size_t>(s.prefill_tokens);
      for (size_t first = 0, count = 0; first < tokens; first += count) {
        count = std::min(kTokensEach, (first < prefill ? prefill : tokens) - first);
        writer.Append(
            number, first < prefill, experts.subspan(first * per_token, count * per_token),
            weights.empty() ? weights : weights.subspan(first * per_token, count * per_token),
            ids.empty() ? ids : ids.subspan(first, count));
      }
    }
    writer.Close();
    std::filesystem::rename(temporary, path);
  } catch (const std::filesystem::filesystem_error& error) {
    std::filesystem::remove(temporary, ignored);
    Fail(ErrorKind::kIo, "{}: cannot rename {} to it: {}", path.string(), temporary.string(),
         error.code().message());
  } catch (const Error&) {
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

}  // namespace moesaic
