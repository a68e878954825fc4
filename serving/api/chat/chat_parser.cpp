#include "serving/api/chat/chat_parser.h"

#include <utility>

#include "serving/api/chat/harmony_parser.h"
#include "serving/api/chat/tagged_parser.h"

namespace moesaic {

std::unique_ptr<ChatParser> MakeChatParser(std::shared_ptr<const ChatParserOptions> options) {
  if (options->syntax.channels) return std::make_unique<HarmonyParser>(std::move(options));
  return std::make_unique<TaggedParser>(std::move(options));
}

}  // namespace moesaic
