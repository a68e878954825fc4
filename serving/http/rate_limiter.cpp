#include "serving/http/rate_limiter.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace moesaic {
namespace {

constexpr double kMinuteS = 60;

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// "1m2.5s", as OpenAI has it.
std::string Duration(double seconds) {
  if (seconds < 1) return fmt::format("{}ms", std::ceil(std::max(0.0, seconds) * 1e3));
  const double minutes = std::floor(seconds / kMinuteS);
  const std::string rest = fmt::format("{}s", std::ceil((seconds - minutes * kMinuteS) * 10) / 10);
  return minutes > 0 ? fmt::format("{}m{}", minutes, rest) : rest;
}

ApiError LimitReached(const char* what, double limit, double wait_s) {
  return ApiError(
      429, "rate_limit_error",
      fmt::format("This key may have {} {} a minute, and has had them; try again in {}.", limit,
                  what, Duration(wait_s)),
      {}, "rate_limit_exceeded", std::max(1, static_cast<int>(std::ceil(wait_s))));
}

}  // namespace

RateLimiter::RateLimiter(std::function<double()> now_s)
    : now_s_(now_s ? std::move(now_s) : SteadySeconds) {}

double RateLimiter::Left(Bucket& bucket, double limit, double now_s) {
  bucket.used = std::max(0.0, bucket.used - (now_s - bucket.at_s) * limit / kMinuteS);
  bucket.at_s = now_s;
  return limit - bucket.used;
}

RateLimiter::Holder& RateLimiter::HolderOf(const ApiKey& key) {
  return holders_[key.name.empty() ? key.key : key.name];
}

std::optional<ApiError> RateLimiter::Admit(const ApiKey& key) {
  if (!key.limited()) return std::nullopt;
  const MutexLock lock(mutex_);
  Holder& holder = HolderOf(key);
  const double now_s = now_s_();
  if (const double limit = key.tokens_per_minute; limit > 0) {
    const double left = Left(holder.tokens, limit, now_s);
    if (left < 1) return LimitReached("tokens", limit, (1 - left) / limit * kMinuteS);
  }
  if (const double limit = key.requests_per_minute; limit > 0) {
    const double left = Left(holder.requests, limit, now_s);
    if (left < 1) return LimitReached("requests", limit, (1 - left) / limit * kMinuteS);
    holder.requests.used += 1;
  }
  return std::nullopt;
}

void RateLimiter::Spend(const ApiKey& key, int64_t tokens) {
  if (key.tokens_per_minute <= 0) return;
  const MutexLock lock(mutex_);
  Bucket& bucket = HolderOf(key).tokens;
  Left(bucket, key.tokens_per_minute, now_s_());
  bucket.used += static_cast<double>(tokens);
}

void RateLimiter::AddHeaders(const ApiKey& key, HttpResponse& response) {
  if (!key.limited()) return;
  const MutexLock lock(mutex_);
  Holder& holder = HolderOf(key);
  const double now_s = now_s_();
  const auto add = [&](const char* what, double limit, Bucket& bucket) {
    if (limit <= 0) return;
    const double left = Left(bucket, limit, now_s);
    const auto name = [what](const char* of) { return fmt::format("x-ratelimit-{}-{}", of, what); };
    response.headers.emplace_back(name("limit"), fmt::format("{}", limit));
    response.headers.emplace_back(name("remaining"),
                                  fmt::format("{}", std::max(0.0, std::floor(left))));
    response.headers.emplace_back(name("reset"), Duration(bucket.used / limit * kMinuteS));
  };
  add("requests", key.requests_per_minute, holder.requests);
  add("tokens", key.tokens_per_minute, holder.tokens);
}

}  // namespace moesaic
