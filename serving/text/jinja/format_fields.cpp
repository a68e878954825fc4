// "..." % values and "...".format(...).

#include <algorithm>
#include <cmath>

#include "serving/text/jinja/format.h"
#include "serving/text/jinja/format_spec.h"
#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/raise.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

// A run of digits at `at`, which moves past it; -1 when there is none.
int TakeNumber(std::string_view text, size_t& at) {
  int value = -1;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = std::max(value, 0) * 10 + (text[at] - '0');
    if (value > kMaxFieldWidth) Raise("a format asks for more than {} characters", kMaxFieldWidth);
  }
  return value;
}

MarkedText Text(const Value& value, char conversion, Budget& budget) {
  if (conversion == 's') return ToText(value, budget);
  MarkedText result;
  AppendRepr(value, budget, result);
  return result;
}

class PercentFormatter {
 public:
  PercentFormatter(const MarkedText& format, const Value& argument, Budget& budget)
      : format_(format),
        text_(format.bytes()),
        argument_(argument),
        is_tuple_(argument.IsList() && argument.list().kind == ListKind::kTuple),
        budget_(budget) {}

  MarkedText Run() {
    while (true) {
      const size_t percent = text_.find('%', at_);
      out_.AppendSlice(format_, at_, std::min(percent, text_.size()));
      if (percent == std::string::npos) break;
      at_ = percent + 1;
      Field();
    }
    // Python accepts a mapping, and a list that nothing asked for.
    const bool unused = is_tuple_ ? next_ < argument_.list().items.size()
                                  : next_ == 0 && !named_ && !argument_.IsDict() &&
                                        !(argument_.IsList() && !is_tuple_);
    if (unused) Raise("not all arguments of a % format were used");
    return std::move(out_);
  }

 private:
  const Value& Next() {
    if (is_tuple_ && next_ < argument_.list().items.size()) return argument_.list().items[next_++];
    if (is_tuple_ || next_ > 0) Raise("a % format has too few arguments");
    ++next_;
    return argument_;
  }

  int Number() {
    if (at_ < text_.size() && text_[at_] == '*') {
      ++at_;
      const Value& value = Next();
      if (!value.IsIntegral()) Raise("'*' in a % format takes an integer");
      return static_cast<int>(
          std::clamp<Integer>(value.AsInteger(), -kMaxFieldWidth, kMaxFieldWidth));
    }
    return TakeNumber(text_, at_);
  }

  void Field() {
    budget_.Charge(1);
    FormatSpec spec;
    const Value* named = nullptr;
    if (at_ < text_.size() && text_[at_] == '(') {
      const size_t close = text_.find(')', at_);
      if (close == std::string::npos) Raise("a key in a % format is not closed");
      if (!argument_.IsDict()) Raise("a % format with keys takes a dict");
      const std::string key = text_.substr(at_ + 1, close - at_ - 1);
      named = argument_.dict().Find(key, budget_);
      if (named == nullptr) Raise("a % format uses the missing key '{}'", key);
      at_ = close + 1;
      named_ = true;
    }
    for (; at_ < text_.size(); ++at_) {
      const char flag = text_[at_];
      if (flag == '-') {
        spec.align = '<';
      } else if (flag == '0') {
        spec.zero = true;
      } else if (flag == '+' || (flag == ' ' && spec.sign != '+')) {
        spec.sign = flag;
      } else if (flag == '#') {
        spec.alternate = true;
      } else if (flag != ' ') {
        break;
      }
    }
    spec.width = Number();
    if (spec.width < -1) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    spec.width = std::max(spec.width, 0);
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      spec.precision = std::max(Number(), 0);
    }
    while (at_ < text_.size() && (text_[at_] == 'h' || text_[at_] == 'l' || text_[at_] == 'L')) {
      ++at_;
    }
    if (at_ >= text_.size()) Raise("a % format is incomplete");
    spec.type = text_[at_++];
    if (spec.type == '%') {
      out_.Append("%", false);
      return;
    }
    const Value& value = named != nullptr ? *named : Next();
    Append(value, spec);
  }

  void Append(const Value& value, FormatSpec spec) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a':
        if (spec.align == '\0') spec.align = '>';
        out_.Append(LayOutText(Text(value, spec.type == 's' ? 's' : 'r', budget_), spec, budget_));
        return;
      case 'c':
        if (spec.align == '\0') spec.align = '>';
        spec.precision = -1;
        out_.Append(LayOutText(Character(value), spec, budget_));
        return;
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        AppendInteger(value, spec);
        return;
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (!value.IsNumber()) Raise("'%{}' takes a number, not '{}'", spec.type, value.TypeName());
        const double number = value.AsNumber();
        out_.Append(LayOutNumber(std::signbit(number), "", FloatDigits(std::fabs(number), spec),
                                 spec, budget_));
        return;
      }
      default:
        Raise("unknown conversion in a % format");
    }
  }

  void AppendInteger(const Value& value, const FormatSpec& spec) {
    const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    if (!value.IsIntegral() && !(decimal && value.IsFloat())) {
      Raise("'%{}' takes an integer, not '{}'", spec.type, value.TypeName());
    }
    if (value.IsFloat() && !(std::fabs(value.AsFloat()) < 0x1p126)) {
      Raise("a number is too large for an integer");
    }
    const Integer number =
        value.IsFloat() ? static_cast<Integer>(value.AsFloat()) : value.AsInteger();
    std::string digits = IntegerDigits(number < 0 ? -number : number, spec);
    if (spec.precision > static_cast<int>(digits.size())) {
      budget_.ChargeBytes(static_cast<uint64_t>(spec.precision));
      digits = std::string(static_cast<size_t>(spec.precision) - digits.size(), '0').append(digits);
    }
    const char* prefix = !spec.alternate    ? ""
                         : spec.type == 'x' ? "0x"
                         : spec.type == 'X' ? "0X"
                         : spec.type == 'o' ? "0o"
                                            : "";
    out_.Append(LayOutNumber(number < 0, prefix, digits, spec, budget_));
  }

  MarkedText Character(const Value& value) {
    if (value.IsString() && CountCharacters(value.bytes()) == 1) return value.text();
    if (!value.IsIntegral()) Raise("'%c' takes an integer or one character");
    const Integer code = value.AsInteger();
    if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      Raise("'%c': there is no character {}", code);
    }
    std::string bytes;
    AppendUtf8(static_cast<char32_t>(code), bytes);
    return MarkedText(bytes);
  }

  const MarkedText& format_;
  const std::string& text_;
  const Value& argument_;
  bool is_tuple_;
  Budget& budget_;
  MarkedText out_;
  size_t at_ = 0;
  size_t next_ = 0;
  bool named_ = false;
};

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const CallArguments& arguments)
      : interpreter_(interpreter), budget_(interpreter.budget()), arguments_(arguments) {}

  // `nested`: the format is the specification of a field.
  MarkedText Run(const MarkedText& format, bool nested) {
    const std::string& text = format.bytes();
    MarkedText out;
    for (size_t at = 0; at < text.size();) {
      const size_t brace = std::min(text.find_first_of("{}", at), text.size());
      out.AppendSlice(format, at, brace);
      if (brace == text.size()) break;
      if (brace + 1 < text.size() && text[brace + 1] == text[brace] && !nested) {
        out.AppendSlice(format, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      if (text[brace] == '}') Raise("a single '}}' in a format string");
      size_t end = brace + 1;
      for (int open = 1; open > 0; ++end) {
        if (end >= text.size()) Raise("a '{{' in a format string is not closed");
        open += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
      }
      out.Append(Field(format.Slice(brace + 1, end - 1), nested));
      at = end;
    }
    return out;
  }

 private:
  MarkedText Field(const MarkedText& field, bool nested) {
    budget_.Charge(1 + field.size_bytes() / 64);
    const std::string& text = field.bytes();
    size_t name_end = 0;
    for (bool in_bracket = false; name_end < text.size(); ++name_end) {
      const char c = text[name_end];
      if (c == '[') in_bracket = true;
      if (c == ']') in_bracket = false;
      if (!in_bracket && (c == '!' || c == ':')) break;
    }
    const Value value = Look(text.substr(0, name_end));
    size_t at = name_end;
    char conversion = '\0';
    if (at < text.size() && text[at] == '!') {
      if (at + 1 >= text.size()) Raise("a conversion in a format string is incomplete");
      conversion = text[at + 1];
      if (conversion != 's' && conversion != 'r' && conversion != 'a') {
        Raise("unknown conversion '!{}' in a format string", conversion);
      }
      at += 2;
      if (at < text.size() && text[at] != ':') Raise("expected ':' after a conversion");
    }
    MarkedText specification;
    if (at < text.size()) {
      if (nested) Raise("the fields of a format string are nested too deeply");
      specification = Run(field.Slice(at + 1, text.size()), true);
    }
    const Value converted =
        conversion == '\0' ? value
                           : Value::String(Text(value, conversion == 's' ? 's' : 'r', budget_));
    return Format(converted, specification.bytes());
  }

  Value Look(const std::string& name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    Value value = Argument(name.substr(0, first_end));
    for (size_t at = first_end; at < name.size();) {
      if (name[at] == '.') {
        const size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        value = interpreter_.Attribute(value, name.substr(at + 1, end - at - 1));
        at = end;
        continue;
      }
      const size_t close = name[at] == '[' ? name.find(']', at) : std::string::npos;
      if (close == std::string::npos) Raise("malformed field '{}' in a format string", name);
      size_t digits_end = at + 1;
      const int index = TakeNumber(name, digits_end);
      value = interpreter_.Item(value, index >= 0 && digits_end == close
                                           ? Value::Int(index)
                                           : Value::String(name.substr(at + 1, close - at - 1)));
      at = close + 1;
    }
    return value;
  }

  Value Argument(const std::string& name) {
    size_t at = 0;
    int index = TakeNumber(name, at);
    if (name.empty()) {
      if (manual_) Raise("a format string mixes numbered and automatic fields");
      automatic_ = true;
      index = next_++;
    } else if (index >= 0 && at == name.size()) {
      if (automatic_) Raise("a format string mixes numbered and automatic fields");
      manual_ = true;
    } else {
      budget_.Charge(arguments_.keywords.size() * (1 + name.size() / 64));
      for (const auto& [key, value] : arguments_.keywords) {
        if (key == name) return value;
      }
      Raise("a format string uses the missing argument '{}'", name);
    }
    if (static_cast<size_t>(index) >= arguments_.positional.size()) {
      Raise("a format string uses the missing argument {}", index);
    }
    return arguments_.positional[static_cast<size_t>(index)];
  }

  static FormatSpec Parse(std::string_view text) {
    FormatSpec spec;
    const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    size_t at = 0;
    if (!text.empty()) {
      const size_t fill = DecodeAt(text, 0).length_bytes;
      if (fill < text.size() && is_align(text[fill])) {
        spec.fill = text.substr(0, fill);
        spec.align = text[fill];
        at = fill + 1;
      } else if (is_align(text[0])) {
        spec.align = text[0];
        at = 1;
      }
    }
    const auto skip = [&](char c) {
      if (at >= text.size() || text[at] != c) return false;
      ++at;
      return true;
    };
    for (const char sign : {'+', '-', ' '}) {
      if (skip(sign)) spec.sign = sign;
    }
    spec.alternate = skip('#');
    spec.zero = skip('0');
    spec.width = std::max(TakeNumber(text, at), 0);
    for (const char grouping : {',', '_'}) {
      if (skip(grouping)) spec.grouping = grouping;
    }
    if (skip('.')) {
      spec.precision = TakeNumber(text, at);
      if (spec.precision < 0) Raise("a format specification misses its precision");
    }
    if (at < text.size()) spec.type = text[at++];
    if (at < text.size()) Raise("invalid format specification '{}'", text);
    return spec;
  }

  MarkedText Format(const Value& value, std::string_view specification) {
    if (specification.empty()) return ToText(value, budget_);
    FormatSpec spec = Parse(specification);
    if (value.IsString()) {
      if (spec.type != '\0' && spec.type != 's') {
        Raise("a string cannot be formatted as '{}'", spec.type);
      }
      if (spec.sign != '-' || spec.alternate || spec.grouping != '\0') {
        Raise("invalid format specification '{}' for a string", specification);
      }
      if (spec.zero && spec.align == '\0') {
        spec.align = '<';
        spec.fill = '0';
      }
      return LayOutText(value.text(), spec, budget_);
    }
    if (!value.IsNumber()) {
      Raise("a value of type '{}' takes no format specification", value.TypeName());
    }
    const bool as_float =
        value.IsFloat() || std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
    if (!as_float) {
      if (spec.precision >= 0) Raise("an integer takes no precision");
      const Integer number = value.AsInteger();
      const std::string digits = IntegerDigits(number < 0 ? -number : number, spec);
      const std::string prefix =
          spec.alternate && std::string_view("xXob").find(spec.type) != std::string_view::npos
              ? fmt::format("0{}", spec.type)
              : std::string();
      return LayOutNumber(number < 0, prefix, digits, spec, budget_);
    }
    if (std::string_view("eEfFgGn%").find(spec.type) == std::string_view::npos &&
        spec.type != '\0') {
      Raise("a float cannot be formatted as '{}'", spec.type);
    }
    const double number = value.AsNumber();
    return LayOutNumber(std::signbit(number) && !std::isnan(number), "",
                        FloatDigits(std::fabs(number), spec), spec, budget_);
  }

  Interpreter& interpreter_;
  Budget& budget_;
  const CallArguments& arguments_;
  int next_ = 0;
  bool automatic_ = false;
  bool manual_ = false;
};

}  // namespace

MarkedText FormatPercent(const MarkedText& format, const Value& argument, Budget& budget) {
  return PercentFormatter(format, argument, budget).Run();
}

MarkedText FormatBraces(Interpreter& interpreter, const MarkedText& format,
                        const CallArguments& arguments) {
  return BraceFormatter(interpreter, arguments).Run(format, false);
}

}  // namespace moesaic::jinja
