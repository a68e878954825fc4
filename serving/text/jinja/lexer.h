// The lexer of chat templates: Jinja's delimiters with trim_blocks and lstrip_blocks on and
// keep_trailing_newline off, which is how Hugging Face compiles them. A pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serving/text/jinja/value.h"

namespace moesaic::jinja {

enum class TokenType {
  kData,           // template text
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,  // unescaped
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type;
  int line;  // from 1
  std::string text;
  Integer integer = 0;
  double number = 0;

  bool Is(TokenType wanted, std::string_view wanted_text) const {
    return type == wanted && text == wanted_text;
  }
};

// A fault of the template's syntax, with its line.
struct SyntaxFailure {
  int line;
  std::string message;
};

// The last token is kEnd. Throws SyntaxFailure.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace moesaic::jinja
