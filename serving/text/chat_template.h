// ChatTemplate: turns the messages of a conversation into the prompt that the model was trained on.
//
// The prompt is MarkedText: what came from the request (contents, names, tools, template
// arguments) is marked, so that the tokenizer parses "<|im_end|>" only where the template wrote it.
// A border between marked and other text is no border between words: tokenize the joined text.
// Immutable; any number of threads may render at once.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "serving/text/jinja/marked_text.h"
#include "serving/text/jinja/template.h"

namespace moesaic {

class ChatTemplate {
 public:
  // Variables such as bos_token, with their text. Not marked: they are the model's own.
  using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

  // `name` is how messages call the template (a file's name). `with_tools_source` is used instead
  // when tools are given; empty: there is none. A source that is no valid template is no error
  // here: the model can do all but chat, and Render says why.
  ChatTemplate(std::string name, const std::string& source, const std::string& with_tools_source,
               const SpecialTokens& special_tokens);
  // No source is of use: every Render throws this reason.
  explicit ChatTemplate(std::string why_unusable);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // messages: an array of {role, content, ...}. Content is a string or parts {type: "text", text},
  // which are joined with line breaks; it may be absent where there are tool_calls, whose
  // arguments may be an object or the text of one. tools: null or an array of objects.
  // template_kwargs: null or an object of further variables (enable_thinking, documents, ...).
  // Throws Error(kInvalidArgument): a message is malformed (the text says which), the template
  // refuses the conversation, fails on it or is no valid template (the text says the line).
  jinja::MarkedText Render(const nlohmann::ordered_json& messages,
                           const nlohmann::ordered_json& tools, bool add_generation_prompt,
                           const nlohmann::ordered_json& template_kwargs,
                           const jinja::RenderOptions& options = {}) const;

  // Why every conversation without tools is refused; empty: it is not.
  const std::string& why_unusable() const;
  // What the template is made of: it tells what the model was trained to write.
  const std::string& text() const { return text_; }

 private:
  struct Variant;
  std::string name_;
  std::string text_;
  jinja::RenderContext special_tokens_;
  std::unique_ptr<const Variant> plain_;
  std::unique_ptr<const Variant> with_tools_;  // may be null
};

// The template of a Hugging Face model directory: chat_template.jinja (and
// additional_chat_templates/tool_use.jinja), else `chat_template` of chat_template.json or
// tokenizer_config.json: a string, or a list of {name, template} with "default" and perhaps
// "tool_use". Null when the model has none; that is a base model, good for completions only.
// A template that does not parse and a list without a usable entry are logged; the result then
// refuses what it is asked to render. Throws Error(kCorrupt) for files that are not what they
// should be.
//
// Of a GGUF model (core/io/gguf.h): tokenizer.chat_template and tokenizer.chat_template.tool_use of
// its metadata.
//
// `instead`: a file with the template to use in place of the model's; empty: none.
std::unique_ptr<const ChatTemplate> LoadChatTemplate(const std::filesystem::path& model_dir,
                                                     const std::filesystem::path& instead = {});

}  // namespace moesaic
