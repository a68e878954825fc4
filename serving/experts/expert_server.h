// ExpertServer: gives other machines the bytes of expert stores over TCP, read-only, to whoever
// knows a shared key (core/io/expert_wire.h): `moesaic serve-experts`. Files are read through the
// page cache, so that this machine's memory is what the others read once it has what they want.
//
// Bounded: so many clients, each with two answers under way at a time, one that is sent and one
// that is made, and a buffer of at most kMostExpertReadBytes for each; strangers have a few seconds
// and a hundred bytes for their handshake, and when more of them are there than are allowed, the
// one that came first is closed.
//
// Thread contract: any thread. Its own threads read the files and move the bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "core/io/expert_wire.h"

namespace moesaic {

struct ExpertServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any
  std::string key;
  int max_clients = 16;
  uint64_t client_bytes_per_s = 0;           // to each client at most; 0: no limit
  int max_strangers = 64;                    // in their handshake
  std::chrono::milliseconds patience{5000};  // for a handshake
  std::chrono::milliseconds stall{30000};    // for the bytes of one answer to be taken
  int threads = 0;                           // 0: as the CPUs suggest
};

struct ExpertServerCounters {
  uint64_t clients = 0;  // that were admitted, so far
  uint64_t refused = 0;  // connections that were closed before they had shown the key
  uint64_t reads = 0;
  uint64_t bytes = 0;
};

class ExpertServer {
 public:
  // Serves the files with the experts of `stores` until it is destroyed. Throws what
  // DescribeExpertStore throws, Error(kUnavailable) when it cannot listen, and Error(kUnsupported)
  // when the system does not limit rates.
  ExpertServer(std::span<const std::filesystem::path> stores, ExpertServerOptions options);
  ~ExpertServer();
  ExpertServer(const ExpertServer&) = delete;
  ExpertServer& operator=(const ExpertServer&) = delete;

  uint16_t port() const;
  std::span<const ExpertStoreIdentity> identities() const;  // [stores]
  ExpertServerCounters counters() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
