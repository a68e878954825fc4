// Parses the text of a chat template. A pure function.
#pragma once

#include <string_view>

#include "serving/text/jinja/ast.h"

namespace moesaic::jinja {

// Throws SyntaxFailure (lexer.h).
Body Parse(std::string_view source);

}  // namespace moesaic::jinja
