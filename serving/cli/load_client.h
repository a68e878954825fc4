// LoadClient: sends prepared requests to an OpenAI-compatible server as a given traffic shape says,
// and times the streamed answers.
//
// Used by one thread, which runs all connections; each request has a connection of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace moesaic {

// Where requests go. Throws Error(kInvalidArgument) for a URL that is not
// http://host[:port][/path].
struct Endpoint {
  std::string host;
  std::string port;
  std::string prefix;  // path of the URL, without a trailing slash
};
Endpoint ParseBaseUrl(const std::string& url);

struct HttpReply {
  int status = 0;
  std::string body;
};
// One blocking request; `body` empty: GET. Throws Error(kUnavailable) when the server cannot be
// reached.
HttpReply HttpCall(const Endpoint& endpoint, const std::string& path, const std::string& api_key,
                   const std::string& body, double timeout_s);

struct LoadRequest {
  std::string body;           // JSON with "stream": true
  int64_t prompt_tokens = 0;  // as far as known; the server's usage overrules it
};

struct LoadResult {
  bool ok = false;
  std::string error;
  double start_s = 0;         // from the beginning of the run
  double ttft_s = 0;          // from sending to the first chunk with text
  double latency_s = 0;       // to the last chunk with text
  std::vector<double> itl_s;  // between chunks with text
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;  // the server's usage, else the chunks with text
  std::string text;
};

struct LoadShape {
  double requests_per_s = std::numeric_limits<double>::infinity();  // infinite: all at once
  // Shape of the gamma distribution of the gaps: 1 is a Poisson process, less is burstier.
  double burstiness = 1;
  int64_t max_concurrency = 0;  // 0: no limit
  double timeout_s = 600;       // of one request
  uint64_t seed = 0;
};

struct LoadRun {
  std::vector<LoadResult> results;  // in the order of the requests
  double duration_s = 0;
};

// `path` is "/v1/completions" or "/v1/chat/completions". `progress(done)` after each request.
// Throws Error(kUnavailable) when the host cannot be resolved; a request that fails is a result.
LoadRun RunLoad(const Endpoint& endpoint, const std::string& path, const std::string& api_key,
                const std::vector<LoadRequest>& requests, const LoadShape& shape,
                const std::function<void(size_t done)>& progress);

// Arrival times (seconds from the beginning) of `count` requests.
std::vector<double> ArrivalTimes(size_t count, const LoadShape& shape);

// Takes one event of a streamed answer at `now_s` (from sending); returns true when it was the
// last. Exposed for tests.
bool TakeStreamEvent(const std::string& data, double now_s, LoadResult& result);

}  // namespace moesaic
