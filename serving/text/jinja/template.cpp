#include "serving/text/jinja/template.h"

#include "core/base/error.h"
#include "serving/text/jinja/ast.h"
#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/lexer.h"
#include "serving/text/jinja/parser.h"

namespace moesaic::jinja {

struct Template::Parsed {
  Body body;
};

Template::Template(std::string_view source, std::string name) : name_(std::move(name)) {
  try {
    parsed_ = std::make_unique<const Parsed>(Parsed{Parse(source)});
  } catch (const SyntaxFailure& failure) {
    Fail(ErrorKind::kInvalidArgument, "{}, line {}: {}", name_, failure.line, failure.message);
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

MarkedText Template::Render(const RenderContext& context, const RenderOptions& options) const {
  Interpreter interpreter(context, options);
  try {
    return interpreter.Run(parsed_->body);
  } catch (const RenderFailure& failure) {
    if (failure.raised_by_template) {
      Fail(ErrorKind::kInvalidArgument, "{}, line {}, refuses the conversation: {}", name_,
           interpreter.line(), failure.message);
    }
    Fail(ErrorKind::kInvalidArgument, "{}, line {}: {}", name_, interpreter.line(),
         failure.message);
  }
}

}  // namespace moesaic::jinja
