// Calls whose parameters are tags around bare text: <function=NAME><parameter=KEY>VALUE</parameter>
// and the like, and pairs of tags for keys and values. Types come from the tools' schemas.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "serving/api/chat/argument_writer.h"
#include "serving/api/chat/call_body.h"
#include "serving/api/chat/json_stream.h"

namespace moesaic {

struct ParameterForm {
  std::string_view open;  // in front of the tool's name
  std::string_view close;
  std::string_view parameter_open;
  std::string_view parameter_close;
  // Behind a name. A quote: other attributes may follow, up to the tag's end.
  std::string_view name_end;
  // A value stands on lines of its own: one line break at each end is not part of it.
  bool own_lines = false;
  // An attribute that says whether a value is text ("string": true or false); empty: none.
  std::string_view text_attribute = {};
};

class ParameterCall : public CallBody {
 public:
  // Both outlive this.
  ParameterCall(const ParameterForm& form, const ToolSchemas& schemas)
      : form_(form), schemas_(schemas) {}
  Progress Read(TextCursor& cursor, ChatEvents& events) override;
  void Finish(bool complete, ChatEvents& events) override;

 private:
  enum class At { kOpen, kName, kFirst, kNext, kKey, kBreak, kValue, kJson, kJsonEnd };

  Progress Step(TextCursor& cursor, ChatEvents& events);
  // The name in an open tag and its attributes, and over it. False: the tag is not whole, or (with
  // *wrong) is none.
  bool ReadTag(TextCursor& cursor, std::string* name, std::string* attributes, bool* wrong);
  Progress End(ChatEvents& events);
  ParameterType TypeOf(const std::string& key, const std::string& attributes) const;

  const ParameterForm& form_;
  const ToolSchemas& schemas_;
  At at_ = At::kOpen;
  std::string name_;
  std::optional<ArgumentWriter> writer_;  // the call has been begun
  JsonScanner json_;                      // arguments that are JSON all the same
};

// NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...
struct PairForm {
  std::string_view key_open;
  std::string_view key_close;
  std::string_view value_open;
  std::string_view value_close;
};

class PairCall : public CallBody {
 public:
  // `end`: the marker behind the call; it is left to be read.
  PairCall(const PairForm& form, std::string_view end, const ToolSchemas& schemas)
      : form_(form), end_(end), schemas_(schemas) {}
  Progress Read(TextCursor& cursor, ChatEvents& events) override;
  void Finish(bool complete, ChatEvents& events) override;

 private:
  enum class At { kName, kFirst, kNext, kKey, kBetween, kValue };

  Progress Step(TextCursor& cursor, ChatEvents& events);
  Progress End(ChatEvents& events);

  const PairForm& form_;
  const std::string_view end_;
  const ToolSchemas& schemas_;
  At at_ = At::kName;
  std::string name_;
  std::string key_;
  std::optional<ArgumentWriter> writer_;
};

}  // namespace moesaic
