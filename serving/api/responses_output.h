// ResponsesOutput: answers in the shapes of OpenAI's Responses API: items of reasoning, messages
// and calls of functions, plain or as numbered events.
#pragma once

#include <string>
#include <string_view>

#include "serving/api/api_output.h"

namespace moesaic {

class ResponsesOutput : public ApiOutput {
 public:
  ResponsesOutput(ApiOutputSpec spec, TokenSpeller spell);

  std::string StreamEnd() override;
  std::string StreamError(const ApiError& error) override;
  std::string FinalBody() override;

 private:
  std::string Render(size_t choice, const OutputDelta& delta, bool first) override;
  // response.created and response.in_progress, once.
  std::string Begin();
  std::string RenderEvent(const ChatEvent& event);
  std::string OpenItem();
  std::string CloseItem(const char* status);

  // A numbered event; `fields` follow its type and number.
  std::string Event(const std::string& type, Json fields);
  // {"item_id","output_index"} of the item that is open, and for texts "content_index".
  Json Place(bool content) const;
  // The item as clients see it. `whole`: with what it holds.
  Json ItemJson(size_t index, const char* status, bool whole) const;
  Json ResponseJson(const char* status, bool whole) const;
  Json FinishedJson(const OutputDelta& last) const;
  Json UsageJson() const;

  int64_t sequence_number_ = 0;
  bool begun_ = false;
  bool item_open_ = false;
  size_t items_ = 0;  // begun; the answer's items come in the same order
  OutputDelta last_;  // how it ended; streams only
};

}  // namespace moesaic
