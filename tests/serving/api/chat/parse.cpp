#include "tests/serving/api/chat/parse.h"

#include <gtest/gtest.h>

#include <random>

namespace moesaic {
namespace {

constexpr int kRandomCuts = 50;

class Joined {
 public:
  void Add(const std::vector<ChatEvent>& events) {
    using Kind = ChatEvent::Kind;
    for (const ChatEvent& event : events) {
      const bool text = event.kind == Kind::kReasoning || event.kind == Kind::kContent;
      if (open_ && (!text || *open_ != event.kind)) Close();
      switch (event.kind) {
        case Kind::kReasoning:
        case Kind::kContent:
          if (!open_) out_ += event.kind == Kind::kReasoning ? "r(" : "c(";
          open_ = event.kind;
          out_ += event.text;
          break;
        case Kind::kCallBegin:
          EXPECT_EQ(event.call, calls_);
          ++calls_;
          out_ += event.text + (event.id.empty() ? "" : "#" + event.id) + ":";
          break;
        case Kind::kArguments:
          EXPECT_EQ(event.call + 1, calls_);
          out_ += event.text;
          break;
        case Kind::kCallEnd:
          EXPECT_EQ(event.call + 1, calls_);
          out_ += ";";
          break;
      }
    }
  }
  std::string Take() {
    if (open_) Close();
    return std::move(out_);
  }

 private:
  void Close() {
    out_ += ")";
    open_.reset();
  }

  std::string out_;
  std::optional<ChatEvent::Kind> open_;
  size_t calls_ = 0;
};

}  // namespace

Json TestTools() {
  return Json::parse(R"([
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
      "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
        "where": {"type": "object"}, "tags": {"type": "array", "items": {"type": "string"}},
        "metric": {"type": "boolean"},
        "notes": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}}},
    {"type": "function", "function": {"name": "write", "parameters": {"type": "object",
      "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "any"}}])");
}

ChatParserOptions OptionsFor(std::string_view tool_parser, std::string_view reasoning) {
  ChatParserOptions options;
  options.syntax = FindChatSyntax("", tool_parser, reasoning);
  options.tools = ToolSchemas(TestTools());
  options.calls = true;
  return options;
}

std::string ParseCut(const ChatParserOptions& options, const Output& output,
                     const std::vector<size_t>& cuts) {
  const std::unique_ptr<ChatParser> parser =
      MakeChatParser(std::make_shared<ChatParserOptions>(options));
  ChatEvents events;
  Joined joined;
  size_t begin = 0;
  const auto add = [&](size_t end) {
    parser->Add(std::string_view(output.text).substr(begin, end - begin), {}, events);
    joined.Add(events.Take());
    begin = end;
  };
  for (const size_t cut : cuts) add(cut);
  add(output.text.size());
  parser->Finish(output.complete, events);
  joined.Add(events.Take());
  return joined.Take();
}

std::string Parse(const ChatParserOptions& options, const Output& output) {
  return ParseCut(options, output, {});
}

std::string ParseAllCuts(const ChatParserOptions& options, const Output& output) {
  const std::string whole = Parse(options, output);
  std::vector<size_t> bytes;
  for (size_t i = 1; i < output.text.size(); ++i) {
    EXPECT_EQ(ParseCut(options, output, {i}), whole) << "cut at " << i;
    bytes.push_back(i);
  }
  EXPECT_EQ(ParseCut(options, output, bytes), whole) << "byte by byte";
  std::mt19937 random(20261124);
  for (int i = 0; i < kRandomCuts; ++i) {
    std::vector<size_t> cuts;
    for (const size_t byte : bytes) {
      if (random() % 4 == 0) cuts.push_back(byte);
    }
    EXPECT_EQ(ParseCut(options, output, cuts), whole) << "random pieces " << i;
  }
  return whole;
}

}  // namespace moesaic
