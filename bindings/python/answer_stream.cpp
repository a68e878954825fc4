#include "bindings/python/answer_stream.h"

#include <unistd.h>

#include <atomic>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "serving/api/prepared_request.h"

namespace moesaic::python {
namespace {

// The descriptor is non-blocking: when its count is full there is news already.
std::function<void()> Waker(int descriptor) {
  if (descriptor < 0) return nullptr;
  return [descriptor] {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(descriptor, &one, sizeof(one));
  };
}

std::string FinishName(const OutputDelta& delta, const ChatAnswer* answer) {
  if (!delta.finish.has_value()) return {};
  if (answer == nullptr) return FinishReasonName(*delta.finish);
  // An answer that had its only call was cut off for that: it stopped.
  const bool satisfied = *delta.finish == FinishReason::kCancelled && answer->satisfied();
  const FinishReason reason = satisfied ? FinishReason::kStop : *delta.finish;
  return answer->has_calls() && reason == FinishReason::kStop ? "tool_calls"
                                                              : FinishReasonName(reason);
}

}  // namespace

Prepared Prepare(EngineHandle& engine, const PrepareArguments& arguments) {
  const EngineHandle::User use(engine);
  const std::atomic<bool> gone{false};
  PrepareOptions options{.dialect = arguments.chat ? ApiDialect::kChat : ApiDialect::kCompletions,
                         .request_id = arguments.request_id,
                         .deadline = std::nullopt,
                         .gone = gone};
  PreparedRequest read = PrepareRequest(arguments.body, *use->models, options);
  Prepared prepared;
  prepared.prompt_tokens = read.spec.prompts.front();
  if (arguments.fill_context) {
    for (EngineRequest& request : read.requests) {
      const int64_t room =
          use->engine().max_context_tokens() - static_cast<int64_t>(request.prompt.size());
      request.max_tokens = static_cast<int32_t>(room);
    }
  }
  for (EngineRequest& request : read.requests) {
    request.return_routed_experts = arguments.routed_experts;
  }
  prepared.requests = std::move(read.requests);
  prepared.parsing = std::move(read.spec.parsing);
  prepared.unknown_fields = std::move(read.unknown_fields);
  return prepared;
}

AnswerStream::AnswerStream(std::shared_ptr<EngineHandle> engine, int wake_descriptor,
                           bool only_ends, size_t notice_tokens)
    : engine_(std::move(engine)),
      wake_descriptor_(wake_descriptor),
      mailbox_(std::make_shared<DeltaMailbox>(
          DeltaMailbox::kNoLimit, Waker(wake_descriptor),
          only_ends ? DeltaMailbox::Wake::kEnds : DeltaMailbox::Wake::kDeltas, notice_tokens)) {}

AnswerStream::~AnswerStream() {
  if (engine_->forked()) return;  // a mutex may be held by a thread that is not there
  mailbox_->Detach();
  std::vector<RequestId> ids;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, choice] : running_) ids.push_back(choice.id);
  }
  Cancel(ids);
}

void AnswerStream::Cancel(const std::vector<RequestId>& ids) {
  if (ids.empty()) return;
  try {
    const EngineHandle::User use(*engine_);
    for (const RequestId id : ids) use->engine().Cancel(id);
  } catch (const Error&) {
    // Closed: they have ended.
  }
}

std::vector<size_t> AnswerStream::Submit(std::vector<Prepared> prepared) {
  const EngineHandle::User use(*engine_);
  std::vector<EngineRequest> requests;
  std::vector<std::shared_ptr<OutputSink>> sinks;
  std::vector<size_t> firsts;
  // Held until the ids are known: Take waits for those of what it is given.
  MutexLock lock(mutex_);
  size_t next = next_choice_;
  std::vector<Choice> choices;
  for (Prepared& request : prepared) {
    firsts.push_back(next);
    for (EngineRequest& choice : request.requests) {
      choices.push_back({0, choice.logprobs >= 0});
      if (request.parsing != nullptr) {
        choices.back().answer = std::make_unique<ChatAnswer>(request.parsing);
      }
      sinks.push_back(mailbox_->MakeSink(next++));
      requests.push_back(std::move(choice));
    }
  }
  const std::vector<RequestId> ids = use->engine().Submit(std::move(requests), std::move(sinks));
  for (size_t i = 0; i < ids.size(); ++i) {
    choices[i].id = ids[i];
    running_.emplace(next_choice_ + i, std::move(choices[i]));
  }
  next_choice_ = next;
  return firsts;
}

std::vector<AnswerStream::Item> AnswerStream::Take(std::chrono::milliseconds longest) {
  if (wake_descriptor_ >= 0) {
    // Before the mail is taken: what comes between the two gives notice again.
    uint64_t notices = 0;
    [[maybe_unused]] const ssize_t got = read(wake_descriptor_, &notices, sizeof(notices));
  }
  std::vector<DeltaMailbox::Mail> mail =
      longest.count() > 0 ? mailbox_->Wait(longest) : mailbox_->Take();
  std::vector<Item> items;
  items.reserve(mail.size());
  std::vector<RequestId> satisfied;
  {
    MutexLock lock(mutex_);
    for (DeltaMailbox::Mail& arrived : mail) {
      const auto found = running_.find(arrived.choice);
      if (found == running_.end()) continue;  // abandoned
      Choice& choice = found->second;
      Item& item = items.emplace_back();
      item.choice = arrived.choice;
      item.logprobs = choice.logprobs;
      item.error = std::move(arrived.error);
      item.delta = std::move(arrived.delta);
      if (choice.answer != nullptr) {
        item.chat = true;
        item.events = choice.answer->Add(item.delta);
        if (choice.answer->satisfied() && !item.delta.finish) satisfied.push_back(choice.id);
      }
      item.finish_reason = FinishName(item.delta, choice.answer.get());
      if (item.ends()) running_.erase(found);
    }
  }
  Cancel(satisfied);
  return items;
}

void AnswerStream::Abandon(size_t first_choice, size_t count) {
  std::vector<RequestId> ids;
  {
    MutexLock lock(mutex_);
    for (size_t number = first_choice; number < first_choice + count; ++number) {
      const auto found = running_.find(number);
      if (found == running_.end()) continue;
      ids.push_back(found->second.id);
      running_.erase(found);
    }
  }
  Cancel(ids);
}

}  // namespace moesaic::python
