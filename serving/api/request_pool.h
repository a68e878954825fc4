// RequestPool: the API requests that an engine works at, and their answers as they end. What
// `moesaic batch` is made of.
//
// Owned and used by one thread; deltas come from the engine's thread through a mailbox.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "serving/api/api_error.h"
#include "serving/api/api_output.h"
#include "serving/api/delta_mailbox.h"
#include "serving/api/prepared_request.h"

namespace moesaic {

class RequestPool {
 public:
  using Key = int64_t;  // the caller's name for a request
  struct Answer {
    Key key = 0;
    std::string body;  // JSON, as POST answers; empty: one of those below
    std::optional<ApiError> error;
    bool cancelled = false;
    Usage usage;
  };

  explicit RequestPool(Engine& engine) : engine_(engine) {}
  // An engine that is still at it has nobody to tell: mail goes to the mailbox and is forgotten.
  ~RequestPool() { Cancel(false); }
  RequestPool(const RequestPool&) = delete;
  RequestPool& operator=(const RequestPool&) = delete;

  // Together: a pass that begins with the first of many would read experts for it alone. Returns
  // answers for those that the engine refuses.
  std::vector<Answer> Submit(std::vector<std::pair<Key, PreparedRequest>> requests);
  // What has ended, or nothing after a tenth of a second.
  std::vector<Answer> Wait();
  // They end as cancelled; `keep_begun`: but for those that have a token.
  void Cancel(bool keep_begun);

  bool empty() const { return open_.empty(); }
  int64_t sequences() const { return sequences_; }          // submitted and not ended
  int64_t output_tokens() const { return output_tokens_; }  // so far, of all

 private:
  struct Open {
    std::unique_ptr<ApiOutput> output;
    std::vector<RequestId> ids;  // of its choices
    size_t first_choice = 0;     // in the mailbox
    size_t ended = 0;
    bool begun = false;  // it has a token
    bool cancelled = false;
    std::optional<ApiError> error;
  };

  void SubmitSpan(std::span<std::pair<Key, PreparedRequest>> requests,
                  std::vector<Answer>& refused);
  std::optional<Answer> Receive(DeltaMailbox::Mail mail);

  Engine& engine_;
  // Shared: the engine may outlive a pool that failed.
  const std::shared_ptr<DeltaMailbox> mailbox_ =
      std::make_shared<DeltaMailbox>(DeltaMailbox::kNoLimit, nullptr, DeltaMailbox::Wake::kEnds);
  size_t next_choice_ = 0;
  std::map<size_t, Key> key_of_choice_;  // of the sequences that run
  std::map<Key, Open> open_;
  int64_t sequences_ = 0;
  int64_t output_tokens_ = 0;
};

}  // namespace moesaic
