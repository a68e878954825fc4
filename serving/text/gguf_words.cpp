// The patterns are those of the tokenizer.json files of the models that the names stand for.
#include "serving/text/gguf_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

using nlohmann::json;

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// DeepSeek-V3 cuts three times, one after the other.
constexpr const char* kDeepseekV3Numbers = R"(\p{N}{1,3})";
constexpr const char* kDeepseekV3Han = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr const char* kDeepseekV3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// DeepSeek-LLM (V2 too) lists the cased letters of its day one by one.
constexpr const char* kDeepseekLlmLetters =
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-"
    "\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+";
constexpr const char* kDeepseekLlmPunctuation =
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";
constexpr const char* kDeepseekLlmHan = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";

json Split(const char* pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}
// With GPT-2's own pattern, or only the mapping of bytes to characters.
json ByteLevel(bool words) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", words}};
}
json Digits() { return {{"type", "Digits"}, {"individual_digits", true}}; }
json Sequence(std::vector<json> steps) {
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}
json Cut(std::initializer_list<const char*> patterns) {
  std::vector<json> steps;
  for (const char* const pattern : patterns) steps.push_back(Split(pattern));
  steps.push_back(ByteLevel(false));
  return Sequence(std::move(steps));
}

GgufWords Llama3() { return {nullptr, Cut({kLlama3}), true, true}; }
GgufWords Glm4() { return {nullptr, Cut({kLlama3})}; }
GgufWords Qwen2() { return {{{"type", "NFC"}}, Cut({kQwen2})}; }
GgufWords Qwen35() { return {{{"type", "NFC"}}, Cut({kQwen35})}; }
GgufWords Gpt4o() { return {nullptr, Cut({kGpt4o})}; }
GgufWords DeepseekV3() {
  return {nullptr, Cut({kDeepseekV3Numbers, kDeepseekV3Han, kDeepseekV3Words})};
}
GgufWords DeepseekLlm() {
  return {nullptr,
          Sequence({Split("[\r\n]"), Split(kDeepseekLlmLetters), Split(kDeepseekLlmPunctuation),
                    Split("\\s+$"), Split(kDeepseekLlmHan), Digits(), ByteLevel(false)})};
}
GgufWords Gpt2() { return {nullptr, ByteLevel(true)}; }
GgufWords Olmo() { return {{{"type", "NFC"}}, ByteLevel(true)}; }
GgufWords Starcoder() { return {nullptr, Sequence({Digits(), ByteLevel(true)})}; }

struct NamedWords {
  std::string_view pre;
  GgufWords (*make)();
};
// The names that llama.cpp's converter gives to the tokenizers of models with experts, and those of
// its test vocabularies.
constexpr NamedWords kWords[] = {
    {"qwen2", Qwen2},
    {"deepseek-r1-qwen", Qwen2},
    {"qwen35", Qwen35},
    {"llama-bpe", Llama3},
    {"llama3", Llama3},
    {"llama-v3", Llama3},
    {"dbrx", Glm4},
    {"glm4", Glm4},
    {"chatglm-bpe", Glm4},
    {"gpt-4o", Gpt4o},
    {"llama4", Gpt4o},
    {"minimax-m2", Gpt4o},
    {"deepseek-v3", DeepseekV3},
    {"hunyuan-dense", DeepseekV3},
    {"deepseek-llm", DeepseekLlm},
    {"gpt-2", Gpt2},
    {"olmo", Olmo},
    {"starcoder", Starcoder},
    {"refact", Starcoder},
};

}  // namespace

GgufWords FindGgufWords(std::string_view pre, std::string_view where) {
  for (const NamedWords& words : kWords) {
    if (words.pre == pre) return words.make();
  }
  std::string known;
  for (const NamedWords& words : kWords) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", words.pre);
  }
  Fail(ErrorKind::kUnsupported,
       "{}: is \"{}\", whose rules are not known here; known are {}. Give the directory of the "
       "original tokenizer.json with --tokenizer",
       where, pre.substr(0, 60), known);
}

}  // namespace moesaic
