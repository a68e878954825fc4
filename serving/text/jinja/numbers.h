// int() and float() of Python on strings. Pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "serving/text/jinja/value.h"

namespace moesaic::jinja {

// int(text, base): surrounding space, a sign, single underscores, a prefix that fits the base (any
// when base is 0). nullopt when Python raises ValueError; RenderFailure when it has over 127 bits.
std::optional<Integer> ParseInteger(std::string_view text, int base);
// float(text), also "inf", "nan" and "infinity". nullopt when Python raises ValueError.
std::optional<double> ParseFloat(std::string_view text);

}  // namespace moesaic::jinja
