// A model's output through a ChatParser, cut in every way, as one line a test can compare.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serving/api/chat/chat_parser.h"

namespace moesaic {

// Tools for the tests: weather(city: string, days: integer, where: object, notes: string or null),
// write(path: string, content: string), and any(...), of which nothing is known.
Json TestTools();

// Of the syntax by vLLM's names, with tools.
ChatParserOptions OptionsFor(std::string_view tool_parser, std::string_view reasoning = "none");

struct Output {
  std::string text;
  bool complete = true;
};

// "r(..)" reasoning, "c(..)" content, "NAME#ID{arguments}" a call, "NAME#ID{arguments" one without
// its end. The text goes in as one piece.
std::string Parse(const ChatParserOptions& options, const Output& output);
// The same in these pieces, which begin at `cuts`.
std::string ParseCut(const ChatParserOptions& options, const Output& output,
                     const std::vector<size_t>& cuts);
// Parse, and a failure where another cut of the text gives something else: at every byte, byte by
// byte, and in random pieces.
std::string ParseAllCuts(const ChatParserOptions& options, const Output& output);

}  // namespace moesaic
