// continue_final_message: the prompt ends within the last message, so that the model goes on
// writing it. Pure.
#pragma once

#include "serving/api/json_text.h"
#include "serving/text/jinja/marked_text.h"

namespace moesaic {

// `prompt`, rendered from `messages` without a generation prompt, cut behind the last message's
// content, as transformers' apply_chat_template does: a template may have trimmed the content.
// Throws ApiError (400) when the content is not in the prompt.
jinja::MarkedText CutAfterFinalMessage(const jinja::MarkedText& prompt, const Json& messages);

}  // namespace moesaic
