// Methods of strings.

#include <algorithm>
#include <iterator>

#include "serving/text/jinja/builtins.h"
#include "serving/text/jinja/format.h"
#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/raise.h"
#include "serving/text/jinja/text_ops.h"
#include "serving/text/jinja/text_search.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

// An argument that is a string or None.
std::optional<std::string_view> TextOrNone(const BoundArguments& bound, size_t i) {
  if (!bound.Has(i) || bound.Required(i).IsNone()) return std::nullopt;
  return bound.Text(i).bytes();
}

int64_t Clamp64(Integer value) {
  constexpr Integer kLimit = Integer{1} << 62;
  return static_cast<int64_t>(std::clamp(value, -kLimit, kLimit));
}

template <Side kSide>
Value StripMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("strip", arguments, {"chars"});
  return in.NewString(Strip(self.text(), TextOrNone(bound, 0), kSide, in.budget()));
}

using Pieces = std::vector<MarkedText> (*)(const MarkedText&, std::optional<std::string_view>,
                                           int64_t, Budget&);

Value ListOf(Interpreter& in, std::vector<MarkedText> pieces, ListKind kind = ListKind::kList) {
  std::vector<Value> items;
  items.reserve(pieces.size());
  for (MarkedText& piece : pieces) items.push_back(in.NewString(std::move(piece)));
  return in.NewList(std::move(items), kind);
}

template <Pieces kSplit>
Value SplitMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("split", arguments, {"sep", "maxsplit"});
  const auto separator = TextOrNone(bound, 0);
  if (separator && separator->empty()) Raise("split(): the separator is empty");
  // Before the work: one-character pieces cost far more than the text.
  in.budget().ChargeBytes(self.text().size_bytes());
  return ListOf(in, kSplit(self.text(), separator, Clamp64(bound.GetInteger(1, -1)), in.budget()));
}

Value SplitLinesMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("splitlines", arguments, {"keepends"});
  in.budget().ChargeBytes(self.text().size_bytes());
  return ListOf(in, SplitLines(self.text(), bound.GetBool(0, false)));
}

template <bool kFromRight>
Value PartitionMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("partition", arguments, {"sep"});
  const MarkedText& separator = bound.Text(0);
  if (separator.empty()) Raise("partition(): the separator is empty");
  const MarkedText& text = self.text();
  const size_t found =
      kFromRight
          ? LastTextFinder(separator.bytes(), in.budget()).Find(text.bytes(), text.size_bytes())
          : FindText(text.bytes(), separator.bytes(), 0, in.budget());
  std::vector<MarkedText> parts(3);
  if (found == std::string::npos) {
    parts[kFromRight ? 2 : 0] = text;
  } else {
    parts[0] = text.Slice(0, found);
    parts[1] = separator;
    parts[2] = text.Slice(found + separator.size_bytes(), text.size_bytes());
  }
  return ListOf(in, std::move(parts), ListKind::kTuple);
}

// [start, end) in characters as byte offsets; nullopt when start lies past the end.
std::optional<std::pair<size_t, size_t>> Window(const BoundArguments& bound, size_t first,
                                                const std::string& bytes, Budget& budget) {
  if (!bound.Has(first) && !bound.Has(first + 1)) return std::make_pair(size_t{0}, bytes.size());
  budget.Charge(bytes.size() / 16);
  const auto count = static_cast<Integer>(CountCharacters(bytes));
  const auto resolve = [&](size_t i, Integer otherwise) {
    if (!bound.Has(i) || bound.Required(i).IsNone()) return otherwise;
    Integer index = bound.GetInteger(i, 0);
    if (index < 0) index = std::max<Integer>(0, std::max<Integer>(index, -count) + count);
    return index;
  };
  const Integer start = resolve(first, 0);
  const Integer end = std::min(resolve(first + 1, count), count);
  if (start > count || start > end) return std::nullopt;
  return std::make_pair(CharacterOffset(bytes, static_cast<size_t>(start)),
                        CharacterOffset(bytes, static_cast<size_t>(end)));
}

template <bool kAtEnd>
Value AffixMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound(kAtEnd ? "endswith" : "startswith", arguments,
                             {"affix", "start", "end"});
  const std::string& bytes = self.bytes();
  const auto window = Window(bound, 1, bytes, in.budget());
  if (!window) return Value::Bool(false);
  const auto view = std::string_view(bytes).substr(window->first, window->second - window->first);
  const auto matches = [&](const Value& affix) {
    if (!affix.IsString()) {
      Raise("startswith and endswith take a string or a tuple of strings, not '{}'",
            affix.TypeName());
    }
    in.budget().Charge(1 + affix.text().size_bytes() / 64);
    return kAtEnd ? view.ends_with(affix.bytes()) : view.starts_with(affix.bytes());
  };
  const Value& affix = bound.Required(0);
  if (affix.IsList() && affix.list().kind == ListKind::kTuple) {
    const auto& items = affix.list().items;
    return Value::Bool(std::any_of(items.begin(), items.end(), matches));
  }
  return Value::Bool(matches(affix));
}

template <bool kFromRight, bool kMustExist>
Value FindMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("find", arguments, {"sub", "start", "end"});
  const std::string& wanted = bound.Text(0).bytes();
  const std::string& bytes = self.bytes();
  if (const auto window = Window(bound, 1, bytes, in.budget())) {
    const auto view = std::string_view(bytes).substr(window->first, window->second - window->first);
    const size_t found = kFromRight ? LastTextFinder(wanted, in.budget()).Find(view, view.size())
                                    : FindText(view, wanted, 0, in.budget());
    if (found != std::string_view::npos) {
      in.budget().Charge((window->first + found) / 16);
      return Value::Int(static_cast<Integer>(
          CountCharacters(std::string_view(bytes).substr(0, window->first + found))));
    }
  }
  if (kMustExist) Raise("index(): the substring was not found");
  return Value::Int(-1);
}

Value CountMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("count", arguments, {"sub", "start", "end"});
  const std::string& wanted = bound.Text(0).bytes();
  const auto window = Window(bound, 1, self.bytes(), in.budget());
  if (!window) return Value::Int(0);
  const auto view =
      std::string_view(self.bytes()).substr(window->first, window->second - window->first);
  if (wanted.empty()) {
    in.budget().Charge(view.size() / 16);
    return Value::Int(static_cast<Integer>(CountCharacters(view)) + 1);
  }
  Integer count = 0;
  for (size_t at = 0; (at = FindText(view, wanted, at, in.budget())) != std::string_view::npos;
       at += wanted.size()) {
    ++count;
  }
  return Value::Int(count);
}

Value ReplaceMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"});
  return Value::String(Replace(self.text(), bound.Text(0), bound.Text(1),
                               Clamp64(bound.GetInteger(2, -1)), in.budget()));
}

Value JoinMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("join", arguments, {"iterable"});
  MarkedText result;
  bool first = true;
  for (const Value& item : in.Elements(bound.Required(0))) {
    if (!item.IsString()) Raise("join() takes strings, not a value of type '{}'", item.TypeName());
    in.budget().ChargeBytes(self.text().memory_bytes() + item.text().memory_bytes());
    if (!first) result.Append(self.text());
    first = false;
    result.Append(item.text());
  }
  return Value::String(std::move(result));
}

Value FormatMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  return in.NewString(FormatBraces(in, self.text(), arguments));
}

template <MarkedText (*kMap)(const MarkedText&)>
Value MapMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("upper, lower, ...", arguments, {});
  return in.NewString(kMap(self.text()));
}

template <Side kSide>
Value PadMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("center, ljust, rjust", arguments, {"width", "fillchar"});
  bound.Required(0);
  const std::string fill = bound.Has(1) ? bound.Text(1).bytes() : " ";
  if (CountCharacters(fill) != 1) Raise("the fill of a padding has to be one character");
  const auto width = static_cast<size_t>(std::max<int64_t>(0, Clamp64(bound.GetInteger(0, 0))));
  return in.NewString(Pad(self.text(), width, fill, kSide, in.budget()));
}

Value ZeroFillMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("zfill", arguments, {"width"});
  bound.Required(0);
  const MarkedText& text = self.text();
  const size_t sign = !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+') ? 1 : 0;
  const int64_t width =
      std::max<int64_t>(0, Clamp64(bound.GetInteger(0, 0)) - static_cast<int64_t>(sign));
  MarkedText result = text.Slice(0, sign);
  result.Append(Pad(text.Slice(sign, text.size_bytes()), static_cast<size_t>(width), "0",
                    Side::kRight, in.budget()));
  return in.NewString(std::move(result));
}

template <bool kAtEnd>
Value RemoveAffixMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("removeprefix, removesuffix", arguments, {"affix"});
  const std::string& affix = bound.Text(0).bytes();
  in.budget().Charge(affix.size() / 64);
  const MarkedText& text = self.text();
  const bool matches = kAtEnd ? text.bytes().ends_with(affix) : text.bytes().starts_with(affix);
  if (!matches) return self;
  const size_t rest = text.size_bytes() - affix.size();
  return in.NewString(kAtEnd ? text.Slice(0, rest) : text.Slice(affix.size(), text.size_bytes()));
}

// Every character satisfies the predicate and there is at least one.
template <bool (*kPredicate)(char32_t)>
Value AllMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("isalpha, isdigit, ...", arguments, {});
  const std::string& bytes = self.bytes();
  in.budget().Charge(bytes.size() / 16);
  for (size_t i = 0; i < bytes.size();) {
    const auto [c, length] = DecodeAt(bytes, i);
    if (!kPredicate(c)) return Value::Bool(false);
    i += length;
  }
  return Value::Bool(!bytes.empty());
}

bool IsAlphaNumeric(char32_t c) { return IsAlpha(c) || IsNumeric(c); }

// isprintable() and isascii() of the empty string are true.
Value IsPrintableMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  return self.text().empty() ? Value::Bool(true) : AllMethod<IsPrintable>(in, self, arguments);
}

bool IsAscii(char32_t c) { return c < 0x80; }

Value IsAsciiMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  return self.text().empty() ? Value::Bool(true) : AllMethod<IsAscii>(in, self, arguments);
}

// isupper, islower: some cased character and none of the other case.
template <bool kUpper>
Value CaseMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("isupper, islower", arguments, {});
  const std::string& bytes = self.bytes();
  in.budget().Charge(bytes.size() / 16);
  bool any = false;
  for (size_t i = 0; i < bytes.size();) {
    const auto [c, length] = DecodeAt(bytes, i);
    if (IsTitle(c) || (kUpper ? IsLower(c) : IsUpper(c))) return Value::Bool(false);
    any |= kUpper ? IsUpper(c) : IsLower(c);
    i += length;
  }
  return Value::Bool(any);
}

Value IsTitleMethod(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("istitle", arguments, {});
  const std::string& bytes = self.bytes();
  in.budget().Charge(bytes.size() / 16);
  bool any = false;
  bool after_cased = false;
  for (size_t i = 0; i < bytes.size();) {
    const auto [c, length] = DecodeAt(bytes, i);
    const bool starts = IsUpper(c) || IsTitle(c);
    if ((starts && after_cased) || (IsLower(c) && !after_cased)) return Value::Bool(false);
    after_cased = IsCased(c);
    any |= after_cased;
    i += length;
  }
  return Value::Bool(any);
}

// Python has these, too. They fail when they are called, which a template may never do.
constexpr char kEncode[] = "str.encode()";
constexpr char kExpandTabs[] = "str.expandtabs()";
constexpr char kFormatMap[] = "str.format_map()";
constexpr char kTranslate[] = "str.translate()";

template <const char* kName>
Value RefuseMethod(Interpreter&, const Value&, CallArguments&) {
  RaiseUnsupported(kName);
}

constexpr MethodEntry kStringMethods[] = {
    {"strip", StripMethod<Side::kBoth>},
    {"lstrip", StripMethod<Side::kLeft>},
    {"rstrip", StripMethod<Side::kRight>},
    {"split", SplitMethod<Split>},
    {"rsplit", SplitMethod<SplitFromRight>},
    {"splitlines", SplitLinesMethod},
    {"partition", PartitionMethod<false>},
    {"rpartition", PartitionMethod<true>},
    {"startswith", AffixMethod<false>},
    {"endswith", AffixMethod<true>},
    {"find", FindMethod<false, false>},
    {"rfind", FindMethod<true, false>},
    {"index", FindMethod<false, true>},
    {"rindex", FindMethod<true, true>},
    {"count", CountMethod},
    {"replace", ReplaceMethod},
    {"join", JoinMethod},
    {"format", FormatMethod},
    {"upper", MapMethod<ToUpper>},
    {"lower", MapMethod<ToLower>},
    {"casefold", MapMethod<ToLower>},
    {"swapcase", MapMethod<SwapCase>},
    {"title", MapMethod<TitleMethod>},
    {"capitalize", MapMethod<Capitalize>},
    {"center", PadMethod<Side::kBoth>},
    {"ljust", PadMethod<Side::kLeft>},
    {"rjust", PadMethod<Side::kRight>},
    {"zfill", ZeroFillMethod},
    {"removeprefix", RemoveAffixMethod<false>},
    {"removesuffix", RemoveAffixMethod<true>},
    {"isalpha", AllMethod<IsAlpha>},
    {"isalnum", AllMethod<IsAlphaNumeric>},
    {"isdecimal", AllMethod<IsDecimal>},
    {"isdigit", AllMethod<IsDigit>},
    {"isnumeric", AllMethod<IsNumeric>},
    {"isspace", AllMethod<IsSpace>},
    {"isascii", IsAsciiMethod},
    {"isprintable", IsPrintableMethod},
    {"isupper", CaseMethod<true>},
    {"islower", CaseMethod<false>},
    {"istitle", IsTitleMethod},
    {"encode", RefuseMethod<kEncode>},
    {"expandtabs", RefuseMethod<kExpandTabs>},
    {"format_map", RefuseMethod<kFormatMap>},
    {"translate", RefuseMethod<kTranslate>},
};

}  // namespace

const MethodEntry* FindStringMethod(std::string_view name) {
  const auto* it = std::find_if(std::begin(kStringMethods), std::end(kStringMethods),
                                [name](const MethodEntry& entry) { return entry.name == name; });
  return it == std::end(kStringMethods) ? nullptr : it;
}

}  // namespace moesaic::jinja
