// Raise: how the interpreter reports what is wrong with a template or with its use of the input.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "serving/text/jinja/value.h"

namespace moesaic::jinja {

template <typename... Args>
[[noreturn]] void Raise(fmt::format_string<Args...> format, Args&&... args) {
  throw RenderFailure{fmt::format(format, std::forward<Args>(args)...)};
}

// What Jinja2 has and this engine does not.
[[noreturn]] inline void RaiseUnsupported(std::string_view what) {
  Raise("the template uses {}, which is not supported", what);
}

}  // namespace moesaic::jinja
