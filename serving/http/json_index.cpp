#include "serving/http/json_index.h"

#include <simdjson.h>

#include <limits>
#include <utility>

#include "core/base/error.h"

namespace moesaic {
namespace {

bool IsJsonSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

struct JsonIndex::Stage {
  std::unique_ptr<simdjson::internal::dom_parser_implementation> parser;
};

JsonIndex::JsonIndex(std::string_view text) : text_(text) {
  if (text.empty()) return;
  // Positions are 32 bits wide; simdjson rounds the capacity up.
  if (text.size() > std::numeric_limits<uint32_t>::max() - 1024) {
    status_ = Status::kTooLong;
    return;
  }
  stage_ = std::make_unique<Stage>();
  // The depth is limited by who reads the tokens.
  simdjson::error_code error =
      simdjson::get_active_implementation()->create_dom_parser_implementation(text.size(), 1,
                                                                              stage_->parser);
  if (error == simdjson::SUCCESS) {
    error = stage_->parser->stage1(reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                                   simdjson::stage1_mode::regular);
  }
  switch (error) {
    case simdjson::SUCCESS:
      tokens_ = {stage_->parser->structural_indexes.get(), stage_->parser->n_structural_indexes};
      break;
    case simdjson::EMPTY:  // white space alone
      break;
    case simdjson::UTF8_ERROR:
      status_ = Status::kNotUtf8;
      break;
    case simdjson::UNESCAPED_CHARS:
    case simdjson::UNCLOSED_STRING:
      status_ = Status::kBadString;
      break;
    case simdjson::MEMALLOC:
      Fail(ErrorKind::kResourceExhausted,
           "no memory for the positions of the tokens in {} bytes of JSON; try again later",
           text.size());
    default:
      Fail(ErrorKind::kInternal, "simdjson ({}) failed: {}",
           simdjson::get_active_implementation()->name(), simdjson::error_message(error));
  }
}

JsonIndex::~JsonIndex() = default;
JsonIndex::JsonIndex(JsonIndex&&) noexcept = default;
JsonIndex& JsonIndex::operator=(JsonIndex&&) noexcept = default;

// Whatever follows a string and is not white space is a token of its own, so the closing quote is
// the last byte before the next token that is none.
bool JsonIndex::StringAt(size_t i, std::string_view& content) const {
  const size_t begin = tokens_[i] + size_t{1};
  size_t end = i + 1 < tokens_.size() ? tokens_[i + 1] : text_.size();
  while (end > begin && IsJsonSpace(text_[end - 1])) --end;
  if (end <= begin || text_[end - 1] != '"') return false;
  content = text_.substr(begin, end - 1 - begin);
  return true;
}

}  // namespace moesaic
