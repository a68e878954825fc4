// The operations of Python's str that methods and filters share. They return the pieces of their
// operands, so the marks of the input stay right. All linear in their input but Strip, whose set of
// characters is looked through for each of the text; what takes a budget charges its work.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "serving/text/jinja/budget.h"
#include "serving/text/jinja/marked_text.h"

namespace moesaic::jinja {

enum class Side { kLeft, kRight, kBoth };

// `characters`: the set to strip; whitespace when absent.
MarkedText Strip(const MarkedText& text, std::optional<std::string_view> characters, Side side,
                 Budget& budget);
MarkedText ToUpper(const MarkedText& text);
MarkedText ToLower(const MarkedText& text);
MarkedText SwapCase(const MarkedText& text);
MarkedText Capitalize(const MarkedText& text);
MarkedText TitleMethod(const MarkedText& text);  // str.title: after any uncased character
MarkedText TitleFilter(const MarkedText& text);  // Jinja's: after space - ( { [ <
// At most `count` replacements when it is not negative. Charges the result.
MarkedText Replace(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                   int64_t count, Budget& budget);
// str.split / rsplit; `separator` absent: runs of whitespace. max_splits < 0: no limit.
std::vector<MarkedText> Split(const MarkedText& text, std::optional<std::string_view> separator,
                              int64_t max_splits, Budget& budget);
std::vector<MarkedText> SplitFromRight(const MarkedText& text,
                                       std::optional<std::string_view> separator,
                                       int64_t max_splits, Budget& budget);
std::vector<MarkedText> SplitLines(const MarkedText& text, bool keep_ends);
// &, <, >, ' and " as HTML entities.
MarkedText EscapeHtml(const MarkedText& text);
// Filled up with `fill` to `width` characters; Side::kLeft puts the text on the left.
MarkedText Pad(const MarkedText& text, size_t width, std::string_view fill, Side side,
               Budget& budget);

}  // namespace moesaic::jinja
