#include "serving/cli/trace_prompts.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json.h"

namespace moesaic {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;

// The first of the keys that holds a text or a number, or nothing.
std::string FirstOf(const Json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto it = object.find(key);
    if (it == object.end()) continue;
    if (it->is_string() && !it->get_ref<const std::string&>().empty()) return *it;
    if (it->is_number_integer()) return it->dump();
    if (it->is_array() && !it->empty() && it->front().is_string()) return it->front();
  }
  return "";
}

}  // namespace

std::vector<TracePrompt> ParseTracePrompts(std::string_view text, const std::string& name,
                                           const std::string& default_domain) {
  std::vector<TracePrompt> prompts;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    TracePrompt prompt;
    if (line.starts_with('{')) {
      const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!object.is_object()) {
        Fail(ErrorKind::kCorrupt, "{}:{}: begins like a JSON object but is none", name, number);
      }
      prompt.text =
          FirstOf(object, {"prompt", "question", "instruction", "text", "input", "turns"});
      if (prompt.text.empty()) {
        Fail(ErrorKind::kCorrupt,
             "{}:{}: has no prompt (prompt, question, instruction, text, input or turns)", name,
             number);
      }
      prompt.id = FirstOf(object, {"id", "question_id", "task_id"});
      prompt.domain = FirstOf(object, {"domain", "category", "subject"});
    } else {
      prompt.text = line;
    }
    if (prompt.id.empty()) prompt.id = fmt::format("{}:{}", name, number);
    if (prompt.domain.empty()) prompt.domain = default_domain;
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::vector<TracePrompt> ReadTracePrompts(const std::filesystem::path& file,
                                          const std::string& default_domain) {
  return ParseTracePrompts(ReadTextFile(file, kMaxFileBytes), file.filename().string(),
                           default_domain);
}

}  // namespace moesaic
