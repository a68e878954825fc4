// OllamaOutput: answers in the shapes of Ollama's API, in one piece or as lines of JSON. It tells
// how long things took, and reads the clock for that.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "serving/api/api_output.h"

namespace moesaic {

// {"error": "..."}
std::string OllamaErrorBody(const ApiError& error);

class OllamaOutput : public ApiOutput {
 public:
  OllamaOutput(ApiOutputSpec spec, TokenSpeller spell);

  std::string_view stream_type() const override;
  std::string StreamEnd() override;
  std::string StreamQuiet() override;  // a line that adds nothing
  std::string StreamError(const ApiError& error) override;
  std::string FinalBody() override;

 private:
  using Clock = std::chrono::steady_clock;

  // What a line, or the whole answer, has of the message.
  struct Part {
    std::string content;
    std::string thinking;
    Json calls = Json::array();
  };

  std::string Render(size_t choice, const OutputDelta& delta, bool first) override;
  void Observe(const OutputDelta& delta) override;
  Json Line(Part part, bool done) const;
  // The members of the last line.
  void SetEnd(const OutputDelta& last, Json& line) const;

  const Clock::time_point begun_at_ = Clock::now();
  std::optional<Clock::time_point> first_token_at_;
  size_t calls_ = 0;  // that have gone out
  OutputDelta last_;  // how it ended; streams only
};

}  // namespace moesaic
