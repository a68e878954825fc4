#include "serving/grammar/held_grammar.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

// A match grows with its output; it takes this much at a time, so that few tokens ask.
constexpr uint64_t kPieceBytes = uint64_t{64} << 10;

class HeldMatch final : public GrammarMatch {
 public:
  HeldMatch(std::unique_ptr<GrammarMatch> match, uint64_t mask_bytes,
            std::shared_ptr<GrammarMemory> memory)
      : match_(std::move(match)),
        mask_bytes_(mask_bytes),
        limit_bytes_(memory->limit_bytes()),
        part_(std::move(memory)) {
    Count(0);
  }

  void Fill(std::span<int32_t> words) override { match_->Fill(words); }
  bool Accept(int32_t token) override {
    const bool fits = match_->Accept(token);
    Count(kPieceBytes);
    return fits;
  }
  bool AcceptText(std::string_view text) override {
    const bool fits = match_->AcceptText(text);
    Count(kPieceBytes);
    return fits;
  }
  bool complete() const override { return match_->complete(); }
  bool ended() const override { return match_->ended(); }
  size_t bytes() const override { return match_->bytes(); }

 private:
  void Count(uint64_t piece_bytes) {
    const uint64_t bytes = mask_bytes_ + match_->bytes();
    if (bytes <= part_.bytes()) return;
    const uint64_t missing = bytes - part_.bytes();
    if (part_.TakeEvicting(std::max(missing, piece_bytes)) || part_.TakeEvicting(missing)) return;
    Fail(ErrorKind::kResourceExhausted,
         "the memory for structured output ({}; --grammar-memory) is taken by other requests",
         FormatBytes(limit_bytes_));
  }

  const std::unique_ptr<GrammarMatch> match_;
  const uint64_t mask_bytes_;
  const uint64_t limit_bytes_;
  GrammarMemory::Part part_;
};

class HeldGrammar final : public Grammar {
 public:
  HeldGrammar(std::shared_ptr<const Grammar> grammar, std::shared_ptr<GrammarMemory> memory,
              GrammarMemory::Part part)
      : part_(std::move(part)), memory_(std::move(memory)), grammar_(std::move(grammar)) {}

  std::unique_ptr<GrammarMatch> Start() const override {
    const auto mask_bytes =
        (static_cast<uint64_t>(grammar_->vocab_size()) + 31) / 32 * sizeof(int32_t);
    return std::make_unique<HeldMatch>(grammar_->Start(), mask_bytes, memory_);
  }
  size_t bytes() const override { return grammar_->bytes(); }
  int64_t vocab_size() const override { return grammar_->vocab_size(); }
  std::span<const int32_t> end_tokens() const override { return grammar_->end_tokens(); }

 private:
  const GrammarMemory::Part part_;
  const std::shared_ptr<GrammarMemory> memory_;   // shared with matches
  const std::shared_ptr<const Grammar> grammar_;  // the backend's; freed before its part
};

}  // namespace

std::shared_ptr<const Grammar> HoldGrammar(std::shared_ptr<const Grammar> grammar,
                                           std::shared_ptr<GrammarMemory> memory,
                                           GrammarMemory::Part part) {
  return std::make_shared<HeldGrammar>(std::move(grammar), std::move(memory), std::move(part));
}

}  // namespace moesaic
