#include "serving/online/engine_parts.h"

#include <filesystem>

#include "serving/engine/engine_loop.h"
#include "serving/text/id_tokenizer.h"

namespace moesaic {

std::unique_ptr<Tokenizer> LoadTokenizerOf(const EngineOptions& options,
                                           const ModelConfig& config) {
  const std::filesystem::path& files = options.text_files();
  if (options.load_format == LoadFormat::kDummy &&
      !std::filesystem::exists(files / "tokenizer.json") &&
      !std::filesystem::exists(files / "tokenizer.model") &&
      !std::filesystem::exists(files / "tiktoken.model")) {
    return MakeIdTokenizer(static_cast<int32_t>(config.vocab_size));
  }
  return LoadTokenizer(files);
}

void FillParts(const EngineOptions& options, const ModelFiles& files, LoopParts& parts) {
  parts.kernels = *files.kernels;
  parts.config = files.config;
  parts.defaults = LoadGenerationDefaults(options.model_dir);
  parts.eos_token_ids = parts.defaults.eos_token_ids.empty() ? parts.config.eos_token_ids
                                                             : parts.defaults.eos_token_ids;
  parts.tokenizer = LoadTokenizerOf(options, parts.config);
  parts.pool = std::make_unique<ThreadPool>(options.threads, options.thread_layout);
}

}  // namespace moesaic
