#include "serving/text/chat_template.h"

#include <optional>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "serving/text/chat_messages.h"

namespace moesaic {
namespace {

using jinja::MarkedText;
using jinja::RenderContext;
using jinja::Template;
using jinja::Value;

RenderContext MakeContext(const RenderContext& special_tokens, const Json& messages,
                          const Json& tools, bool add_generation_prompt) {
  RenderContext context = special_tokens;
  context.emplace_back("messages", Value::FromJson(messages, /*from_input=*/true));
  const bool has_tools = !tools.is_null() && !tools.empty();
  context.emplace_back("tools", has_tools ? Value::FromJson(tools, true) : jinja::None{});
  context.emplace_back("documents", jinja::None{});
  context.emplace_back("add_generation_prompt", Value::Bool(add_generation_prompt));
  return context;
}

// What a template makes of one conversation with a tool call of this form; nullopt when the call
// is not in the prompt as the model was trained to write it.
std::optional<std::string> ProbeToolCall(const Template& chat_template,
                                         const RenderContext& special_tokens,
                                         const MessageForm& form) {
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "probe_tool",
      "description": "probes", "parameters": {"type": "object", "properties": {}}}}])");
  const Json messages = Json::parse(R"([{"role": "user", "content": "question"},
      {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdefghi", "type": "function",
       "function": {"name": "probe_call", "arguments": {"probe_key": "probe_value"}}}]},
      {"role": "tool", "name": "probe_call", "tool_call_id": "abcdefghi", "content": "answer"}])");
  try {
    const std::string text =
        chat_template
            .Render(MakeContext(special_tokens, NormalizeMessages(messages, form), tools, true))
            .bytes();
    for (const char* wanted : {"probe_call", "probe_key", "probe_value"}) {
      if (text.find(wanted) == std::string::npos) return std::nullopt;
    }
    // An object printed as Python does it, or JSON text that was encoded again.
    for (const char* unwanted : {"'probe_key'", "\\\"probe_key"}) {
      if (text.find(unwanted) != std::string::npos) return std::nullopt;
    }
    return text;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Tries the forms in turn, those that most templates take first.
MessageForm FindMessageForm(const Template& chat_template, const RenderContext& special_tokens) {
  using Arguments = MessageForm::Arguments;
  for (const Arguments arguments : {Arguments::kObject, Arguments::kText}) {
    MessageForm form;
    form.arguments = arguments;
    const bool takes_empty = ProbeToolCall(chat_template, special_tokens, form).has_value();
    form.null_for_empty = true;
    const bool takes_null = ProbeToolCall(chat_template, special_tokens, form).has_value();
    if (takes_empty) {
      form.null_for_empty = false;
      form.empty_for_null = !takes_null;
      return form;
    }
    if (takes_null) return form;
  }
  return {};
}

}  // namespace

struct ChatTemplate::Variant {
  explicit Variant(std::string why) : why_unusable(std::move(why)) {}
  Variant(const std::string& name, const std::string& source, const RenderContext& special_tokens) {
    try {
      compiled.emplace(source, name);
      form = FindMessageForm(*compiled, special_tokens);
      form.thinking = source.find("message.thinking") != std::string::npos;
    } catch (const Error& error) {
      why_unusable = error.what();
    }
  }

  std::optional<Template> compiled;  // nullopt: why_unusable
  MessageForm form;
  std::string why_unusable;
};

ChatTemplate::ChatTemplate(std::string name, const std::string& source,
                           const std::string& with_tools_source,
                           const SpecialTokens& special_tokens)
    : name_(std::move(name)), text_(source + "\n" + with_tools_source) {
  for (const auto& [key, text] : special_tokens) {
    special_tokens_.emplace_back(key, Value::String(text));
  }
  plain_ = std::make_unique<const Variant>(name_, source, special_tokens_);
  if (!with_tools_source.empty()) {
    with_tools_ = std::make_unique<const Variant>(name_, with_tools_source, special_tokens_);
  }
}

ChatTemplate::ChatTemplate(std::string why_unusable)
    : plain_(std::make_unique<const Variant>(std::move(why_unusable))) {}

const std::string& ChatTemplate::why_unusable() const { return plain_->why_unusable; }

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

MarkedText ChatTemplate::Render(const Json& messages, const Json& tools, bool add_generation_prompt,
                                const Json& template_kwargs,
                                const jinja::RenderOptions& options) const {
  CheckTools(tools);
  const bool has_tools = !tools.is_null() && !tools.empty();
  const Variant& variant = has_tools && with_tools_ != nullptr ? *with_tools_ : *plain_;
  if (!variant.compiled) {
    Fail(ErrorKind::kInvalidArgument,
         "this model cannot chat, because its chat template cannot be used: {}; prompts without a "
         "template work",
         variant.why_unusable);
  }
  RenderContext context;
  try {
    context = MakeContext(special_tokens_, NormalizeMessages(messages, variant.form), tools,
                          add_generation_prompt);
    if (!template_kwargs.is_null() && !template_kwargs.is_object()) {
      Fail(ErrorKind::kInvalidArgument, "the template arguments have to be an object");
    }
    for (const auto& [key, value] : template_kwargs.items()) {
      if (key == "messages" || key == "tools" || key == "add_generation_prompt") {
        Fail(ErrorKind::kInvalidArgument,
             "'{}' cannot be a template argument; give it beside the template arguments", key);
      }
      context.emplace_back(key, Value::FromJson(value, /*from_input=*/true));
    }
  } catch (const jinja::RenderFailure& failure) {
    Fail(ErrorKind::kInvalidArgument, "{}", failure.message);
  }
  return variant.compiled->Render(context, options);
}

}  // namespace moesaic
