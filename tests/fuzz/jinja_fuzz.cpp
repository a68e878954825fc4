// A chat template out of arbitrary bytes, rendered for a fixed conversation: any outcome but an
// Error is a fault, and so is one that takes long.

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/text/jinja/template.h"

namespace {

using moesaic::jinja::MarkedText;
using moesaic::jinja::None;
using moesaic::jinja::RenderContext;
using moesaic::jinja::RenderOptions;
using moesaic::jinja::Template;
using moesaic::jinja::Value;

RenderContext MakeContext() {
  const auto json = nlohmann::ordered_json::parse(R"json({
    "messages": [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": "Grüße <|im_end|> 世界\u2028"},
                 {"role": "assistant", "content": null, "tool_calls":
                   [{"id": "123456789", "type": "function",
                     "function": {"name": "f", "arguments": {"a": [1, 2.5, true, null]}}}]},
                 {"role": "tool", "content": "ok"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d",
               "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}}],
    "s": "Hello World", "n": 7, "f": 2.5, "big": 18446744073709551615, "list": [3, 1, 2],
    "d": {"b": 1, "a": 2}})json");
  RenderContext context;
  for (const auto& [name, value] : json.items()) {
    context.emplace_back(name, Value::FromJson(value, /*from_input=*/true));
  }
  context.emplace_back("bos_token", Value::String("<s>"));
  context.emplace_back("add_generation_prompt", Value::Bool(true));
  context.emplace_back("documents", None{});
  return context;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  static const RenderContext context = MakeContext();
  RenderOptions options;
  options.limits.steps = 200'000;
  options.limits.allocated_bytes = size_t{16} << 20;
  options.local_time = [] { return std::tm{}; };
  try {
    const Template compiled(std::string_view(reinterpret_cast<const char*>(data), size_bytes),
                            "fuzz");
    const MarkedText text = compiled.Render(context, options);
    size_t end = 0;
    bool first = true;
    for (const MarkedText::Span& span : text.input_spans()) {
      CHECK(first || span.begin > end);  // sorted, disjoint, not touching
      CHECK_LT(span.begin, span.end);
      end = span.end;
      first = false;
    }
    CHECK_LE(end, text.size_bytes());
  } catch (const moesaic::Error&) {
  }
  return 0;
}
