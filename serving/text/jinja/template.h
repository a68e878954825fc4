// Template: a chat template in the subset of Jinja2 that Hugging Face models use, compiled the way
// transformers does it (sandboxed, trim_blocks, lstrip_blocks, loop controls).
//
// Differences from Jinja2, all of them errors there or here, never other text: integers are 128
// bits; include, import, extends, block, autoescape and recursive loops are refused when the
// template is parsed; filters (random, urlize, ...), tests, lipsum() and methods (str.encode, ...)
// that this engine lacks are reported when they are used.
// Immutable once built; any number of threads may render it at once.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/text/jinja/budget.h"
#include "serving/text/jinja/marked_text.h"
#include "serving/text/jinja/value.h"

namespace moesaic::jinja {

// The variables that the template sees.
using RenderContext = std::vector<std::pair<std::string, Value>>;

struct RenderOptions {
  Limits limits;
  // What strftime_now() formats; the local time of the call when empty.
  std::function<std::tm()> local_time;
};

class Template {
 public:
  // Throws Error(kInvalidArgument) that says "<name>, line <n>: ...".
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // Throws Error(kInvalidArgument).
  MarkedText Render(const RenderContext& context, const RenderOptions& options = {}) const;

 private:
  struct Parsed;
  std::string name_;
  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace moesaic::jinja
