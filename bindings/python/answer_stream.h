// AnswerStream: requests of one reader in Python and what comes back of them. A request is what the
// API's readers make of a JSON body (serving/api), so that prompts, fields, limits and messages are
// the server's.
//
// Thread contract: any thread, without the GIL but where it says so. Take is for one thread at a
// time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bindings/python/engine_handle.h"
#include "core/base/mutex.h"
#include "serving/api/chat_answer.h"
#include "serving/api/delta_mailbox.h"
#include "serving/engine/request.h"

namespace moesaic::python {

// A request that is read, tokenised and held to the limits, one EngineRequest for each choice.
struct Prepared {
  std::vector<EngineRequest> requests;
  std::vector<int32_t> prompt_tokens;
  std::shared_ptr<const AnswerParsing> parsing;  // null: the answer is text as it comes
  std::vector<std::string> unknown_fields;
};

struct PrepareArguments {
  std::string body;  // a JSON object, of /v1/completions or /v1/chat/completions
  bool chat = false;
  std::string request_id;
  // No max_tokens: as much as the context holds, where a completion would get 16.
  bool fill_context = false;
  bool routed_experts = false;  // tell to whom tokens were routed
};
// Throws ApiError (400, or what the tokenizer and the template say).
Prepared Prepare(EngineHandle& engine, const PrepareArguments& arguments);

class AnswerStream {
 public:
  struct Item {
    size_t choice = 0;
    OutputDelta delta;
    std::vector<ChatEvent> events;  // of a chat: what is new of its message
    std::optional<Error> error;
    std::string finish_reason;  // empty: more comes
    bool chat = false;
    bool logprobs = false;  // were asked for

    bool ends() const { return error.has_value() || !finish_reason.empty(); }
  };

  // wake_descriptor: a non-blocking eventfd that is written to when there is something to take, and
  // read by Take; -1: none.
  // only_ends: Take need not return for less than the end of a choice.
  // notice_tokens: for how many tokens of a choice the descriptor is written to (DeltaMailbox).
  AnswerStream(std::shared_ptr<EngineHandle> engine, int wake_descriptor, bool only_ends,
               size_t notice_tokens);
  ~AnswerStream();  // abandons what runs
  AnswerStream(const AnswerStream&) = delete;
  AnswerStream& operator=(const AnswerStream&) = delete;

  // Admits all or none. Returns the number of each request's first choice; the others follow.
  // Throws Error: the queue is full, the engine is closed.
  std::vector<size_t> Submit(std::vector<Prepared> requests);
  // What has come, merged for each choice, after at most `longest`. With zero it does not wait but
  // for short locks, and may be called with the GIL.
  std::vector<Item> Take(std::chrono::milliseconds longest);
  // Nothing more comes of these choices.
  void Abandon(size_t first_choice, size_t count);

 private:
  struct Choice {
    RequestId id = 0;
    bool logprobs = false;
    std::unique_ptr<ChatAnswer> answer = nullptr;  // null: no chat
  };

  void Cancel(const std::vector<RequestId>& ids);

  const std::shared_ptr<EngineHandle> engine_;  // shared with the Python objects that use it
  const int wake_descriptor_;
  const std::shared_ptr<DeltaMailbox> mailbox_;  // shared with the engine's sinks
  Mutex mutex_;
  size_t next_choice_ GUARDED_BY(mutex_) = 0;
  std::map<size_t, Choice> running_ GUARDED_BY(mutex_);
};

}  // namespace moesaic::python
