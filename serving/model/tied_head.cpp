#include "serving/model/tied_head.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/logging.h"

namespace moesaic {
namespace {

constexpr uint64_t kPieceBytes = 4 << 20;

bool SameBytes(const Checkpoint& checkpoint, const TensorInfo& a, const TensorInfo& b) {
  if (a.dtype != b.dtype || a.shape != b.shape || a.extent.bytes != b.extent.bytes) return false;
  std::vector<std::byte> of_a;
  std::vector<std::byte> of_b;
  const auto read = [&](const TensorInfo& tensor, uint64_t at, uint64_t bytes,
                        std::vector<std::byte>& to) {
    TensorInfo piece = tensor;
    piece.extent.offset += at;
    piece.extent.bytes = bytes;
    to.resize(bytes);
    checkpoint.Read(piece, to);
  };
  // Matrices that differ do so in the first piece.
  for (uint64_t at = 0; at < a.extent.bytes; at += kPieceBytes) {
    const uint64_t bytes = std::min(kPieceBytes, a.extent.bytes - at);
    read(a, at, bytes, of_a);
    read(b, at, bytes, of_b);
    if (std::memcmp(of_a.data(), of_b.data(), bytes) != 0) return false;
  }
  return true;
}

}  // namespace

void UntieOtherHead(const Checkpoint& checkpoint, ModelConfig& config) {
  if (!config.tie_word_embeddings) return;
  const std::string head_name = config.tensors.At(TensorSlot::kHead).name;
  const TensorInfo* const head = checkpoint.Find(head_name);
  const TensorInfo* const embedding =
      checkpoint.Find(config.tensors.At(TensorSlot::kEmbedding).name);
  if (head == nullptr || embedding == nullptr) return;
  if (SameBytes(checkpoint, *head, *embedding)) return;
  config.tie_word_embeddings = false;
  LogInfo("{}: config.json says tie_word_embeddings, but {} differs from the embedding; it is used",
          checkpoint.directory().string(), head_name);
}

}  // namespace moesaic
