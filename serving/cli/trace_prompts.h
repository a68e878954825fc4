// The prompts that `moesaic trace record` runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct TracePrompt {
  std::string id;
  std::string domain;
  std::string text;
};

// A file of JSON lines or of plain lines, one prompt each. Of an object the prompt is the first of
// prompt, question, instruction, text, input, or the first of turns; the id is id, question_id or
// task_id; the domain is domain, category or subject. What has none gets FILE:LINE, and
// `default_domain`. Empty lines are passed over. Throws Error (kNotFound, kIo, kCorrupt) naming
// file and line.
std::vector<TracePrompt> ReadTracePrompts(const std::filesystem::path& file,
                                          const std::string& default_domain);
std::vector<TracePrompt> ParseTracePrompts(std::string_view text, const std::string& name,
                                           const std::string& default_domain);

}  // namespace moesaic
