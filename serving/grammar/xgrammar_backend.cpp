#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "serving/grammar/grammar_backend.h"
#include "serving/grammar/xgrammar_matcher.h"
#include "serving/grammar/xgrammar_schema.h"

// What xgrammar says while it works, and how it fails. It declares these two in a header of its
// sources for who builds it with XGRAMMAR_LOG_CUSTOMIZE.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

}  // namespace xgrammar

namespace {

constexpr int kWarningLevel = 2;  // XGRAMMAR_LOG_LEVEL_WARNING

// It warns of what it drops; a request that has it dropped is refused.
thread_local std::string first_warning;

}  // namespace

void xgrammar::LogFatalImpl(const std::string& /*file*/, int /*line*/, const std::string& message) {
  throw moesaic::Error(moesaic::ErrorKind::kInvalidArgument, message);
}

void xgrammar::LogMessageImpl(const std::string& /*file*/, int /*line*/, int level,
                              const std::string& message) {
  if (level == kWarningLevel && first_warning.empty()) first_warning = message;
}

namespace moesaic {
namespace {

constexpr int kMaxRecursion = 1000;  // frames of its parsers, on a thread with a stack of 8 MiB
// Between two things of JSON, so that no model writes spaces until its tokens are used up.
constexpr int kMaxWhitespace = 16;

// Of a match, beside what grows with its output (measured: 40,200 bytes of memory before the first
// token with 152,000 tokens, 19,000 of them a set of bits).
constexpr uint64_t kMatchBytes = 24 << 10;
// A text that may be read in ever more ways takes ever more memory, and time with it, on the
// engine's thread. JSON of any kind takes some 400 bytes for a byte, a list of properties 250.
constexpr uint64_t kMostOfByte = 8 << 10;
constexpr uint64_t kMostBeside = 128 << 10;

// xgrammar's exceptions, and of the standard library what it lets through, as Error.
template <typename Work>
auto Guarded(ErrorKind kind, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(kind, error.what());
  } catch (const std::exception& error) {
    throw Error(kind, error.what());
  }
}

class Match final : public GrammarMatch {
 public:
  // `never`: bits of tokens that may not come, whatever the library says; empty: none.
  Match(const xgrammar::CompiledGrammar& grammar, std::shared_ptr<const std::vector<int32_t>> never)
      : matcher_(grammar),
        tokenizer_(grammar.GetTokenizerInfo()),
        never_(std::move(never)),
        fixed_bytes_(kMatchBytes + static_cast<uint64_t>(tokenizer_.GetVocabSize()) / 8) {}

  void Fill(std::span<int32_t> words) override {
    Guarded(ErrorKind::kInternal, [&] {
      auto size = static_cast<int64_t>(words.size());
      DLTensor tensor = {.data = words.data(),
                         .device = {kDLCPU, 0},
                         .ndim = 1,
                         .dtype = xgrammar::GetBitmaskDLType(),
                         .shape = &size,
                         .strides = nullptr,
                         .byte_offset = 0};
      matcher_.FillNextTokenBitmask(&tensor);
    });
    if (never_ == nullptr) return;
    for (size_t i = 0; i < std::min(words.size(), never_->size()); ++i) words[i] &= ~(*never_)[i];
  }
  bool Accept(int32_t token) override {
    const bool fits = Guarded(ErrorKind::kInternal, [&] { return matcher_.AcceptToken(token); });
    const std::vector<std::string>& tokens = tokenizer_.GetDecodedVocab();
    if (fits && static_cast<size_t>(token) < tokens.size()) {
      Count(tokens[static_cast<size_t>(token)].size());
    }
    return fits;
  }
  bool AcceptText(std::string_view text) override {
    const bool fits =
        Guarded(ErrorKind::kInternal, [&] { return matcher_.AcceptString(std::string(text)); });
    if (fits) Count(text.size());
    return fits;
  }
  bool complete() const override { return matcher_.IsCompleted(); }
  bool ended() const override { return matcher_.IsTerminated(); }
  // Vectors grow by doubling: half as much again on average.
  size_t bytes() const override { return fixed_bytes_ + grown_bytes_ * 3 / 2; }

 private:
  void Count(size_t text_bytes) {
    text_bytes_ += text_bytes;
    grown_bytes_ = GrownBytes(matcher_);
    if (grown_bytes_ <= kMostBeside + text_bytes_ * kMostOfByte) return;
    Fail(ErrorKind::kInvalidArgument,
         "the output's grammar is too ambiguous: its first {} bytes can be read in too many ways",
         text_bytes_);
  }

  xgrammar::GrammarMatcher matcher_;
  const xgrammar::TokenizerInfo tokenizer_;
  const std::shared_ptr<const std::vector<int32_t>> never_;  // the grammar's
  const uint64_t fixed_bytes_;
  uint64_t grown_bytes_ = 0;
  uint64_t text_bytes_ = 0;
};

class CompiledGrammar final : public Grammar {
 public:
  CompiledGrammar(xgrammar::CompiledGrammar grammar,
                  std::shared_ptr<const std::vector<int32_t>> never)
      : grammar_(std::move(grammar)),
        never_(std::move(never)),
        bytes_(grammar_.MemorySizeBytes()),
        end_tokens_(grammar_.GetTokenizerInfo().GetStopTokenIds()) {}

  std::unique_ptr<GrammarMatch> Start() const override {
    return Guarded(ErrorKind::kInternal, [&] { return std::make_unique<Match>(grammar_, never_); });
  }
  size_t bytes() const override { return bytes_; }
  int64_t vocab_size() const override { return grammar_.GetTokenizerInfo().GetVocabSize(); }
  std::span<const int32_t> end_tokens() const override { return end_tokens_; }

 private:
  xgrammar::CompiledGrammar grammar_;
  std::shared_ptr<const std::vector<int32_t>> never_;  // shared with matches
  size_t bytes_;
  std::vector<int32_t> end_tokens_;
};

// A literal of xgrammar's EBNF.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
      case '\\':
        quoted += '\\';
        quoted += c;
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\r':
        quoted += "\\r";
        break;
      case '\t':
        quoted += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        } else {
          quoted += c;
        }
    }
  }
  return quoted + '"';
}

xgrammar::Grammar FromTag(const std::string& json, const xgrammar::TokenizerInfo& tokenizer) {
  auto result = xgrammar::Grammar::FromStructuralTag(json, tokenizer);
  if (auto* grammar = std::get_if<xgrammar::Grammar>(&result)) return *grammar;
  const auto& error = std::get<xgrammar::StructuralTagError>(result);
  throw Error(ErrorKind::kInvalidArgument,
              std::visit([](const auto& kind) { return std::string(kind.what()); }, error));
}

xgrammar::Grammar Build(const GrammarPart& part, const xgrammar::TokenizerInfo& tokenizer) {
  switch (part.kind) {
    case GrammarPart::Kind::kText:
      return xgrammar::Grammar::FromEBNF("root ::= " + Quoted(part.text));
    case GrammarPart::Kind::kToken:
      return xgrammar::Grammar::FromEBNF(fmt::format("root ::= Token({})", part.token));
    case GrammarPart::Kind::kJsonSchema:
      return xgrammar::Grammar::FromJSONSchema(SchemaForXgrammar(Json::parse(part.text)).dump(),
                                               true, std::nullopt, std::nullopt, true,
                                               kMaxWhitespace);
    case GrammarPart::Kind::kRegex:
      return xgrammar::Grammar::FromRegex(part.text);
    case GrammarPart::Kind::kEbnf:
      return xgrammar::Grammar::FromEBNF(part.text);
    case GrammarPart::Kind::kStructuralTag:
      break;
  }
  const Json tag = Json::parse(part.text, nullptr, false);
  return FromTag(tag.is_discarded() ? part.text : TagForXgrammar(tag).dump(), tokenizer);
}

// A token of control gets a text that is in none, as no UTF-8 has this byte: a token without any
// could not even be named.
std::vector<std::string> WithControlTokens(std::vector<std::string> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].empty()) tokens[i] = fmt::format("\xff{}", i);
  }
  return tokens;
}

// Whether a structural tag speaks of tokens, which may then be tokens of control.
bool SpeaksOfTokens(const Json& tag) {
  if (tag.is_array()) return std::any_of(tag.begin(), tag.end(), SpeaksOfTokens);
  if (!tag.is_object()) return false;
  const std::string type = tag.value("type", Json()).is_string() ? tag["type"] : "";
  if (type.find("token") != std::string::npos || type == "grammar") return true;
  return std::any_of(tag.begin(), tag.end(), SpeaksOfTokens);
}

// The free text of structural tags is one of bytes to xgrammar, and what stands for a token of
// control (below) is bytes.
bool HasTextOfBytes(const GrammarSpec& spec) {
  for (const std::vector<GrammarPart>& parts : spec.alternatives) {
    for (const GrammarPart& part : parts) {
      if (part.kind == GrammarPart::Kind::kStructuralTag &&
          !SpeaksOfTokens(Json::parse(part.text, nullptr, false))) {
        return true;
      }
    }
  }
  return false;
}

std::shared_ptr<const std::vector<int32_t>> ControlBits(const GrammarVocabulary& vocabulary) {
  auto bits = std::make_shared<std::vector<int32_t>>((vocabulary.tokens.size() + 31) / 32);
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const bool ends = std::find(vocabulary.end_tokens.begin(), vocabulary.end_tokens.end(),
                                static_cast<int32_t>(i)) != vocabulary.end_tokens.end();
    if (!vocabulary.tokens[i].empty() || ends) continue;
    (*bits)[i / 32] |= static_cast<int32_t>(uint32_t{1} << (i % 32));
  }
  return bits;
}

// What the library keeps of a vocabulary: each token's bytes twice (by id, and sorted), where they
// share a beginning, and lists of ids; measured by grammar_bench (BM_Vocabulary).
uint64_t BytesOf(const GrammarVocabulary& vocabulary) {
  constexpr uint64_t kBytesOfToken = 96;
  uint64_t bytes = vocabulary.tokens.size() * kBytesOfToken;
  const std::string none;
  for (const std::string& token : vocabulary.tokens) {
    // More than a string has room for itself.
    if (token.size() > none.capacity()) bytes += 2 * (token.size() + 17);
  }
  return bytes;
}

class Backend final : public GrammarBackend {
 public:
  explicit Backend(GrammarVocabulary vocabulary)
      : bytes_(BytesOf(vocabulary)),
        control_bits_(ControlBits(vocabulary)),
        tokenizer_(WithControlTokens(std::move(vocabulary.tokens)), xgrammar::VocabType::RAW,
                   static_cast<int>(vocabulary.rows), vocabulary.end_tokens),
        // One thread: what it warns of is told on the caller's. The cache is GrammarCompiler's.
        compiler_(tokenizer_, 1, false) {}

  std::shared_ptr<const Grammar> Compile(const GrammarSpec& spec) override {
    first_warning.clear();
    auto compiled = Guarded(ErrorKind::kInvalidArgument, [&] {
      std::vector<xgrammar::Grammar> alternatives;
      for (const std::vector<GrammarPart>& parts : spec.alternatives) {
        std::vector<xgrammar::Grammar> grammars;
        for (const GrammarPart& part : parts) grammars.push_back(Build(part, tokenizer_));
        CHECK(!grammars.empty());
        alternatives.push_back(grammars.size() == 1 ? grammars.front()
                                                    : xgrammar::Grammar::Concat(grammars));
      }
      CHECK(!alternatives.empty());
      return compiler_.CompileGrammar(
          alternatives.size() == 1 ? alternatives.front() : xgrammar::Grammar::Union(alternatives));
    });
    if (!first_warning.empty()) {
      throw Error(ErrorKind::kInvalidArgument, std::exchange(first_warning, {}));
    }
    return std::make_shared<CompiledGrammar>(std::move(compiled),
                                             HasTextOfBytes(spec) ? control_bits_ : nullptr);
  }
  size_t bytes() const override { return bytes_; }

 private:
  const uint64_t bytes_;
  const std::shared_ptr<const std::vector<int32_t>> control_bits_;  // shared with grammars
  xgrammar::TokenizerInfo tokenizer_;
  xgrammar::GrammarCompiler compiler_;
};

}  // namespace

const char* GrammarBackendName() { return "xgrammar"; }

std::unique_ptr<GrammarBackend> MakeGrammarBackend(GrammarVocabulary vocabulary) {
  static std::once_flag once;
  std::call_once(once, [] { xgrammar::SetMaxRecursionDepth(kMaxRecursion); });
  CHECK(vocabulary.rows <= std::numeric_limits<int>::max());
  return Guarded(ErrorKind::kUnsupported,
                 [&] { return std::make_unique<Backend>(std::move(vocabulary)); });
}

}  // namespace moesaic
