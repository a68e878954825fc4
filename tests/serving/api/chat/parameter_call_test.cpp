// Calls whose parameters are tags around bare text: Qwen3-Coder, MiniMax, DSML, GLM.
#include <gtest/gtest.h>

#include "tests/serving/api/chat/parse.h"

namespace moesaic {
namespace {

std::string Qwen(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("qwen3_coder"), {text, complete});
}
std::string MiniMax(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("minimax_m2"), {text, complete});
}
std::string Dsml(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("deepseek_v32"), {text, complete});
}
std::string Glm(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("glm45"), {text, complete});
}
// Of a value of weather's parameter, or with "any" of a tool without schema.
std::string QwenValue(const std::string& tool, const std::string& parameter,
                      const std::string& value) {
  const std::string call = Qwen("<tool_call>\n<function=" + tool + ">\n<parameter=" + parameter +
                                ">\n" + value + "\n</parameter>\n</function>\n</tool_call>");
  const std::string begin = tool + ":{\"" + parameter + "\": ";
  EXPECT_TRUE(call.starts_with(begin) && call.ends_with("};")) << call;
  return call.substr(begin.size(), call.size() - begin.size() - 2);
}

TEST(QwenCoderTest, ACall) {
  EXPECT_EQ(Qwen("I write.\n<tool_call>\n<function=write>\n<parameter=path>\na.txt\n</parameter>\n"
                 "<parameter=content>\nline \"1\"\n\tline\\2\n\n</parameter>\n</function>\n"
                 "</tool_call>"),
            R"(c(I write.)write:{"path": "a.txt", "content": "line \"1\"\n\tline\\2\n"};)");
}

TEST(QwenCoderTest, ParallelAndEmpty) {
  EXPECT_EQ(
      Qwen("<tool_call>\n<function=any>\n</function>\n</tool_call>\n<tool_call>\n"
           "<function=weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"),
      R"(any:{};weather:{"days": 3};)");
}

TEST(QwenCoderTest, TypesComeFromTheSchema) {
  EXPECT_EQ(QwenValue("weather", "city", "5"), R"("5")");
  EXPECT_EQ(QwenValue("weather", "city", "true"), R"("true")");
  EXPECT_EQ(QwenValue("weather", "city", "{\"a\": 1}"), R"("{\"a\": 1}")");
  EXPECT_EQ(QwenValue("weather", "city", ""), R"("")");
  EXPECT_EQ(QwenValue("weather", "days", "5"), "5");
  EXPECT_EQ(QwenValue("weather", "days", " 5 "), "5");
  EXPECT_EQ(QwenValue("weather", "days", "five"), R"("five")");
  EXPECT_EQ(QwenValue("weather", "days", "1e999"), "1e999");  // JSON, if more than a double
  EXPECT_EQ(QwenValue("weather", "days", "1e"), R"("1e")");
  EXPECT_EQ(QwenValue("weather", "days", "01e999"), R"("01e999")");
  EXPECT_EQ(QwenValue("weather", "metric", "True"), "true");
  EXPECT_EQ(QwenValue("weather", "metric", "false"), "false");
  EXPECT_EQ(QwenValue("weather", "where", "{\"x\": {\"y\": [1, \"}\"]}} "),
            R"({"x": {"y": [1, "}"]}})");
  EXPECT_EQ(QwenValue("weather", "tags", "[\"a\", \"b\"]"), R"(["a", "b"])");
  EXPECT_EQ(QwenValue("weather", "tags", "a, b"), R"("a, b")");
  EXPECT_EQ(QwenValue("weather", "where", "{'x': 1}"), R"("{'x': 1}")");
  EXPECT_EQ(QwenValue("weather", "notes", "null"), "null");
  EXPECT_EQ(QwenValue("weather", "notes", "None"), "null");
  EXPECT_EQ(QwenValue("weather", "notes", "nullify"), R"("nullify")");
  EXPECT_EQ(QwenValue("weather", "notes", "nul"), R"("nul")");
  EXPECT_EQ(QwenValue("weather", "notes", "7"), R"("7")");
}

// What no schema types is JSON where it can be nothing else that a template would write.
TEST(QwenCoderTest, UntypedValues) {
  EXPECT_EQ(QwenValue("any", "x", "5"), "5");
  EXPECT_EQ(QwenValue("any", "x", "-1.5e3"), "-1.5e3");
  EXPECT_EQ(QwenValue("any", "x", "5 apples"), R"("5 apples")");
  EXPECT_EQ(QwenValue("any", "x", "1-2-3"), R"("1-2-3")");
  EXPECT_EQ(QwenValue("any", "x", "true"), "true");
  EXPECT_EQ(QwenValue("any", "x", "True"), "true");
  EXPECT_EQ(QwenValue("any", "x", "trueish"), R"("trueish")");
  EXPECT_EQ(QwenValue("any", "x", "the end"), R"("the end")");
  EXPECT_EQ(QwenValue("any", "x", "\"quoted\""), R"("\"quoted\"")");
  EXPECT_EQ(QwenValue("any", "x", "[1, 2]"), "[1, 2]");
  EXPECT_EQ(QwenValue("any", "x", "[draft] text"), R"("[draft] text")");
  EXPECT_EQ(QwenValue("any", "x", "{\"a\": [}"), R"("{\"a\": [}")");
  EXPECT_EQ(QwenValue("any", "x", std::string(80, '1')), '"' + std::string(80, '1') + '"');
  EXPECT_EQ(QwenValue("weather", "unknown", "7"), "7");
}

TEST(QwenCoderTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(QwenValue("write", "content", "\r\x01\x1f \xC3\xA9"), "\"\\r\\u0001\\u001f \xC3\xA9\"");
}

// vLLM #30439: a long string must not wait for its end.
TEST(QwenCoderTest, StringsGoOutAsTheyCome) {
  const std::unique_ptr<ChatParser> parser =
      MakeChatParser(std::make_shared<ChatParserOptions>(OptionsFor("qwen3_coder")));
  ChatEvents events;
  const auto add = [&](std::string_view text) {
    parser->Add(text, {}, events);
    std::string arguments;
    for (const ChatEvent& event : events.Take()) arguments += event.text;
    return arguments;
  };
  EXPECT_EQ(add("<tool_call>\n<function=write>\n<parameter=content>\n"), R"(write{"content": ")");
  EXPECT_EQ(add("one"), "one");
  EXPECT_EQ(add(" \"two\"\n"), " \\\"two\\\"");  // the line break may be the tag's
  EXPECT_EQ(add("three</para"), "\\nthree");
  EXPECT_EQ(add("graph>"), "</paragraph>");
  EXPECT_EQ(add("</parameter>"), "\"");
}

TEST(QwenCoderTest, ObjectsGoOutAsTheyCome) {
  const std::unique_ptr<ChatParser> parser =
      MakeChatParser(std::make_shared<ChatParserOptions>(OptionsFor("qwen3_coder")));
  ChatEvents events;
  parser->Add("<tool_call><function=weather><parameter=where>{\"lat\": 1", {}, events);
  std::string arguments;
  for (const ChatEvent& event : events.Take()) arguments += event.text;
  EXPECT_EQ(arguments, R"(weather{"where": {"lat": 1)");
}

TEST(QwenCoderTest, WhatIsForgotten) {
  EXPECT_EQ(Qwen("<function=any>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\n"),
            R"(any:{"x": 1};)");
  EXPECT_EQ(Qwen("<tool_call><function=any><parameter=x>1</parameter></tool_call>"),
            R"(any:{"x": 1};)");
  EXPECT_EQ(Qwen("<tool_call><function=any><parameter=x>abc"), R"(any:{"x": "abc"};)");
  EXPECT_EQ(Qwen("<tool_call><function=any><parameter=x>abc", false), R"(any:{"x": "abc)");
  EXPECT_EQ(Qwen("<tool_call><function=any><param", false), "c(<tool_call><function=any><param)");
}

TEST(QwenCoderTest, ATagInProseIsContent) {
  EXPECT_EQ(Qwen("Use <tool_call> and <function=NAME> there."),
            "c(Use <tool_call> and <function=NAME> there.)");
  EXPECT_EQ(Qwen("<function=a b>"), "c(<function=a b>)");
  EXPECT_EQ(
      Qwen("Write <function= in front: <tool_call>\n<function=any>\n</function>\n</tool_call>"),
      "c(Write <function= in front:)any:{};");
  EXPECT_EQ(Qwen("<function=" + std::string(2000, 'x')),
            "c(<function=" + std::string(2000, 'x') + ")");
}

TEST(MiniMaxTest, Calls) {
  EXPECT_EQ(MiniMax("So:\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">"
                    "Rome\n</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n"
                    "<invoke name=\"any\">\n</invoke>\n</minimax:tool_call>"),
            R"(c(So:)weather:{"city": "Rome\n", "days": 2};any:{};)");
  EXPECT_EQ(MiniMax("<minimax:tool_call> is a tag"), "c(<minimax:tool_call> is a tag)");
  EXPECT_EQ(MiniMax("<invoke name=\"weather\">"), "c(<invoke name=\"weather\">)");
  EXPECT_EQ(MiniMax("<minimax:tool_call><invoke name=\"any\"></invoke> and then"),
            "any:{};c(and then)");
}

TEST(DsmlTest, AttributesSayWhatIsText) {
  EXPECT_EQ(Dsml("Ok\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"any\">\n"
                 "<｜DSML｜parameter name=\"a\" string=\"true\">5</｜DSML｜parameter>\n"
                 "<｜DSML｜parameter name=\"b\" string=\"false\">{\"x\": [1]}</｜DSML｜parameter>\n"
                 "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"any\">\n</｜DSML｜invoke>\n"
                 "</｜DSML｜function_calls>"),
            R"(c(Ok)any:{"a": "5", "b": {"x": [1]}};any:{};)");
}

TEST(DsmlTest, ArgumentsMayBeJson) {
  EXPECT_EQ(Dsml("<｜DSML｜function_calls><｜DSML｜invoke name=\"any\">\n{\"a\": \"}\"}\n"
                 "</｜DSML｜invoke></｜DSML｜function_calls>"),
            R"(any:{"a": "}"};)");
  EXPECT_EQ(Dsml("<｜DSML｜function_calls><｜DSML｜invoke name=\"any\">\n{\"a\": \"", false),
            R"(any:{"a": ")");
}

TEST(GlmTest, Calls) {
  EXPECT_EQ(
      Glm("See.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome & <b></arg_value>\n"
          "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
          "<tool_call>any<arg_key>x</arg_key><arg_value>[1]</arg_value></tool_call>"),
      R"(c(See.)weather:{"city": "Rome & <b>", "days": 3};any:{"x": [1]};)");
  EXPECT_EQ(Glm("<tool_call>any\n</tool_call>"), "any:{};");
  EXPECT_EQ(Glm("<tool_call>any</tool_call>"), "any:{};");
}

TEST(GlmTest, CutOffAndBroken) {
  EXPECT_EQ(Glm("<tool_call>weather<arg_key>city</arg_key><arg_value>Ro", false),
            R"(weather:{"city": "Ro)");
  EXPECT_EQ(Glm("<tool_call>weather<arg_key>city</arg_key><arg_value>Ro"),
            R"(weather:{"city": "Ro"};)");
  EXPECT_EQ(Glm("<tool_call>weather<arg_key>days</arg_key> 5 </tool_call>"),
            "weather:{};c(5 </tool_call>)");
  EXPECT_EQ(Glm("Write <tool_call> and then\nmore"), "c(Write <tool_call> and then\nmore)");
  EXPECT_EQ(Glm("<tool_call>word\nmore"), "c(<tool_call>word\nmore)");
}

}  // namespace
}  // namespace moesaic
