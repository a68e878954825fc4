// Every small template of tests/data/chat_templates/expressions.json, whose output Jinja2 gave.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "serving/text/jinja/template.h"
#include "tests/serving/text/jinja_test_clock.h"

namespace moesaic::jinja {
namespace {

using Json = nlohmann::ordered_json;

TEST(JinjaExpressions, AgreeWithJinja2) {
  std::ifstream file(MOESAIC_TEST_DATA_DIR "/chat_templates/expressions.json");
  ASSERT_TRUE(file);
  const Json vectors = Json::parse(file);
  RenderContext context;
  for (const auto& [name, value] : vectors["context"].items()) {
    context.emplace_back(name, Value::FromJson(value, /*from_input=*/true));
  }
  RenderOptions options;
  options.local_time = FixedTime;
  size_t raised = 0;
  for (const Json& test_case : vectors["cases"]) {
    const std::string source = test_case["template"].get<std::string>();
    SCOPED_TRACE(source);
    try {
      const MarkedText text = Template(source, "test").Render(context, options);
      if (test_case.contains("expect")) {
        EXPECT_EQ(text.bytes(), test_case["expect"].get<std::string>());
      } else {
        ADD_FAILURE() << "gave \"" << text.bytes() << "\", Jinja2 raises "
                      << test_case["raises"].get<std::string>();
      }
    } catch (const Error& error) {
      ++raised;
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("test, line 1"), std::string::npos) << error.what();
      EXPECT_FALSE(test_case.contains("expect"))
          << error.what() << "\nJinja2 gives \"" << test_case.value("expect", "") << '"';
    }
  }
  // The vectors are not an empty or a one-sided file.
  EXPECT_GT(vectors["cases"].size(), 900u);
  EXPECT_GT(raised, 150u);
}

}  // namespace
}  // namespace moesaic::jinja
