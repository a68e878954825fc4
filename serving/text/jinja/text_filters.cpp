// Filters that make text or numbers.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "serving/text/jinja/builtins.h"
#include "serving/text/jinja/collections.h"
#include "serving/text/jinja/format.h"
#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/numbers.h"
#include "serving/text/jinja/raise.h"
#include "serving/text/jinja/text_ops.h"
#include "serving/text/jinja/text_search.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

Value Trim(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("trim", arguments, {"chars"});
  std::optional<std::string_view> chars;
  if (bound.Has(0) && !bound.Required(0).IsNone()) chars = bound.Text(0).bytes();
  return in.NewString(Strip(ToText(input, in.budget()), chars, Side::kBoth, in.budget()));
}

template <MarkedText (*kMap)(const MarkedText&)>
Value MapText(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("upper, lower, title, capitalize, escape", arguments, {});
  return in.NewString(kMap(ToText(input, in.budget())));
}

Value String(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("string", arguments, {});
  return input.IsString() ? input : in.NewString(ToText(input, in.budget()));
}

Value ReplaceFilter(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"});
  Integer count = -1;
  if (bound.Has(2) && !bound.Required(2).IsNone()) count = bound.GetInteger(2, -1);
  count = std::clamp<Integer>(count, -1, Integer{1} << 62);
  return Value::String(Replace(ToText(input, in.budget()), ToText(bound.Required(0), in.budget()),
                               ToText(bound.Required(1), in.budget()), static_cast<int64_t>(count),
                               in.budget()));
}

Value Indent(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("indent", arguments, {"width", "first", "blank"});
  if (!input.IsString()) Raise("indent takes a string, not '{}'", input.TypeName());
  Budget& budget = in.budget();
  MarkedText indention;
  if (bound.Has(0) && bound.Required(0).IsString()) {
    indention = bound.Text(0);
  } else {
    const Integer width = std::clamp<Integer>(bound.GetInteger(0, 4), 0, Integer{1} << 40);
    budget.ChargeBytes(static_cast<uint64_t>(width));
    indention.Append(std::string(static_cast<size_t>(width), ' '), false);
  }
  const bool blank_lines = bound.GetBool(2, false);
  MarkedText with_newline = input.text();
  with_newline.Append("\n", false);  // so that the last line counts even when it is empty
  budget.ChargeBytes(2 * with_newline.size_bytes());
  MarkedText result;
  if (bound.GetBool(1, false)) result.Append(indention);
  bool first = true;
  for (const MarkedText& line : SplitLines(with_newline, false)) {
    if (!first) {
      result.Append("\n", false);
      if (blank_lines || !line.empty()) {
        budget.ChargeBytes(indention.size_bytes());
        result.Append(indention);
      }
    }
    first = false;
    result.Append(line);
  }
  return Value::String(std::move(result));
}

Value Center(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("center", arguments, {"width"});
  const Integer width = std::clamp<Integer>(bound.GetInteger(0, 80), 0, Integer{1} << 40);
  return in.NewString(
      Pad(ToText(input, in.budget()), static_cast<size_t>(width), " ", Side::kBoth, in.budget()));
}

Value TruncateFilter(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  if (input.IsUndefined()) return input;
  if (!input.IsString()) Raise("truncate takes a string, not '{}'", input.TypeName());
  const MarkedText end = bound.Has(2) ? bound.Text(2) : MarkedText("...");
  const Integer length = bound.GetInteger(0, 255);
  const bool has_leeway = bound.Has(3) && !bound.Required(3).IsNone();
  const Integer leeway = has_leeway ? bound.GetInteger(3, 0) : 5;  // jinja2's policy
  const MarkedText& text = input.text();
  in.budget().Charge((text.size_bytes() + end.size_bytes()) / 16);
  const auto end_length = static_cast<Integer>(CountCharacters(end.bytes()));
  if (length < end_length || leeway < 0) {
    Raise("truncate: the length is below that of the end ({}), or the leeway below 0", end_length);
  }
  if (static_cast<Integer>(CountCharacters(text.bytes())) - leeway <= length) return input;
  size_t kept = CharacterOffset(text.bytes(), static_cast<size_t>(length - end_length));
  if (!bound.GetBool(1, false)) {
    const size_t space = LastTextFinder(" ", in.budget()).Find(text.bytes(), kept);
    if (space != std::string::npos) kept = space;
  }
  MarkedText result = text.Slice(0, kept);
  result.Append(end);
  return in.NewString(std::move(result));
}

Value FormatFilter(Interpreter& in, const Value& input, CallArguments& arguments) {
  if (!arguments.positional.empty() && !arguments.keywords.empty()) {
    Raise("format takes positional or keyword arguments, not both");
  }
  Value values;
  if (arguments.keywords.empty()) {
    values = in.NewList(arguments.positional, ListKind::kTuple);
  } else {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [key, value] : arguments.keywords) entries.emplace_back(Value::String(key), value);
    values = NewDict(std::move(entries), in.budget());
  }
  return in.NewString(FormatPercent(ToText(input, in.budget()), values, in.budget()));
}

Value WordCount(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("wordcount", arguments, {});
  const MarkedText text = ToText(input, in.budget());
  Integer count = 0;
  bool in_word = false;
  for (size_t i = 0; i < text.size_bytes();) {
    const auto [c, length] = DecodeAt(text.bytes(), i);
    const bool word = c == '_' || IsAlpha(c) || IsNumeric(c);
    count += word && !in_word ? 1 : 0;
    in_word = word;
    i += length;
  }
  return Value::Int(count);
}

Value ToJsonFilter(Interpreter& in, const Value& input, CallArguments& arguments) {
  // The order of transformers' own tojson.
  const BoundArguments bound("tojson", arguments,
                             {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.GetBool(0, false);
  if (bound.Has(1) && !bound.Required(1).IsNone()) {
    style.pretty = true;
    style.item_separator = ',';
    if (bound.Required(1).IsString()) {
      style.indent = bound.Text(1).bytes();
    } else {
      const Integer width = std::clamp<Integer>(bound.GetInteger(1, 0), 0, Integer{1} << 40);
      in.budget().ChargeBytes(static_cast<uint64_t>(width));
      style.indent.assign(static_cast<size_t>(width), ' ');
    }
  }
  if (bound.Has(2) && !bound.Required(2).IsNone()) {
    const std::vector<Value> separators = in.Elements(bound.Required(2));
    if (separators.size() != 2 || !separators[0].IsString() || !separators[1].IsString()) {
      Raise("tojson: separators has to be a pair of strings");
    }
    style.item_separator = separators[0].bytes();
    style.key_separator = separators[1].bytes();
  }
  style.sort_keys = bound.GetBool(3, false);
  return Value::String(ToJson(input, style, in.budget()));
}

[[noreturn]] void NotFinite() { Raise("an infinite number is no integer"); }

Integer Truncate(double number) {
  if (std::fabs(number) >= 0x1p126) Raise("a number is too large for an integer");
  return static_cast<Integer>(number);
}

Value ToInteger(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("int", arguments, {"default", "base"});
  const Value otherwise = bound.Get(0, Value::Int(0));
  if (input.IsUndefined()) Raise("{}", input.UndefinedMessage());
  if (input.IsIntegral()) return Value::Int(input.AsInteger());
  double number = 0;
  if (input.IsFloat()) {
    number = input.AsFloat();
    if (std::isinf(number)) NotFinite();
  } else if (input.IsString()) {
    in.budget().Charge(input.text().size_bytes() / 16);
    const auto base = static_cast<int>(std::clamp<Integer>(bound.GetInteger(1, 10), -1, 1000));
    if (const auto integer = ParseInteger(input.bytes(), base)) return Value::Int(*integer);
    const auto parsed = ParseFloat(input.bytes());
    if (!parsed || std::isinf(*parsed)) return otherwise;
    number = *parsed;
  } else {
    return otherwise;
  }
  return std::isnan(number) ? otherwise : Value::Int(Truncate(number));
}

Value ToFloat(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("float", arguments, {"default"});
  if (input.IsUndefined()) Raise("{}", input.UndefinedMessage());
  if (input.IsNumber()) return Value::Float(input.AsNumber());
  if (input.IsString()) in.budget().Charge(input.text().size_bytes() / 16);
  const auto parsed = input.IsString() ? ParseFloat(input.bytes()) : std::nullopt;
  return parsed ? Value::Float(*parsed) : bound.Get(0, Value::Float(0));
}

Value Abs(Interpreter&, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("abs", arguments, {});
  if (input.IsFloat()) return Value::Float(std::fabs(input.AsFloat()));
  if (!input.IsIntegral()) Raise("abs takes a number, not '{}'", input.TypeName());
  const Integer value = input.AsInteger();
  return Value::Int(value < 0 ? -value : value);
}

// round(value, digits) of Python: the decimal nearest to the exact binary value, ties to even.
double RoundTo(double value, int digits) {
  if (!std::isfinite(value)) return value;
  if (digits >= 0) {
    char buffer[512];
    const int length = std::snprintf(buffer, sizeof(buffer), "%.*f", std::min(digits, 150), value);
    return length > 0 && length < static_cast<int>(sizeof(buffer)) ? std::strtod(buffer, nullptr)
                                                                   : value;
  }
  if (digits < -308) return std::copysign(0.0, value);
  const double scale = std::pow(10.0, -digits);
  return std::nearbyint(value / scale) * scale;
}

Value Round(Interpreter&, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("round", arguments, {"precision", "method"});
  const Integer wide = bound.GetInteger(0, 0);
  const auto precision = static_cast<int>(std::clamp<Integer>(wide, -400, 400));
  const std::string method = bound.Has(1) ? bound.Text(1).bytes() : std::string("common");
  if (method != "common" && method != "ceil" && method != "floor") {
    Raise("round: the method has to be common, ceil or floor");
  }
  if (!input.IsNumber()) Raise("round takes a number, not '{}'", input.TypeName());
  if (method == "common") {
    if (!input.IsIntegral()) return Value::Float(RoundTo(input.AsFloat(), precision));
    if (precision >= 0) return Value::Int(input.AsInteger());
    if (precision < -37) return Value::Int(0);
    Integer scale = 1;
    for (int i = 0; i < -precision; ++i) scale *= 10;
    const Integer value = input.AsInteger();
    Integer quotient = value / scale;
    const Integer rest = value % scale < 0 ? -(value % scale) : value % scale;
    if (rest > scale / 2 || (rest == scale / 2 && quotient % 2 != 0))
      quotient += value < 0 ? -1 : 1;
    return Value::Int(quotient * scale);
  }
  const double scale = std::pow(10.0, precision);
  const double scaled = input.AsNumber() * scale;
  if (!std::isfinite(scaled)) NotFinite();
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value Safe(Interpreter& in, const Value& input, CallArguments& arguments) {
  return String(in, input, arguments);
}

constexpr FilterEntry kTextFilters[] = {
    {"trim", Trim},
    {"upper", MapText<ToUpper>},
    {"lower", MapText<ToLower>},
    {"title", MapText<TitleFilter>},
    {"capitalize", MapText<Capitalize>},
    {"escape", MapText<EscapeHtml>},
    {"e", MapText<EscapeHtml>},
    {"forceescape", MapText<EscapeHtml>},
    {"string", String},
    {"safe", Safe},
    {"replace", ReplaceFilter},
    {"indent", Indent},
    {"center", Center},
    {"truncate", TruncateFilter},
    {"format", FormatFilter},
    {"wordcount", WordCount},
    {"tojson", ToJsonFilter},
    {"int", ToInteger},
    {"float", ToFloat},
    {"abs", Abs},
    {"round", Round},
};

}  // namespace

FilterFunction FindTextFilter(std::string_view name) {
  const auto* it = std::find_if(std::begin(kTextFilters), std::end(kTextFilters),
                                [name](const FilterEntry& entry) { return entry.name == name; });
  return it == std::end(kTextFilters) ? nullptr : it->function;
}

FilterFunction FindFilter(std::string_view name) {
  const FilterFunction text = FindTextFilter(name);
  return text != nullptr ? text : FindSequenceFilter(name);
}

}  // namespace moesaic::jinja
