// CallBody: reads one call of a tool, or a list of them, in one syntax, from behind the marker that
// begins it. What reads the text around calls is TaggedParser.
//
// One object per call; owned and used by one thread.
#pragma once

#include <cstddef>
#include <string_view>

#include "serving/api/chat/chat_event.h"
#include "serving/api/chat/text_cursor.h"
#include "serving/api/chat/tool_schema.h"

namespace moesaic {

class CallBody {
 public:
  enum class Progress {
    kMore,    // the text is used up
    kDone,    // the cursor stands behind the call
    kNoCall,  // before anything was begun: it is text that looks like one
  };

  virtual ~CallBody() = default;
  virtual Progress Read(TextCursor& cursor, ChatEvents& events) = 0;
  // The text has ended and Read has said kMore. `complete`: the model has ended it, so that what is
  // missing is closed where that can be done; else it was cut off.
  virtual void Finish(bool complete, ChatEvents& events) = 0;
};

// A bare text in front of which, or behind which, a marker has to come is no longer than this.
inline constexpr size_t kMaxToolNameBytes = 256;

std::string_view TrimSpace(std::string_view text);
// Whether a bare text can be the name of a tool.
bool IsToolName(std::string_view name);

}  // namespace moesaic
