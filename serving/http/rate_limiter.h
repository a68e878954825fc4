// RateLimiter: how many requests and tokens a minute the holder of a key may have (token buckets:
// a minute's worth may come at once, and what is used comes back evenly).
//
// Thread contract: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "core/base/mutex.h"
#include "serving/api/api_error.h"
#include "serving/http/api_keys.h"
#include "serving/http/http_message.h"

namespace moesaic {

class RateLimiter {
 public:
  // Seconds of a clock that never goes back; empty: the system's.
  explicit RateLimiter(std::function<double()> now_s = {});

  // Counts a request. 429, and nothing is counted, when the key has none left, or no tokens.
  std::optional<ApiError> Admit(const ApiKey& key);
  // Tokens are known when an answer ends: those that are too many are made up for afterwards.
  void Spend(const ApiKey& key, int64_t tokens);
  // x-ratelimit-{limit,remaining,reset}-{requests,tokens}, as OpenAI's, of what the key has limits
  // for.
  void AddHeaders(const ApiKey& key, HttpResponse& response);

 private:
  struct Bucket {
    double used = 0;  // of the limit
    double at_s = 0;  // then
  };
  struct Holder {
    Bucket requests;
    Bucket tokens;
  };

  // What there is of `limit` now.
  static double Left(Bucket& bucket, double limit, double now_s);
  Holder& HolderOf(const ApiKey& key) REQUIRES(mutex_);

  const std::function<double()> now_s_;
  Mutex mutex_;
  // By name, or by the key itself where it has none. As many as there have been keys.
  std::map<std::string, Holder> holders_ GUARDED_BY(mutex_);
};

}  // namespace moesaic
