// The layout of one formatted field, shared by % and format(). Internal.
#pragma once

#include <string>
#include <string_view>

#include "serving/text/jinja/budget.h"
#include "serving/text/jinja/marked_text.h"
#include "serving/text/jinja/value.h"

namespace moesaic::jinja {

struct FormatSpec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =, or none
  char sign = '-';    // + - or space
  bool alternate = false;
  bool zero = false;
  char grouping = '\0';  // , or _
  int width = 0;
  int precision = -1;
  char type = '\0';
};

// Widths and precisions above this are refused.
inline constexpr int kMaxFieldWidth = 100'000;

// The digits of a number after its sign, in the style of spec.type (d x X o b, e E f F g G %).
// Throws RenderFailure for another type.
std::string IntegerDigits(Integer magnitude, const FormatSpec& spec);
std::string FloatDigits(double magnitude, const FormatSpec& spec);
// sign + digits, padded; numbers stand on the right by default.
MarkedText LayOutNumber(bool negative, std::string_view prefix, const std::string& digits,
                        const FormatSpec& spec, Budget& budget);
// Cut to the precision and padded; text stands on the left by default.
MarkedText LayOutText(const MarkedText& text, const FormatSpec& spec, Budget& budget);

}  // namespace moesaic::jinja
