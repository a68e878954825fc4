// Searching in texts, and that no operation does work for which it does not charge.

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "core/base/error.h"
#include "serving/text/jinja/template.h"
#include "serving/text/jinja/text_search.h"

namespace moesaic::jinja {
namespace {

constexpr size_t kNowhere = std::string::npos;

TEST(JinjaSearch, FindsWhatTheStandardLibraryFinds) {
  const uint32_t seed = 20261;
  std::mt19937 random(seed);
  Budget budget{Limits{}};
  const auto text = [&](size_t most, int letters) {
    std::string result(random() % (most + 1), 'a');
    for (char& c : result) c = static_cast<char>('a' + random() % static_cast<unsigned>(letters));
    return result;
  };
  for (int i = 0; i < 20'000; ++i) {
    const int letters = 1 + i % 3;
    const std::string hay = text(40, letters);
    const std::string wanted = text(6, letters);
    const size_t from = random() % (hay.size() + 1);
    EXPECT_EQ(FindText(hay, wanted, from, budget), hay.find(wanted, from))
        << hay << " " << wanted << " " << from << ", seed " << seed;
    const size_t last = from < wanted.size() ? kNowhere : hay.rfind(wanted, from - wanted.size());
    EXPECT_EQ(LastTextFinder(wanted, budget).Find(hay, from), last)
        << hay << " " << wanted << " " << from << ", seed " << seed;
  }
}

// Looking for aa...ab in aa...aa takes std::string::find the product of both lengths: hours here.
TEST(JinjaSearch, IsLinearForTheWorstTexts) {
  Budget budget{Limits{}};
  constexpr size_t kBytes = 32 << 20;
  const std::string hay(kBytes, 'a');
  const std::string half(kBytes / 2, 'a');
  EXPECT_EQ(FindText(hay, half + "b", 0, budget), kNowhere);
  EXPECT_EQ(LastTextFinder("b" + half, budget).Find(hay, kBytes), kNowhere);
  EXPECT_EQ(LastTextFinder(half + "b", budget).Find(hay, kBytes), kNowhere);
  EXPECT_EQ(FindText(hay, half, 0, budget), 0u);
  EXPECT_EQ(LastTextFinder(half, budget).Find(hay, kBytes), kBytes / 2);
}

TEST(JinjaSearch, ChargesForWhatItLooksAt) {
  const std::string hay(1600, 'a');
  const auto passes = [](uint64_t steps, const auto& search) {
    Limits limits;
    limits.steps = steps;
    Budget budget(limits);
    try {
      search(budget);
      return true;
    } catch (const RenderFailure&) {
      return false;
    }
  };
  const auto first = [&](Budget& budget) { FindText(hay, "b", 0, budget); };
  const auto last = [&](Budget& budget) { LastTextFinder("b", budget).Find(hay, hay.size()); };
  const auto last_of_two = [&](Budget& budget) {
    LastTextFinder("ab", budget).Find(hay, hay.size());
  };
  for (const auto& search :
       {std::function<void(Budget&)>(first), std::function<void(Budget&)>(last),
        std::function<void(Budget&)>(last_of_two)}) {
    EXPECT_FALSE(passes(99, search));
    EXPECT_TRUE(passes(100, search));
  }
  EXPECT_TRUE(passes(0, [&](Budget& budget) { FindText(hay, "a", 0, budget); }));
}

// Each of these did, for a few steps, what takes far more: 10,000 times a megabyte, or a walk over
// two to the power of 99 tuples.
TEST(JinjaLimits, NothingIsDoneFree) {
  const std::string texts =
      "{% set a = 'a' * 1000 * 1000 %}{% set b = a ~ 'b' %}{% set c = a ~ 'c' %}";
  const auto often = [&](const std::string& expression) {
    return texts + "{% for i in range(9999) %}{% if " + expression + " %}{% endif %}{% endfor %}";
  };
  const std::string sources[] = {
      often("b in c"),
      often("c.find(b) > 0"),
      often("c.rfind(b) > 0"),
      often("c.count(b)"),
      often("b is sameas c"),
      often("b == c"),
      often("b < c"),
      often("c.removeprefix(b) is none"),
      often("c.removesuffix(b) is none"),
      often("c.endswith(b)"),
      often("c.startswith(b)"),
      often("c.isdigit()") + often("a.isalpha()"),
      often("c | int(0)"),
      often("c | float(0)"),
      often("none | attr(c) is defined"),
      often("strftime_now('x')"),
      texts + "{% set d = {b: 1} %}{% for i in range(9999) %}{% if d[b] %}{% endif %}{% endfor %}",
      texts + "{% if c.startswith((b,) * 9999) %}{% endif %}",
      // each character of the text in each of the set
      "{{ ('a' * 400 * 1000).strip('b' * 100 * 1000 ~ 'a') }}",
      "{{ ('a' * 400 * 1000) | trim('b' * 100 * 1000 ~ 'a') }}",
      "{% for i in range(9999) %}{% if (' ' * 1000).strip() %}{% endif %}{% endfor %}",
      texts + "{% if range(99) | list | tojson(separators=[a, ':']) %}{% endif %}",
      texts + "{% if {'x': 1, 'y': 2, 'z': 3} | tojson(separators=[',', a * 6]) %}{% endif %}",
      "{% set ns = namespace(p=('n.' * 100 * 1000) ~ 'n') %}{% set ns.n = ns %}"
      "{% for i in range(9) %}{% if [ns] | map(attribute=ns.p) | list %}{% endif %}{% endfor %}",
      "{% set ns = namespace(t=(1,)) %}{% for i in range(99) %}{% set ns.t = (ns.t, ns.t) %}"
      "{% endfor %}{{ ns.t in {} }}",
      "{% set ns = namespace(t=(1,)) %}{% for i in range(99) %}{% set ns.t = (ns.t, ns.t) %}"
      "{% endfor %}{{ {ns.t: 1} }}",
      "{% set ns = namespace(t=(1,)) %}{% for i in range(99) %}{% set ns.t = (ns.t, ns.t) %}"
      "{% endfor %}{{ [ns.t] | unique | list | length }}",
  };
  RenderOptions options;
  options.limits.steps = 500'000;
  options.limits.allocated_bytes = 16 << 20;
  for (const std::string& source : sources) {
    try {
      Template(source, "test").Render({}, options);
      ADD_FAILURE() << source;
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_TRUE(what.find("steps") != std::string::npos ||
                  what.find("bytes of values") != std::string::npos)
          << source << "\n"
          << what;
    }
  }
}

// Marks take memory, too: 16 bytes for each change between the input's text and the template's.
TEST(JinjaLimits, MarksCount) {
  std::string source = "{% set s = (x ~ '-') * 1000 %}";
  for (int i = 0; i < 9; ++i) source += "{% set s = s ~ '' %}";
  const RenderContext context = {{"x", Value::String(MarkedText("x", true))}};
  RenderOptions options;
  options.limits.allocated_bytes = 100'000;  // 40 KB of text
  EXPECT_THROW(Template(source, "test").Render(context, options), Error);
  options.limits.allocated_bytes = 1'000'000;
  EXPECT_NO_THROW(Template(source, "test").Render(context, options));
}

TEST(JinjaErrors, WhatIsNotSupportedIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ [1] | random }}", "the filter 'random'"},
      {"{{ 'x' | urlize }}", "the filter 'urlize'"},
      {"{{ 1 is nosuch }}", "the test 'nosuch'"},
      {"{{ lipsum(n=1) }}", "lipsum()"},
      {"{{ 'x'.encode('utf-8') }}", "str.encode()"},
      {"{{ 'x'.expandtabs() }}", "str.expandtabs()"},
      {"{% for x in [] recursive %}{% endfor %}", "a recursive loop"},
      {"{% include 'x' %}", "the tag 'include'"},
  };
  for (const auto& [source, what] : cases) {
    try {
      Template(source, "test").Render({});
      ADD_FAILURE() << source;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), std::string("test, line 1: the template uses ") + what +
                                  ", which is not supported");
    }
  }
  // Where the conversation does not come there, it is no error.
  EXPECT_EQ(
      Template("{% if false %}{{ 'x'.encode() | random }}{% endif %}ok", "test").Render({}).bytes(),
      "ok");
}

}  // namespace
}  // namespace moesaic::jinja
