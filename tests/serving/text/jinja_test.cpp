// The parts of the template interpreter that Jinja2 cannot be asked about: marks of every string
// operation, limits, messages, threads.

#include "serving/text/jinja/template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "serving/text/jinja/numbers.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

MarkedText Render(const std::string& source, const RenderContext& context = {},
                  const RenderOptions& options = {}) {
  return Template(source, "test").Render(context, options);
}

std::string Failure(const std::string& source, const RenderOptions& options = {}) {
  try {
    const MarkedText text = Render(source, {}, options);
    return "rendered " + std::to_string(text.size_bytes()) + " bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
}

// The output with marked bytes in brackets.
std::string Shown(const std::string& source) {
  const RenderContext context = {
      {"x", Value::String(MarkedText("in<|put|>", true))},
      {"p", Value::String(MarkedText("  ab cd \n", true))},
      {"t", Value::String("Tmpl")},
      {"d", Value::FromJson(nlohmann::ordered_json::parse(R"({"key": "v\"é", "n": 5})"), true)},
      {"l", Value::FromJson(nlohmann::ordered_json::parse(R"(["b", "A", "c"])"), true)}};
  const MarkedText text = Render(source, context);
  std::string shown;
  size_t at = 0;
  for (const MarkedText::Span& span : text.input_spans()) {
    shown += text.bytes().substr(at, span.begin - at);
    shown += "⟦" + text.bytes().substr(span.begin, span.end - span.begin) + "⟧";
    at = span.end;
  }
  return shown + text.bytes().substr(at);
}

TEST(MarkedText, SlicesKeepTheirMarks) {
  MarkedText text("abc");
  text.Append("DEF", true);
  text.Append("GH", true);
  text.Append("ij", false);
  EXPECT_EQ(text.bytes(), "abcDEFGHij");
  ASSERT_EQ(text.input_spans().size(), 1u);
  EXPECT_EQ(text.input_spans()[0], (MarkedText::Span{3, 8}));
  EXPECT_FALSE(text.FromInput(2));
  EXPECT_TRUE(text.FromInput(3));
  EXPECT_TRUE(text.FromInput(7));
  EXPECT_FALSE(text.FromInput(8));
  EXPECT_FALSE(text.FromInput(1000));
  const MarkedText slice = text.Slice(1, 5);
  EXPECT_EQ(slice.bytes(), "bcDE");
  EXPECT_EQ(slice.input_spans(), (std::vector<MarkedText::Span>{{2, 4}}));
  EXPECT_TRUE(text.Slice(8, 10).input_spans().empty());
  EXPECT_TRUE(text.Slice(4, 4).input_spans().empty());
  MarkedText joined = slice;
  joined.AppendSlice(text, 4, 9);
  EXPECT_EQ(joined.input_spans(), (std::vector<MarkedText::Span>{{2, 8}}));
}

TEST(JinjaMarks, FollowEveryStringOperation) {
  const std::pair<const char*, const char*> cases[] = {
      {"<|a|>{{ x }}<|b|>", "<|a|>⟦in<|put|>⟧<|b|>"},
      {"{{ t + x + t }}", "Tmpl⟦in<|put|>⟧Tmpl"},
      {"{{ t ~ x ~ 5 }}", "Tmpl⟦in<|put|>⟧5"},
      {"{{ (t + x)[3:6] }}", "l⟦in⟧"},
      {"{{ (t + x)[::-1] }}", "⟦>|tup|<ni⟧lpmT"},
      {"{{ (t + x)[0] }}{{ (t + x)[-1] }}", "T⟦>⟧"},
      {"{{ p | trim }}.", "⟦ab cd⟧."},
      {"{{ (t + p).strip() }}", "Tmpl⟦  ab cd⟧"},
      {"{{ (t + x) | upper }}", "TMPL⟦IN<|PUT|>⟧"},
      {"{{ (t + x) | title }}", "Tmpl⟦in<|put|>⟧"},
      {"{{ (x + t).capitalize() }}", "⟦In<|put|>⟧tmpl"},
      {"{{ x.replace('in', 'OUT') }}", "OUT⟦<|put|>⟧"},
      {"{{ t.replace('m', x) }}", "T⟦in<|put|>⟧pl"},
      {"{{ t | replace('p', x) }}", "Tm⟦in<|put|>⟧l"},
      {"{{ (t ~ ',' ~ x).split(',') | join(';') }}", "Tmpl;⟦in<|put|>⟧"},
      {"{{ p.split()[1] }}", "⟦cd⟧"},
      {"{{ x.split('|')[-1] }}{{ x.rsplit('|', 1)[0] }}", "⟦>in<|put⟧"},
      {"{{ x.partition('<')[1] }}", "<"},
      {"{{ [x, t] | join('-') }}{{ x.join(['1', '2']) }}", "⟦in<|put|>⟧-Tmpl1⟦in<|put|>⟧2"},
      {"{{ x * 2 }}", "⟦in<|put|>in<|put|>⟧"},
      {"{{ '%s=%r' % (x, t) }}", "⟦in<|put|>⟧='Tmpl'"},
      {"{{ '%5.2s|' % x }}", "   ⟦in⟧|"},
      {"{{ '%s %s' | format(t, x) }}", "Tmpl ⟦in<|put|>⟧"},
      {"{{ x % () }}", "⟦in<|put|>⟧"},
      {"{{ '{}:{a}'.format(x, a=t) }}", "⟦in<|put|>⟧:Tmpl"},
      {"{{ '{:>11}'.format(x) }}", "  ⟦in<|put|>⟧"},
      {"{{ x | list | first }}{{ x | last }}", "⟦i>⟧"},
      {"{{ x | reverse }}", "⟦>|tup|<ni⟧"},
      {"{{ [x] }}", "['⟦in<|put|>⟧']"},
      {"{{ d | tojson }}", "{\"⟦key⟧\": \"⟦v\\\"é⟧\", \"⟦n⟧\": 5}"},
      {"{{ d | tojson(indent=1, ensure_ascii=true) }}",
       "{\n \"⟦key⟧\": \"⟦v\\\"\\u00e9⟧\",\n \"⟦n⟧\": 5\n}"},
      {"{{ d }}", "{'⟦key⟧': '⟦v\"é⟧', '⟦n⟧': 5}"},
      {"{{ {'a': x} | tojson }}", "{\"a\": \"⟦in<|put|>⟧\"}"},
      {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "⟦key⟧=⟦v\"é⟧;⟦n⟧=5;"},
      {"{{ l | sort | join }}{{ l | map('upper') | join(',') }}", "⟦AbcB⟧,⟦A⟧,⟦C⟧"},
      {"{{ x | indent(2, true) }}", "  ⟦in<|put|>⟧"},
      {"{{ x.center(11, '*') }}", "*⟦in<|put|>⟧*"},
      {"{{ '<' ~ x | e }}", "<⟦in&lt;|put|&gt;⟧"},
      {"{{ none | default(x) }}{{ nope | default(x) }}", "None⟦in<|put|>⟧"},
      {"{% set y %}a{{ x }}b{% endset %}{{ y }}", "a⟦in<|put|>⟧b"},
      {"{% macro m(v) %}<{{ v }}>{% endmacro %}{{ m(x) }}{{ m(t) }}", "<⟦in<|put|>⟧><Tmpl>"},
      {"{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}{{ x }}{% endcall %}",
       "[⟦in<|put|>⟧]"},
      {"{% filter upper %}a{{ x }}{% endfilter %}", "A⟦IN<|PUT|>⟧"},
      {"{% set ns = namespace(v='') %}{% set ns.v = ns.v + x %}{{ ns.v ~ t }}", "⟦in<|put|>⟧Tmpl"},
      {"{{ x.removeprefix('in') }}{{ x.ljust(10, '.') }}", "⟦<|put|>in<|put|>⟧."},
      {"{{ (t ~ '\\n' ~ x).splitlines()[1] }}", "⟦in<|put|>⟧"},
      {"{{ strftime_now(x) }}", "⟦in<|put|>⟧"},
      {"{% for c in 'a' ~ x[:2] %}{{ c }}.{% endfor %}", "a.⟦i⟧.⟦n⟧."},
      {"{{ x.swapcase() ~ x.zfill(10) }}", "⟦IN<|PUT|>⟧0⟦in<|put|>⟧"},
      {"{{ [t, x] | unique | join(' ') }}{{ [x] | min }}", "Tmpl ⟦in<|put|>in<|put|>⟧"},
      {"{{ dict([[x, 1]]) | tojson }}", "{\"⟦in<|put|>⟧\": 1}"},
      {"{{ x if x == 'in<|put|>' else t }}", "⟦in<|put|>⟧"},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(Shown(source), expected) << source;
}

TEST(JinjaLimits, EndlessTemplatesFail) {
  const char* sources[] = {
      // time
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}",
      "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
      "{% set ns = namespace(l=range(99999) | list) %}{% for a in range(99999) %}{{ a in ns.l }}"
      "{% endfor %}",
      "{% for a in range(99999) %}{% set x = range(99999) | map('string') | sort %}{% endfor %}",
      "{{ range(99999) | unique | list | length }}",
      // memory
      "{{ 'a' * 99999999999 }}",
      "{{ [1] * 99999999999 }}",
      "{{ 'a' * (2 ** 100) }}",
      "{{ ''.ljust(99999999999) }}",
      "{{ 'a' | indent(99999999999, true) }}",
      "{{ 'a' | center(99999999999) }}",
      "{{ [1] | batch(99999999999, 0) | list }}",
      "{{ [1] | slice(99999999999) | list }}",
      "{{ [[]] | tojson(indent=99999999999) }}",
      "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}"
      "{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}",
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}"
      "{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}"
      "{% set ns.s = ns.s.join(ns.s) %}{% endfor %}",
      // shared children: a small value with an exponential walk
      "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% "
      "endfor %}"
      "{{ ns.s }}",
      "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}"
      "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% "
      "endfor %}"
      "{{ ns.s | tojson }}",
      // depth
      "{% set ns = namespace(s=[1]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor "
      "%}",
      "{% set ns = namespace(s={}) %}{% for i in range(9999) %}{% set ns.s = {'a': ns.s} %}{% "
      "endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(9999) %}{% set ns.s = [ns.s].count %}{% "
      "endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(9999) %}{% for y in [ns.s] %}"
      "{% set ns.s = loop %}{% endfor %}{% endfor %}",
      "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(1) }}",
      "{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}",
  };
  RenderOptions options;  // smaller than the defaults, to save time
  options.limits.steps = 500'000;
  options.limits.allocated_bytes = 16 << 20;
  for (const char* source : sources) {
    const std::string failure = Failure(source, options);
    EXPECT_EQ(failure.rfind("test, line 1: ", 0), 0u) << source << "\n" << failure;
  }
}

TEST(JinjaLimits, DeeplyNestedSourcesFail) {
  const auto repeat = [](const std::string& text, int count) {
    std::string result;
    for (int i = 0; i < count; ++i) result += text;
    return result;
  };
  const int kMany = 100'000;
  for (const std::string& source : {
           "{{ " + repeat("(", kMany) + "1" + repeat(")", kMany) + " }}",
           "{{ " + repeat("[", kMany) + repeat("]", kMany) + " }}",
           "{{ " + repeat("{1:", kMany) + " }}",
           "{{ " + repeat("-", kMany) + "1 }}",
           "{{ " + repeat("not ", kMany) + "1 }}",
           "{{ " + repeat("1 + ", kMany) + "1 }}",
           "{{ " + repeat("1 if 1 else ", kMany) + "1 }}",
           "{{ 1" + repeat(" if 1", kMany) + " }}",
           "{{ x" + repeat(".a", kMany) + " }}",
           "{{ x" + repeat("[0]", kMany) + " }}",
           "{{ x" + repeat("()", kMany) + " }}",
           "{{ x" + repeat(" | f", kMany) + " }}",
           "{{ x" + repeat(" is f", kMany) + " }}",
           "{{ x" + repeat(" ** 1", kMany) + " }}",
           "{{ f(" + repeat("f(", kMany) + " }}",
           repeat("{% if 1 %}", kMany),
           repeat("{% for x in y %}", kMany),
           repeat("{% macro m() %}", kMany),
           "{% for " + repeat("(", kMany) + "x in y %}",
       }) {
    const std::string failure = Failure(source);
    EXPECT_EQ(failure.rfind("test, line 1: ", 0), 0u) << source.substr(0, 40) << "\n" << failure;
  }
}

TEST(JinjaLimits, LongFlatTemplatesWork) {
  std::string source;
  for (int i = 0; i < 20'000; ++i) source += "{% if 1 %}a{% elif 2 %}b{% endif %}{{ 'x' ~ 'y' }}";
  EXPECT_EQ(Render(source).size_bytes(), 60'000u);
  std::string chain = "{{ 'a'";
  for (int i = 0; i < 200; ++i) chain += " + 'a'";
  EXPECT_EQ(Render(chain + " }}").bytes(), std::string(201, 'a'));
}

TEST(JinjaLimits, AreSettings) {
  RenderOptions options;
  options.limits.steps = 50;
  EXPECT_NE(Failure("{% for i in range(100) %}{% endfor %}", options).find("50 steps"),
            std::string::npos);
  options = {};
  EXPECT_NE(Failure("{{ 'a' * 99999999999 }}").find("536870912 bytes"), std::string::npos);
  options.limits.output_bytes = 10;
  EXPECT_NE(Failure("{{ 'a' * 11 }}", options).find("10 bytes"), std::string::npos);
  EXPECT_EQ(Failure("{{ 'a' * 10 }}", options), "rendered 10 bytes");
}

TEST(JinjaLifetimes, ValuesThatHoldThemselvesAreFreed) {
  // The leak checker of the sanitizer build is the judge.
  Render("{% set ns = namespace() %}{% set ns.self = ns %}{% set ns.list = [ns] %}{{ ns }}");
  Render("{% macro m() %}{{ m }}{% endmacro %}{% set ns = namespace(m=m) %}{{ ns.m() }}");
  Render(
      "{% set ns = namespace() %}{% for x in [ns] %}{% set ns.loop = loop %}"
      "{{ loop.changed(loop) }}{{ loop.changed([loop]) }}{% endfor %}{{ ns.loop.index }}"
      "{{ ns.loop.last }}{{ ns.loop.length }}{{ ns.loop.changed(1) }}");
  Render(
      "{% set ns = namespace() %}{% for i in range(1000) %}{% set old = ns.m %}"
      "{% macro m() %}{{ old }}{% endmacro %}{% set ns.m = m %}{% endfor %}");
  Failure("{% set ns = namespace() %}{% set ns.self = ns %}{{ raise_exception('x') }}");
}

TEST(JinjaErrors, NameTheLine) {
  EXPECT_EQ(Failure("a\nb\n{{ nope.x }}"), "test, line 3: 'nope' is undefined");
  EXPECT_EQ(Failure("{% set x = 1 %}\n\n{{ x.a.b }}"),
            "test, line 3: 'int object' has no attribute 'a'");
  EXPECT_EQ(Failure("a\n{{ 1 + \n 'x' }}"),
            "test, line 2: '+' cannot be applied to 'int' and 'str'");
  EXPECT_EQ(Failure("\n{{ raise_exception('Stop here') }}"),
            "test, line 2, refuses the conversation: Stop here");
  EXPECT_EQ(Failure("{#\n\n#}{% endfor %}"), "test, line 3: unknown or misplaced tag 'endfor'");
  EXPECT_EQ(Failure("{% if x %}\n\n"),
            "test, line 2: the template ends where '{% endif %}' was expected");
  EXPECT_EQ(Failure("{% raw %}\n{% endraw %}{{ 'a\nb' + }}"),
            "test, line 3: unexpected the end of the expression '}}'");
  EXPECT_EQ(Failure("{{ x | nosuch }}"),
            "test, line 1: the template uses the filter 'nosuch', which is not supported");
  EXPECT_EQ(Failure("{% macro m(a) %}\n{{ a.b.c }}\n{% endmacro %}\n{{ m({}) }}"),
            "test, line 2: 'dict object' has no attribute 'b'");
}

TEST(JinjaErrors, AKeyHoldsNoListAtAnyDepth) {
  EXPECT_EQ(Failure("{{ {(1, [2]): 3} }}"),
            "test, line 1: a value of type 'list' cannot be the key of a dict");
  EXPECT_EQ(Render("{{ {(1, (2,)): 3}[(1, (2,))] }}").bytes(), "3");
}

// As Python's int(text, base) and float(text).
TEST(JinjaNumbers, ParseAsInPython) {
  const auto integer = [](std::string_view text, int base) {
    const std::optional<Integer> value = ParseInteger(text, base);
    return value ? std::to_string(static_cast<int64_t>(*value)) : "none";
  };
  EXPECT_EQ(integer(" -7 ", 10), "-7");
  EXPECT_EQ(integer("+1_000", 10), "1000");
  EXPECT_EQ(integer("0x_1F", 0), "31");
  EXPECT_EQ(integer("00", 0), "0");
  EXPECT_EQ(integer("012", 0), "none");
  EXPECT_EQ(integer("012", 10), "12");
  EXPECT_EQ(integer("101", 2), "5");
  EXPECT_EQ(integer("102", 2), "none");
  EXPECT_EQ(integer("1__0", 10), "none");
  EXPECT_EQ(integer("1_", 10), "none");
  EXPECT_EQ(ParseFloat("-1_0.5"), -10.5);
  for (const char* text : {"1__0", "_1", "1_", "1_.5", "1._5", "0x1", "", "1 2"}) {
    EXPECT_FALSE(ParseFloat(text).has_value()) << text;
  }
}

TEST(JinjaThreads, OneTemplateRendersOnMany) {
  const Template shared(
      "{% set ns = namespace(t='') %}{% for x in l %}{% set ns.t = ns.t ~ x ~ 'const' %}{% endfor "
      "%}"
      "{{ ns.t }}",
      "test");
  std::vector<std::thread> threads;
  std::vector<std::string> results(4);
  for (size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&shared, &results, t] {
      for (int i = 0; i < 200; ++i) {
        const RenderContext context = {
            {"l", Value::FromList({Value::Int(static_cast<Integer>(t)), Value::Int(i)})}};
        results[t] = shared.Render(context).bytes();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < results.size(); ++t) {
    EXPECT_EQ(results[t], std::to_string(t) + "const199const");
  }
}

TEST(JinjaUnicode, InvalidBytesPassThrough) {
  const RenderContext context = {{"x", Value::String(MarkedText("a\xff\xc3(\xe2\x82", true))}};
  EXPECT_EQ(Render("{{ x | upper }}", context).bytes(), "A\xff\xc3(\xe2\x82");
  EXPECT_EQ(Render("{{ x | length }}", context).bytes(), "6");
  EXPECT_EQ(Render("{{ x[::-1][::-1] }}", context).bytes(), "a\xff\xc3(\xe2\x82");
  EXPECT_EQ(Render("{{ x | tojson }}", context).bytes(), "\"a\xff\xc3(\xe2\x82\"");
  EXPECT_EQ(Render("{{ x.strip() }}{{ x.split() | length }}", context).bytes(),
            "a\xff\xc3(\xe2\x82"
            "1");
  EXPECT_EQ(Render("{{ x | e }}{{ x.title() }}", context).size_bytes(), 12u);
}

}  // namespace
}  // namespace moesaic::jinja
