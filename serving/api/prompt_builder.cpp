#include "serving/api/prompt_builder.h"

#include "serving/api/api_error.h"
#include "serving/api/continued_message.h"
#include "serving/text/chat_template.h"
#include "serving/text/tokenizer.h"

namespace moesaic {
namespace {

// Template text may name special tokens; what came from the request may not.
std::vector<TextSegment> SegmentsOf(const jinja::MarkedText& prompt) {
  const std::string_view bytes = prompt.bytes();
  std::vector<TextSegment> segments;
  size_t pos = 0;
  const auto add = [&](size_t end, bool parse_special) {
    if (end > pos) segments.push_back({bytes.substr(pos, end - pos), parse_special});
    pos = end;
  };
  for (const jinja::MarkedText::Span& span : prompt.input_spans()) {
    add(span.begin, true);
    add(span.end, false);
  }
  add(bytes.size(), true);
  return segments;
}

// Whether system text stands behind other messages, where some templates refuse it.
bool HasLateSystem(const Json& messages) {
  for (size_t i = 1; i < messages.size(); ++i) {
    if (messages[i].value("role", "") == "system") return true;
  }
  return false;
}

// All of it in one message before the others.
Json SystemFirst(const Json& messages) {
  std::string text;
  Json others = Json::array();
  for (const Json& message : messages) {
    if (message.value("role", "") != "system") {
      others.push_back(message);
    } else if (message["content"].is_string()) {
      if (!text.empty()) text += '\n';
      text += message["content"].get_ref<const std::string&>();
    }
  }
  Json result = Json::array({Json{{"role", "system"}, {"content", std::move(text)}}});
  for (Json& message : others) result.push_back(std::move(message));
  return result;
}

jinja::MarkedText RenderMessages(const ServedModel& model, const ChatInput& chat,
                                 const Json& messages) {
  return model.chat_template->Render(messages, chat.tools, chat.add_generation_prompt,
                                     chat.template_kwargs);
}

// Where it stands if the template takes it there: moving it changes the prompt's beginning, and the
// prefix cache ends there. Agents send such messages, and some templates insist on a first one.
jinja::MarkedText RenderInPlaceOrFirst(const ServedModel& model, const ChatInput& chat) {
  if (!HasLateSystem(chat.messages)) return RenderMessages(model, chat, chat.messages);
  try {
    return RenderMessages(model, chat, chat.messages);
  } catch (const Error& refused) {
    try {
      return RenderMessages(model, chat, SystemFirst(chat.messages));
    } catch (const Error&) {
      throw refused;
    }
  }
}

}  // namespace

std::vector<int32_t> EncodeText(const Tokenizer& tokenizer, std::string_view text,
                                bool add_special_tokens) {
  return tokenizer.Encode(text, {add_special_tokens, true});
}

jinja::MarkedText RenderChat(const ServedModel& model, const ChatInput& chat) {
  if (model.chat_template == nullptr) {
    throw BadParam("messages", "The model `{}` has no chat template; use /v1/completions.",
                   model.names.front());
  }
  const jinja::MarkedText prompt = RenderInPlaceOrFirst(model, chat);
  return chat.continue_final_message ? CutAfterFinalMessage(prompt, chat.messages) : prompt;
}

std::vector<int32_t> EncodeMarked(const Tokenizer& tokenizer, const jinja::MarkedText& prompt,
                                  bool add_special_tokens) {
  return tokenizer.EncodeSegments(SegmentsOf(prompt), add_special_tokens);
}

std::vector<int32_t> EncodeChat(const ServedModel& model, const ChatInput& chat,
                                bool add_special_tokens) {
  return EncodeMarked(model.engine->tokenizer(), RenderChat(model, chat), add_special_tokens);
}

size_t CountAddedTokens(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens,
                        std::string_view text) {
  size_t count = 0;
  while (count < tokens.size() && tokenizer.IsSpecial(tokens[count]) &&
         !text.starts_with(tokenizer.TokenBytes(tokens[count]))) {
    ++count;
  }
  return count;
}

}  // namespace moesaic
