// ServerOptions: everything that can be set on the HTTP server.
//
// Plain data. AddServerSettings (server_settings.h) binds settings to its fields.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/memory_size.h"

namespace moesaic {

struct ServerOptions {
  std::string host =
      "127.0.0.1";         // an address or a name; loopback, so that nothing is exposed by accident
  uint16_t port = 8000;    // 0: any free port, Server::port() tells which
  int io_threads = 2;      // sockets and response formatting
  int worker_threads = 2;  // JSON parsing, chat templates, tokenising
  std::string version = "0.1.0";                // what GET /version answers
  std::filesystem::path models_file;            // of several models; empty: arguments name them
  std::vector<std::string> served_model_names;  // of the model; empty: as it was given

  // Access. With keys, every route but /health, /live and /ready wants one of them.
  std::vector<std::string> api_keys;
  std::filesystem::path api_key_file;  // more of them, with names and rights; empty: none
  bool insecure = false;  // without keys, listen on other addresses than loopback all the same
  bool metrics_without_key = false;
  // TLS. PEM files; the key's may be the certificate's (empty); without a certificate no TLS.
  std::filesystem::path ssl_certfile;
  std::filesystem::path ssl_keyfile;
  // Web pages that may send requests, as CORS has it; "*" for any; empty: none, and no CORS
  // headers.
  std::vector<std::string> allowed_origins;
  // Names of this server in a Host header, beside localhost; with or without a port; "*" for any.
  std::vector<std::string> allowed_hosts;

  // Limits. What is over them is refused with 413, 414, 431 or 503.
  size_t max_connections = 1024;
  // Beyond those, for probes (/health, /live, /ready); when they are taken the oldest is closed.
  size_t probe_connections = 64;
  size_t max_target_bytes = 8 << 10;
  size_t max_header_bytes = 32 << 10;
  uint64_t max_body_bytes = 16 << 20;
  size_t max_buffered_body_bytes = 256 << 20;  // of all connections together
  // Output of one request that its client has not taken; beyond it the request is cancelled.
  size_t max_pending_output_bytes = 4 << 20;
  size_t max_sequences = 1024;  // of one request: prompts x n
  // For requests that are parsed and tokenised (request_memory.h).
  uint64_t request_memory_bytes = uint64_t{2} << 30;
  size_t max_slow_per_peer = 64;
  // For what a model has generated, so that conversations with calls come back as the same tokens
  // (serving/api/replay_store.h); 0: nothing is kept.
  uint64_t replay_bytes = uint64_t{16} << 20;
  // For structured output of each model (serving/grammar/grammar_memory.h); a share is of what the
  // process may take; auto: 128 MiB, or a 64th where that is less.
  MemorySize grammar_memory;

  // Batches of clients (serving/jobs/batch_store.h); empty: none.
  std::filesystem::path batch_dir;
  uint64_t batch_dir_bytes = uint64_t{10} << 30;
  double batch_max_age_days = 30;
  uint64_t max_upload_bytes = 0;  // of a file for batches; larger than max_body_bytes, or nothing

  // Timeouts; a connection that misses one is closed.
  std::chrono::milliseconds header_timeout{10'000};     // from the first byte of a request (408)
  std::chrono::milliseconds body_timeout{60'000};       // from the end of the head (408)
  std::chrono::milliseconds handshake_timeout{15'000};  // of TLS
  std::chrono::milliseconds slow_after{5'000};          // when a body or a handshake counts as slow
  std::chrono::milliseconds idle_timeout{75'000};       // between two requests
  std::chrono::milliseconds write_timeout{60'000};      // without the client taking a single byte
  std::chrono::milliseconds sse_keep_alive{15'000};     // a comment after so much silence; 0: never
  std::chrono::milliseconds request_timeout{0};         // a generation's whole time; 0: none
  std::chrono::milliseconds shutdown_timeout{30'000};   // of running requests after a signal
  // After a stop, for a worker in the middle of a request that nobody waits for any more.
  std::chrono::milliseconds worker_timeout{5'000};

  bool access_log = true;
  bool metrics_vllm_names =
      false;  // /metrics also under vLLM's names (vllm:num_requests_running, ...)
};

}  // namespace moesaic
