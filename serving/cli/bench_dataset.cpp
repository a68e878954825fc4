#include "serving/cli/bench_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json.h"

namespace moesaic {
namespace {

constexpr uint64_t kMaxDatasetBytes = uint64_t{1} << 30;
constexpr std::array<const char*, 16> kWords = {
    "the",   "river", "old",  "and",    "house", "number", "city",  "of",
    "water", "light", "with", "answer", "three", "music",  "stone", "year"};

LoadRequest Finish(Json body, int64_t max_tokens, int64_t prompt_tokens,
                   const BenchDatasetOptions& options) {
  body["max_tokens"] = max_tokens;
  body["temperature"] = options.temperature;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  return {body.dump(-1, ' ', false, Json::error_handler_t::replace), prompt_tokens};
}

Json UserMessage(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", text}}});
}

}  // namespace

std::vector<LoadRequest> MakeRandomRequests(const BenchDatasetOptions& options) {
  if (options.vocab_size <= kFirstRandomToken) {
    Fail(ErrorKind::kInvalidArgument, "--random-vocab-size: must be more than {}",
         kFirstRandomToken);
  }
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<int64_t> token(kFirstRandomToken, options.vocab_size - 1);
  std::uniform_int_distribution<size_t> word(0, kWords.size() - 1);
  const auto length = [&](int64_t mean) {
    const auto spread = static_cast<int64_t>(static_cast<double>(mean) * options.range_ratio);
    return std::max<int64_t>(
        1, std::uniform_int_distribution<int64_t>(mean - spread, mean + spread)(random));
  };
  std::vector<int64_t> prefix(static_cast<size_t>(options.prefix_tokens));
  std::string prefix_words;
  for (int64_t& id : prefix) {
    id = token(random);
    prefix_words += fmt::format("{} ", kWords[word(random)]);
  }

  std::vector<LoadRequest> requests;
  for (int64_t i = 0; i < options.count; ++i) {
    Json body;
    body["model"] = options.model;
    const int64_t input_tokens = length(options.input_tokens);
    const int64_t output_tokens = length(options.output_tokens);
    if (options.chat) {
      std::string text = prefix_words;
      for (int64_t n = 0; n < input_tokens; ++n) text += fmt::format("{} ", kWords[word(random)]);
      body["messages"] = UserMessage(text);
    } else {
      std::vector<int64_t> prompt = prefix;
      for (int64_t n = 0; n < input_tokens; ++n) prompt.push_back(token(random));
      body["prompt"] = prompt;
    }
    requests.push_back(
        Finish(std::move(body), output_tokens, options.prefix_tokens + input_tokens, options));
  }
  return requests;
}

std::vector<LoadRequest> ParseJsonLinesRequests(std::string_view text, const std::string& name,
                                                const BenchDatasetOptions& options) {
  std::vector<LoadRequest> distinct;
  int64_t line_number = 0;
  while (!text.empty() && static_cast<int64_t>(distinct.size()) < options.count) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto refuse = [&](const char* expected) {
      Fail(ErrorKind::kCorrupt, "{}:{}: {}", name, line_number, expected);
    };
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) refuse("not a JSON object");
    const auto prompt = json.find("prompt");
    const auto messages = json.find("messages");
    const bool has_prompt = prompt != json.end() && prompt->is_string();
    const bool has_messages = messages != json.end() && messages->is_array();
    if (!has_prompt && !(options.chat && has_messages)) {
      refuse(options.chat ? "neither \"prompt\" (a text) nor \"messages\" (a list)"
                          : "no \"prompt\" (a text)");
    }
    int64_t max_tokens = options.output_tokens;
    for (const char* key : {"max_tokens", "output_tokens"}) {
      const auto value = json.find(key);
      if (value == json.end()) continue;
      if (!value->is_number_integer() || value->get<int64_t>() < 1) {
        refuse("the number of output tokens must be a positive integer");
      }
      max_tokens = value->get<int64_t>();
    }
    Json body;
    body["model"] = options.model;
    if (!options.chat) {
      body["prompt"] = *prompt;
    } else {
      body["messages"] = has_messages ? *messages : UserMessage(prompt->get<std::string>());
    }
    distinct.push_back(Finish(std::move(body), max_tokens, 0, options));
  }
  if (distinct.empty()) Fail(ErrorKind::kCorrupt, "{}: no requests in it", name);
  std::vector<LoadRequest> requests;
  for (int64_t i = 0; i < options.count; ++i) {
    requests.push_back(distinct[static_cast<size_t>(i) % distinct.size()]);
  }
  return requests;
}

std::vector<LoadRequest> ReadJsonLinesRequests(const std::filesystem::path& file,
                                               const BenchDatasetOptions& options) {
  return ParseJsonLinesRequests(ReadTextFile(file, kMaxDatasetBytes), file.string(), options);
}

}  // namespace moesaic
