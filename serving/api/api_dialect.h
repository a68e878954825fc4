// ApiDialect: whose API a request is written in, and so its answer. A reader for each dialect makes
// the same ApiRequest of a body; a writer for each (ApiOutput) renders the same output.
#pragma once

namespace moesaic {

enum class ApiDialect {
  kCompletions,     // OpenAI: /v1/completions
  kChat,            // OpenAI: /v1/chat/completions
  kMessages,        // Anthropic: /v1/messages
  kResponses,       // OpenAI: /v1/responses
  kOllamaChat,      // Ollama: /api/chat
  kOllamaGenerate,  // Ollama: /api/generate
};

}  // namespace moesaic
