// json.dumps, as the `tojson` filter of chat templates calls it: no HTML escapes, other characters
// than ASCII as they are.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "serving/text/jinja/format.h"
#include "serving/text/jinja/raise.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void Write(const Value& value, int level) {
    budget_.ChargeBytes(8);
    if (value.IsString()) {
      WriteString(value.text());
    } else if (value.IsDict()) {
      WriteDict(value.dict(), level);
    } else if (value.IsList() &&
               (value.list().kind == ListKind::kList || value.list().kind == ListKind::kTuple)) {
      WriteList(value.list(), level);
    } else if (value.IsNone() || value.IsNumber()) {
      out_.Append(Scalar(value), false);
    } else {
      Raise("tojson: a value of type '{}' has no JSON form{}", value.TypeName(),
            value.IsUndefined() ? " (" + value.UndefinedMessage() + ")" : std::string());
    }
  }

  MarkedText Take() { return std::move(out_); }

 private:
  static std::string Scalar(const Value& value) {
    if (value.IsNone()) return "null";
    if (value.IsBool()) return value.AsBool() ? "true" : "false";
    if (value.IsInt()) return IntegerRepr(value.AsInteger());
    const double number = value.AsFloat();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
    return FloatRepr(number);
  }

  void WriteEscape(char32_t code_unit, bool marked) {
    out_.Append(fmt::format("\\u{:04x}", static_cast<uint32_t>(code_unit)), marked);
  }

  void WriteString(const MarkedText& text) {
    const std::string& bytes = text.bytes();
    budget_.ChargeBytes(text.memory_bytes());
    const size_t before = out_.size_bytes();
    out_.Append("\"", false);
    size_t plain = 0;  // start of the run that needs no escape
    for (size_t i = 0; i < bytes.size();) {
      const auto [c, length] = DecodeAt(bytes, i);
      const bool plain_character = c == kInvalidByte || (c != '"' && c != '\\' && c >= 0x20 &&
                                                         !(style_.ensure_ascii && c >= 0x7f));
      if (plain_character) {
        i += length;
        continue;
      }
      out_.AppendSlice(text, plain, i);
      const bool marked = text.FromInput(i);
      switch (c) {
        case '"':
          out_.Append("\\\"", marked);
          break;
        case '\\':
          out_.Append("\\\\", marked);
          break;
        case '\n':
          out_.Append("\\n", marked);
          break;
        case '\r':
          out_.Append("\\r", marked);
          break;
        case '\t':
          out_.Append("\\t", marked);
          break;
        case '\b':
          out_.Append("\\b", marked);
          break;
        case '\f':
          out_.Append("\\f", marked);
          break;
        default:
          if (c >= 0x10000) {
            WriteEscape(0xD800 + ((c - 0x10000) >> 10), marked);
            WriteEscape(0xDC00 + ((c - 0x10000) & 0x3FF), marked);
          } else {
            WriteEscape(c, marked);
          }
      }
      i += length;
      plain = i;
    }
    out_.AppendSlice(text, plain, bytes.size());
    out_.Append("\"", false);
    // Escapes are up to six times as long as what they stand for.
    const size_t grown = out_.size_bytes() - before;
    if (grown > bytes.size()) budget_.ChargeBytes(grown - bytes.size());
  }

  void Separator(const std::string& separator) {
    budget_.ChargeBytes(separator.size());
    out_.Append(separator, false);
  }

  void NewLine(int level) {
    if (!style_.pretty) return;
    budget_.ChargeBytes(1 + style_.indent.size() * static_cast<size_t>(level));
    out_.Append("\n", false);
    for (int i = 0; i < level; ++i) out_.Append(style_.indent, false);
  }

  void WriteList(const List& list, int level) {
    if (list.items.empty()) {
      out_.Append("[]", false);
      return;
    }
    out_.Append("[", false);
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) Separator(style_.item_separator);
      NewLine(level + 1);
      Write(list.items[i], level + 1);
    }
    NewLine(level);
    out_.Append("]", false);
  }

  void WriteDict(const Dict& dict, int level) {
    if (dict.entries.empty()) {
      out_.Append("{}", false);
      return;
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [this](const auto* a, const auto* b) {
        return Compare(a->first, b->first, budget_).value_or(0) < 0;
      });
    }
    out_.Append("{", false);
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) Separator(style_.item_separator);
      NewLine(level + 1);
      const Value& key = entries[i]->first;
      if (key.IsString()) {
        WriteString(key.text());
      } else if (key.IsNone() || key.IsNumber()) {
        out_.Append('"' + Scalar(key) + '"', false);
      } else {
        Raise("tojson: a key of type '{}' has no JSON form", key.TypeName());
      }
      Separator(style_.key_separator);
      Write(entries[i]->second, level + 1);
    }
    NewLine(level);
    out_.Append("}", false);
  }

  const JsonStyle& style_;
  Budget& budget_;
  MarkedText out_;
};

}  // namespace

MarkedText ToJson(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.Write(value, 0);
  return writer.Take();
}

}  // namespace moesaic::jinja
