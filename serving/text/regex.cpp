#include "serving/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <new>
#include <utility>

#include "core/base/error.h"
#include "serving/text/regex_syntax.h"

namespace moesaic {
namespace {

// Limits of one search. The match limit is PCRE2's own default; a tokenizer's pattern needs a few
// hundred steps a match, and 10 million take about a tenth of a second. The stack is for patterns
// that repeat groups; the common ones use none of it.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr size_t kJitStackStartBytes = 32 * 1024;
constexpr size_t kJitStackMaxBytes = 16 * 1024 * 1024;
constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr size_t kMaxPatternBytes = 32 * 1024;

std::string Pcre2Message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return std::string(reinterpret_cast<const char*>(buffer.data()));
}

}  // namespace

struct RegexScratch::State {
  State() {
    match_data = pcre2_match_data_create(1, nullptr);
    context = pcre2_match_context_create(nullptr);
    jit_stack = pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr);
    if (match_data == nullptr || context == nullptr) {
      Free();
      throw std::bad_alloc();
    }
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    // Null where PCRE2 was built without JIT; matching then falls back to the interpreter.
    if (jit_stack != nullptr) pcre2_jit_stack_assign(context, nullptr, jit_stack);
  }
  ~State() { Free(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void Free() {
    if (jit_stack != nullptr) pcre2_jit_stack_free(jit_stack);
    if (context != nullptr) pcre2_match_context_free(context);
    if (match_data != nullptr) pcre2_match_data_free(match_data);
  }

  pcre2_match_data* match_data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* jit_stack = nullptr;
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  ~Code() {
    if (code != nullptr) pcre2_code_free(code);
  }
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string where;
};

Regex::Regex(std::string_view pattern, std::string where) : code_(std::make_unique<Code>()) {
  code_->where = std::move(where);
  if (pattern.size() > kMaxPatternBytes) {
    Fail(ErrorKind::kCorrupt, "{}: a regular expression of {} bytes, more than {}", code_->where,
         pattern.size(), kMaxPatternBytes);
  }
  const std::string translated = TranslateOnigurumaToPcre2(pattern, code_->where);
  struct ContextDeleter {
    void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  };
  const std::unique_ptr<pcre2_compile_context, ContextDeleter> context(
      pcre2_compile_context_create(nullptr));
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // MULTILINE: in Ruby's syntax ^ and $ always mean the ends of a line.
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, context.get());
  if (code_->code == nullptr) {
    Fail(ErrorKind::kCorrupt, "{}: bad regular expression: {} (at byte {} of \"{}\")", code_->where,
         Pcre2Message(error), offset, translated);
  }
  code_->jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::Search(std::string_view text, size_t start, RegexScratch& scratch, Match* match) const {
  const RegexScratch::State& state = *scratch.state_;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data() == nullptr ? "" : text.data());
  const int result = code_->jit ? pcre2_jit_match(code_->code, subject, text.size(), start, 0,
                                                  state.match_data, state.context)
                                : pcre2_match(code_->code, subject, text.size(), start,
                                              PCRE2_NO_UTF_CHECK, state.match_data, state.context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    Fail(
        ErrorKind::kInvalidArgument,
        "{}: the regular expression fails on a text of {} bytes: {}; the text or the pattern makes "
        "it backtrack too much",
        code_->where, text.size(), Pcre2Message(result));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(state.match_data);
  match->begin = offsets[0];
  match->end = offsets[1];
  return true;
}

size_t Regex::CharacterLength(std::string_view text, size_t pos) {
  size_t end = pos + 1;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  return end - pos;
}

}  // namespace moesaic
