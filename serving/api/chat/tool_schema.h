// ToolSchemas: what the tools of a request say about the types of their parameters. Syntaxes that
// write a value as bare text need it to tell the text "5" from the number.
//
// Immutable once made.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/base/json.h"

namespace moesaic {

enum class ParameterType {
  kAny,           // not told: JSON where the text is that and no string, else text
  kText,          // a string
  kNullableText,  // a string or null
  kJson,          // anything but a string
};

class ToolSchemas {
 public:
  ToolSchemas() = default;
  // OpenAI's tools: [{type, function: {name, parameters}}]; null: none. What is no schema says
  // nothing about types.
  explicit ToolSchemas(const Json& tools);

  bool Has(std::string_view tool) const { return tools_.find(tool) != tools_.end(); }
  ParameterType TypeOf(std::string_view tool, std::string_view parameter) const;

 private:
  struct Parameters {
    std::map<std::string, ParameterType, std::less<>> named;
    ParameterType others = ParameterType::kAny;  // of additionalProperties
  };

  std::map<std::string, Parameters, std::less<>> tools_;
};

}  // namespace moesaic
