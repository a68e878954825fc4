// How values become text: str(), repr() and json.dumps() of Python, and its two string formatters.
#pragma once

#include <span>
#include <string>

#include "serving/text/jinja/budget.h"
#include "serving/text/jinja/marked_text.h"
#include "serving/text/jinja/object.h"
#include "serving/text/jinja/value.h"

namespace moesaic::jinja {

std::string FloatRepr(double value);
std::string IntegerRepr(Integer value);

// str(value). The result of a string is that string.
MarkedText ToText(const Value& value, Budget& budget);
void AppendStr(const Value& value, Budget& budget, MarkedText& out);
void AppendRepr(const Value& value, Budget& budget, MarkedText& out);

struct JsonStyle {
  bool ensure_ascii = false;
  bool pretty = false;
  std::string indent;  // of one level, when pretty
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
// json.dumps; throws RenderFailure for values that JSON does not have.
MarkedText ToJson(const Value& value, const JsonStyle& style, Budget& budget);

// "format" % argument: %s %r %d %i %u %x %X %o %e %f %g %c %% with flags, width and precision.
MarkedText FormatPercent(const MarkedText& format, const Value& argument, Budget& budget);
// "format".format(...): fields by position or name, .attribute and [index], !r !s, and the
// specification [[fill]align][sign][0][width][,][.precision][type].
MarkedText FormatBraces(Interpreter& interpreter, const MarkedText& format,
                        const CallArguments& arguments);

}  // namespace moesaic::jinja
