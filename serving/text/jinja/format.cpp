#include "serving/text/jinja/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "serving/text/jinja/raise.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

void AppendEscaped(const char* format, char32_t code_point, MarkedText& out, bool from_input) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), format, static_cast<unsigned>(code_point));
  out.Append(buffer, from_input);
}

void AppendStringRepr(const MarkedText& text, MarkedText& out) {
  const std::string& bytes = text.bytes();
  const bool double_quotes =
      bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos;
  const char quote = double_quotes ? '"' : '\'';
  out.Append(std::string_view(&quote, 1), false);
  for (size_t i = 0; i < bytes.size();) {
    const auto [code_point, length] = DecodeAt(bytes, i);
    const bool marked = text.FromInput(i);
    if (code_point == static_cast<unsigned char>(quote) || code_point == '\\') {
      out.Append("\\", marked);
      out.AppendSlice(text, i, i + length);
    } else if (code_point == '\n') {
      out.Append("\\n", marked);
    } else if (code_point == '\r') {
      out.Append("\\r", marked);
    } else if (code_point == '\t') {
      out.Append("\\t", marked);
    } else if (code_point == kInvalidByte || IsPrintable(code_point)) {
      out.AppendSlice(text, i, i + length);
    } else if (code_point < 0x100) {
      AppendEscaped("\\x%02x", code_point, out, marked);
    } else if (code_point < 0x10000) {
      AppendEscaped("\\u%04x", code_point, out, marked);
    } else {
      AppendEscaped("\\U%08x", code_point, out, marked);
    }
    i += length;
  }
  out.Append(std::string_view(&quote, 1), false);
}

// Appends to `out` and charges what was written.
class Printer {
 public:
  Printer(Budget& budget, MarkedText& out) : budget_(budget), out_(out) {}

  void Repr(const Value& value) {
    budget_.Charge(1);
    const size_t before_bytes = out_.size_bytes();
    if (value.IsUndefined()) {
      out_.Append("Undefined", false);
    } else if (value.IsString()) {
      AppendStringRepr(value.text(), out_);
    } else if (value.IsList()) {
      ReprList(value.list());
      return;
    } else if (value.IsDict()) {
      ReprDict(value.dict());
      return;
    } else {
      Scalar(value);
    }
    budget_.ChargeBytes(out_.size_bytes() - before_bytes);
  }

  void Scalar(const Value& value) {
    if (value.IsNone()) {
      out_.Append("None", false);
    } else if (value.IsBool()) {
      out_.Append(value.AsBool() ? "True" : "False", false);
    } else if (value.IsInt()) {
      out_.Append(IntegerRepr(value.AsInteger()), false);
    } else if (value.IsFloat()) {
      out_.Append(FloatRepr(value.AsFloat()), false);
    } else if (value.IsIterator()) {
      out_.Append("<generator object>", false);
    } else if (value.IsObject()) {
      out_.Append(value.object().Repr(), false);
    }
  }

 private:
  void ReprList(const List& list) {
    if (list.kind == ListKind::kRange) {
      out_.Append("range(" + IntegerRepr(list.range[0]) + ", " + IntegerRepr(list.range[1]), false);
      if (list.range[2] != 1) out_.Append(", " + IntegerRepr(list.range[2]), false);
      out_.Append(")", false);
      return;
    }
    const bool tuple = list.kind == ListKind::kTuple;
    const char* prefix = list.kind == ListKind::kDictKeys     ? "dict_keys(["
                         : list.kind == ListKind::kDictValues ? "dict_values(["
                         : list.kind == ListKind::kDictItems  ? "dict_items(["
                         : tuple                              ? "("
                                                              : "[";
    out_.Append(prefix, false);
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.Append(", ", false);
      Repr(list.items[i]);
    }
    if (tuple && list.items.size() == 1) out_.Append(",", false);
    out_.Append(tuple ? ")" : list.kind == ListKind::kList ? "]" : "])", false);
  }

  void ReprDict(const Dict& dict) {
    out_.Append("{", false);
    for (size_t i = 0; i < dict.entries.size(); ++i) {
      if (i > 0) out_.Append(", ", false);
      Repr(dict.entries[i].first);
      out_.Append(": ", false);
      Repr(dict.entries[i].second);
    }
    out_.Append("}", false);
  }

  Budget& budget_;
  MarkedText& out_;
};

}  // namespace

std::string IntegerRepr(Integer value) { return fmt::format("{}", value); }

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto scientific =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string text(buffer, scientific.ptr);
  const size_t e = text.find('e');
  int exponent = 0;
  const char* digits = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return text;  // Python's repr switches at the same places
  const auto fixed =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  text.assign(buffer, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

void AppendStr(const Value& value, Budget& budget, MarkedText& out) {
  if (value.IsUndefined()) return;
  if (value.IsString()) {
    budget.ChargeBytes(value.text().memory_bytes());
    out.Append(value.text());
  } else {
    Printer(budget, out).Repr(value);
  }
}

void AppendRepr(const Value& value, Budget& budget, MarkedText& out) {
  Printer(budget, out).Repr(value);
}

MarkedText ToText(const Value& value, Budget& budget) {
  MarkedText out;
  AppendStr(value, budget, out);
  return out;
}

}  // namespace moesaic::jinja
