#include "serving/api/request_pool.h"

#include <fmt/format.h>

#include <chrono>

#include "core/base/check.h"

namespace moesaic {

std::vector<RequestPool::Answer> RequestPool::Submit(
    std::vector<std::pair<Key, PreparedRequest>> requests) {
  std::vector<Answer> refused;
  if (!requests.empty()) SubmitSpan(requests, refused);
  return refused;
}

void RequestPool::SubmitSpan(std::span<std::pair<Key, PreparedRequest>> requests,
                             std::vector<Answer>& refused) {
  std::vector<EngineRequest> sequences;
  std::vector<std::shared_ptr<OutputSink>> sinks;
  for (const auto& [key, prepared] : requests) {
    for (const EngineRequest& sequence : prepared.requests) {
      sinks.push_back(mailbox_->MakeSink(next_choice_ + sequences.size()));
      sequences.push_back(sequence);
    }
  }
  const size_t count = sequences.size();
  std::vector<RequestId> ids;
  // Before they run: their first output may be there before Submit returns, and is taken later.
  const size_t first_choice = next_choice_;
  next_choice_ += count;
  try {
    ids = engine_.Submit(std::move(sequences), std::move(sinks));
  } catch (...) {
    // None of them was taken.
    if (requests.size() == 1) {
      Answer& answer = refused.emplace_back();
      answer.key = requests.front().first;
      answer.error = CurrentApiError(fmt::format("request {}", answer.key));
    } else {
      for (size_t i = 0; i < requests.size(); ++i) SubmitSpan(requests.subspan(i, 1), refused);
    }
    return;
  }
  size_t taken = 0;
  for (auto& [key, prepared] : requests) {
    Open open;
    open.first_choice = first_choice + taken;
    for (size_t i = 0; i < prepared.requests.size(); ++i) {
      open.ids.push_back(ids[taken]);
      key_of_choice_.emplace(first_choice + taken++, key);
    }
    open.output = MakeApiOutput(std::move(prepared.spec), std::move(prepared.spell));
    sequences_ += std::ssize(open.ids);
    open_.emplace(key, std::move(open));
  }
}

std::vector<RequestPool::Answer> RequestPool::Wait() {
  std::vector<Answer> answers;
  for (DeltaMailbox::Mail& mail : mailbox_->Wait(std::chrono::milliseconds(100))) {
    if (auto answer = Receive(std::move(mail))) answers.push_back(std::move(*answer));
  }
  return answers;
}

std::optional<RequestPool::Answer> RequestPool::Receive(DeltaMailbox::Mail mail) {
  const auto key = key_of_choice_.find(mail.choice);
  CHECK(key != key_of_choice_.end());
  const auto found = open_.find(key->second);
  CHECK(found != open_.end());
  Open& open = found->second;
  output_tokens_ += std::ssize(mail.delta.tokens);
  open.begun = open.begun || !mail.delta.tokens.empty();
  const size_t choice = mail.choice - open.first_choice;
  open.output->SettleFinish(choice, mail.delta);
  const bool ends = mail.ends();
  if (mail.error) {
    if (!open.error) open.error = FromEngineError(*mail.error);
    for (const RequestId id : open.ids) engine_.Cancel(id);
  } else {
    if (mail.delta.finish == FinishReason::kCancelled) open.cancelled = true;
    open.output->Collect(choice, std::move(mail.delta));
    if (!ends && open.output->WantsNoMore(choice)) engine_.Cancel(open.ids[choice]);
  }
  if (!ends) return std::nullopt;
  key_of_choice_.erase(key);
  --sequences_;
  if (++open.ended < open.ids.size()) return std::nullopt;
  Answer answer;
  answer.key = found->first;
  answer.usage = open.output->TotalUsage();
  answer.error = std::move(open.error);
  answer.cancelled = !answer.error && open.cancelled;
  if (!answer.error && !answer.cancelled) answer.body = open.output->FinalBody();
  open_.erase(found);
  return answer;
}

void RequestPool::Cancel(bool keep_begun) {
  for (const auto& [key, open] : open_) {
    if (keep_begun && open.begun) continue;
    for (const RequestId id : open.ids) engine_.Cancel(id);
  }
}

}  // namespace moesaic
