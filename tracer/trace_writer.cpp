#include "tracer/trace_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "tracer/binary_trace.h"
#include "tracer/routing_trace_json.h"
#include "tracer/trace_format.h"

namespace moesaic {
namespace {

constexpr double kRecordedScale = 16384;
constexpr int kRecordedBits = 16;

}  // namespace

RoutingTraceWriter::RoutingTraceWriter(std::filesystem::path path, RoutingTraceHeader header,
                                       TraceWriterOptions options)
    : path_(std::move(path)), header_(std::move(header)), options_(options) {
  CHECK_GT(header_.num_layers, 0);
  CHECK_GT(header_.num_experts, 0);
  CHECK_LE(header_.num_experts, 65536);
  CHECK_GT(header_.top_k, 0);
  if (!options_.weights) {
    header_.weight_scale = 0;
  } else if (header_.weight_scale <= 0) {
    header_.weight_scale = kRecordedScale;
  }
  header_.weight_bits =
      header_.weight_scale > 0
          ? std::clamp(header_.weight_bits > 0 ? header_.weight_bits : kRecordedBits, 1, 32)
          : 0;
  Open();
  const size_t step_values =
      static_cast<size_t>(options_.max_step_rows) * header_.experts_per_token();
  experts_.reserve(step_values);
  weights_.reserve(header_.weight_scale > 0 ? step_values : 0);
  const size_t value_bits =
      static_cast<size_t>(ExpertBits(header_.num_experts) + header_.weight_bits);
  block_.reserve(kBlockHeaderBytes + options_.block_bytes + step_values * value_bits / 8 +
                 static_cast<size_t>(options_.max_step_rows) * 64 + 4096);
  block_.resize(kBlockHeaderBytes);
}

RoutingTraceWriter::~RoutingTraceWriter() {
  try {
    Close();
  } catch (const Error&) {
  }
}

void RoutingTraceWriter::Open() {
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    Fail(ErrorKind::kIo, "{}: cannot create it: {}", path_.string(), ErrnoMessage(errno));
  }
  try {
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      Fail(ErrorKind::kUnavailable, "{}: another process is recording into it", path_.string());
    }
    const off_t bytes = lseek(fd_, 0, SEEK_END);
    if (bytes > 0) {
      if (!IsBinaryTrace(path_)) {
        Fail(ErrorKind::kInvalidArgument, "{}: exists and is not a binary routing trace",
             path_.string());
      }
      const RoutingTrace existing = ReadBinaryTrace(path_);
      const std::string difference = ShapeDifference(existing.header, header_);
      if (!difference.empty()) {
        Fail(ErrorKind::kInvalidArgument, "{}: holds a trace of another shape ({})", path_.string(),
             difference);
      }
      header_ = existing.header;
      num_sequences_ = static_cast<int64_t>(existing.sequences.size());
      const off_t whole = bytes - static_cast<off_t>(existing.lost_bytes);
      if (ftruncate(fd_, whole) != 0 || lseek(fd_, whole, SEEK_SET) != whole) {
        Fail(ErrorKind::kIo, "{}: cannot cut its damaged end: {}", path_.string(),
             ErrnoMessage(errno));
      }
      return;
    }
    const std::string json = FormatTraceHeader(header_);
    std::vector<std::byte> start;
    BytePacker packer(start);
    const auto magic = std::as_bytes(std::span(kTraceMagic));
    start.insert(start.end(), magic.begin(), magic.end());
    packer.Fixed(kTraceVersion, 4);
    packer.Fixed(json.size(), 4);
    const auto text = std::as_bytes(std::span(json));
    start.insert(start.end(), text.begin(), text.end());
    packer.Fixed(Hash64(start), 8);
    WriteAll(start);
  } catch (...) {
    close(std::exchange(fd_, -1));
    throw;
  }
}

int64_t RoutingTraceWriter::BeginSequence(std::string_view id, std::string_view domain,
                                          int64_t first_pos, std::string_view extra) {
  BytePacker packer(block_);
  packer.Byte(static_cast<uint8_t>(TraceRecord::kSequence));
  packer.Text(id);
  packer.Text(domain);
  packer.Text(extra);
  packer.Varint(static_cast<uint64_t>(first_pos + 1));
  FinishRecord();
  return num_sequences_++;
}

void RoutingTraceWriter::EndSequence() { Flush(); }

void RoutingTraceWriter::TokenText(int32_t id, std::string_view text) {
  BytePacker packer(block_);
  packer.Byte(static_cast<uint8_t>(TraceRecord::kText));
  packer.Varint(static_cast<uint64_t>(id));
  packer.Text(text);
  FinishRecord();
}

void RoutingTraceWriter::BeginStep(int64_t rows) {
  step_rows_ = rows;
  const size_t values = static_cast<size_t>(rows) * header_.experts_per_token();
  // Layers that are not observed have expert 0 with weight 0.
  experts_.assign(values, 0);
  if (header_.weight_scale > 0) weights_.assign(values, 0);
}

void RoutingTraceWriter::Observe(int32_t layer, const Routing& routing) {
  CHECK_GE(layer, 0);
  CHECK_LT(layer, header_.num_layers);
  CHECK_EQ(routing.top_k, header_.top_k);
  CHECK_EQ(routing.rows(), step_rows_);
  const auto k = static_cast<size_t>(header_.top_k);
  const size_t per_token = header_.experts_per_token();
  for (size_t row = 0; row < static_cast<size_t>(step_rows_); ++row) {
    const size_t to = row * per_token + static_cast<size_t>(layer) * k;
    for (size_t slot = 0; slot < k; ++slot) {
      experts_[to + slot] = static_cast<uint16_t>(routing.experts[row * k + slot]);
    }
    if (header_.weight_scale > 0) {
      std::copy_n(routing.weights.begin() + static_cast<ptrdiff_t>(row * k), k,
                  weights_.begin() + static_cast<ptrdiff_t>(to));
    }
  }
}

void RoutingTraceWriter::EndStep(std::span<const TraceStepSlice> slices) {
  const size_t per_token = header_.experts_per_token();
  for (const TraceStepSlice& slice : slices) {
    CHECK_LE(slice.first_row + slice.num_rows, step_rows_);
    const size_t first = static_cast<size_t>(slice.first_row) * per_token;
    const size_t count = static_cast<size_t>(slice.num_rows) * per_token;
    Append(slice.sequence, slice.prefill, std::span(experts_).subspan(first, count),
           header_.weight_scale > 0 ? std::span<const float>(weights_).subspan(first, count)
                                    : std::span<const float>(),
           slice.tokens);
  }
}

void RoutingTraceWriter::Append(int64_t sequence, bool prefill, std::span<const uint16_t> experts,
                                std::span<const float> weights,
                                std::span<const int32_t> token_ids) {
  CHECK_LT(sequence, num_sequences_);
  const size_t tokens = experts.size() / header_.experts_per_token();
  if (tokens == 0) return;
  CHECK(token_ids.empty() || token_ids.size() == tokens);
  CHECK(weights.empty() || weights.size() == experts.size());
  BytePacker packer(block_);
  packer.Byte(static_cast<uint8_t>(TraceRecord::kTokens));
  packer.Varint(static_cast<uint64_t>(sequence));
  packer.Varint(tokens);
  packer.Byte(static_cast<uint8_t>((token_ids.empty() ? 0 : kWithTokenIds) |
                                   (weights.empty() ? 0 : kWithWeights) |
                                   (prefill ? kPrefillToken : 0)));
  if (!token_ids.empty()) {
    uint32_t all = 1;
    for (const int32_t id : token_ids) all |= static_cast<uint32_t>(id);
    const int bits = std::bit_width(all);
    packer.Byte(static_cast<uint8_t>(bits));
    for (const int32_t id : token_ids) packer.Bits(static_cast<uint32_t>(id), bits);
    packer.EndRun();
  }
  const int expert_bits = ExpertBits(header_.num_experts);
  for (const uint16_t expert : experts) packer.Bits(expert, expert_bits);
  packer.EndRun();
  if (!weights.empty()) {
    const double largest = static_cast<double>((uint64_t{1} << header_.weight_bits) - 1);
    for (const float weight : weights) {
      // A NaN weight fails both comparisons of max and min, and becomes 0.
      const double steps =
          std::min(std::max(0.0, static_cast<double>(weight) * header_.weight_scale), largest);
      packer.Bits(static_cast<uint32_t>(std::llround(steps)), header_.weight_bits);
    }
    packer.EndRun();
  }
  FinishRecord();
}

void RoutingTraceWriter::FinishRecord() {
  if (block_.size() >= kBlockHeaderBytes + options_.block_bytes) Flush();
}

void RoutingTraceWriter::Flush() {
  if (fd_ < 0 || block_.size() <= kBlockHeaderBytes) return;
  const std::span<const std::byte> payload = std::span(block_).subspan(kBlockHeaderBytes);
  const uint64_t hash = Hash64(payload);
  const auto put = [&](size_t at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
      block_[at + static_cast<size_t>(i)] = static_cast<std::byte>(value >> (8 * i));
    }
  };
  put(0, kBlockMagic, 4);
  put(4, payload.size(), 4);
  put(8, hash, 8);
  WriteAll(block_);
  block_.resize(kBlockHeaderBytes);
}

void RoutingTraceWriter::WriteAll(std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = write(fd_, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      Fail(ErrorKind::kIo, "{}: cannot write the trace: {}", path_.string(), ErrnoMessage(errno));
    }
    done += static_cast<size_t>(n);
  }
  written_bytes_ += bytes.size();
}

void RoutingTraceWriter::Close() {
  if (fd_ < 0) return;
  const int fd = fd_;
  try {
    Flush();
  } catch (const Error&) {
    close(std::exchange(fd_, -1));
    throw;
  }
  fd_ = -1;
  if (close(fd) != 0) {
    Fail(ErrorKind::kIo, "{}: cannot close the trace: {}", path_.string(), ErrnoMessage(errno));
  }
}

}  // namespace moesaic
