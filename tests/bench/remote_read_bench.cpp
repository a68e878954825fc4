// Read bandwidth of a store that another process serves over loopback (core/io/remote_reader.h),
// by block size and reads in flight, without a limit and with the server's own limit of 10 and 25
// Gbit/s (--client-bandwidth: SO_MAX_PACING_RATE, so that the kernel paces the connection); and of
// that link striped with a file of the same rate (core/io/throttled_reader.h). Prints Markdown
// tables: GB/s (median over rounds, least and most), the share of the limit, and the CPU time that
// a GB takes in the reader's process and in the server's.
//
//   remote_read_bench [DIRECTORY] [FILE_GIB] [ROUNDS]    (default: the temporary directory, 1, 5)
//
// The store is written first and removed at the end; both processes have it in the page cache, so
// that what is measured is the link and not a disk. Reads are at random block-aligned places. The
// last 4 KiB of every block are compared with their stamp: the reads have happened.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/io/expert_store.h"
#include "core/io/remote_reader.h"
#include "core/io/striped_reader.h"
#include "core/io/throttled_reader.h"
#include "serving/experts/expert_server.h"
#include "tests/bench/random_reads.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSlotBytes = 1 << 20;
constexpr double kSampleSeconds = 0.25;
const std::string kKey = "the key of a bench, which is no secret";

class TemporaryStore {
 public:
  TemporaryStore(const fs::path& directory, int experts)
      : path_(directory / fmt::format("moesaic-remote-read-bench-{}", getpid())) {
    ExpertStoreHeader header;
    header.model_type = "qwen3_moe";
    header.layout.sections = {
        {"gate", DType::kF32, SectionFormat::kRowMajor, 512, 512, 0, kSlotBytes}};
    header.layout.blob_bytes = kSlotBytes;
    header.layout.slot_bytes = kSlotBytes;
    header.sparse_layers = {0};
    header.num_experts = experts;
    ExpertStoreWriter writer(path_, header);
    AlignedBuffer slot(kSlotBytes);
    slot.Zero();
    for (uint64_t at = 0; at < static_cast<uint64_t>(experts) * kSlotBytes; at += kSlotBytes) {
      StampBlocks(at, slot.span());
      writer.Append(slot.span());
    }
    writer.Finish();
    VerifyExpertStore(path_);  // now it is in the page cache
  }
  ~TemporaryStore() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryStore(const TemporaryStore&) = delete;
  TemporaryStore& operator=(const TemporaryStore&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// A process that serves the store.
class ServerProcess {
 public:
  ServerProcess(const fs::path& store, uint64_t client_bytes_per_s) {
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    pid_ = fork();
    CHECK_GE(pid_, 0);
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      ExpertServerOptions options;
      options.key = kKey;
      options.client_bytes_per_s = client_bytes_per_s;
      const ExpertServer server(std::span(&store, 1), options);
      const uint16_t port = server.port();
      CHECK_EQ(write(ends[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
      for (;;) pause();
    }
    close(ends[1]);
    const ssize_t n = read(ends[0], &port_, sizeof(port_));
    close(ends[0]);
    if (n != static_cast<ssize_t>(sizeof(port_))) {
      Fail(ErrorKind::kUnavailable, "the server's process does not serve");
    }
  }
  ~ServerProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  uint16_t port() const { return port_; }
  double CpuSeconds() const {
    clockid_t clock{};
    timespec time{};
    if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

 private:
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

double OwnCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Candidate {
  std::string name;
  uint32_t block_bytes = 0;
  int depth = 0;
  std::function<std::unique_ptr<AsyncReader>(int depth)> open;
  std::vector<double> rates = {};       // byte/s, one entry a round
  std::vector<double> cpu = {};         // seconds per byte
  std::vector<double> server_cpu = {};  // likewise
};

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

void Sample(Candidate& candidate, const ServerProcess& server, uint64_t file_bytes,
            std::mt19937_64& random) {
  const auto reader = candidate.open(candidate.depth);
  RandomReads reads(*reader, file_bytes, candidate.block_bytes, candidate.depth);
  const double cpu_begin = OwnCpuSeconds();
  const double server_cpu_begin = server.CpuSeconds();
  const Stopwatch watch;
  const uint64_t bytes = reads.Run(kSampleSeconds, random);
  const auto all = static_cast<double>(bytes);
  candidate.rates.push_back(all / watch.seconds());
  candidate.cpu.push_back((OwnCpuSeconds() - cpu_begin) / all);
  candidate.server_cpu.push_back((server.CpuSeconds() - server_cpu_begin) / all);
}

void RunRate(const TemporaryStore& store, uint64_t file_bytes, int rounds, double gbit_per_s) {
  const auto limit = static_cast<uint64_t>(gbit_per_s * 1e9 / 8);
  const ServerProcess server(store.path(), limit);
  const RemoteStore remote = {
      {"127.0.0.1", server.port()}, kKey, IdentityOf(DescribeExpertStore(store.path()))};
  const auto open_remote = [&](int depth) { return MakeRemoteReader(remote, depth); };
  const auto open_file = [&](int depth) {
    auto reader =
        OpenAsyncReader({ExpertStoreDataFile(store.path())}, ReadBackend::kBuffered, depth);
    return limit > 0 ? MakeThrottledReader(std::move(reader), static_cast<double>(limit))
                     : std::move(reader);
  };
  const auto open_both = [&](int depth) {
    std::vector<StripedLink> links;
    links.push_back({"file", open_file(depth)});
    links.push_back({"server", open_remote(depth)});
    return MakeStripedReader(std::move(links), {file_bytes}, 2 * depth);
  };
  std::vector<Candidate> candidates;
  for (const uint32_t block_bytes : {128u << 10, 512u << 10, 4u << 20}) {
    for (const int depth : {1, 4, 16}) {
      candidates.push_back({"server", block_bytes, depth, open_remote});
    }
  }
  candidates.push_back({"file", 512 << 10, 16, open_file});
  candidates.push_back({"file and server", 512 << 10, 16, open_both});
  std::mt19937_64 random(7);
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    for (Candidate& candidate : candidates) {
      Sample(candidate, server, file_bytes, random);
      if (round >= 0) continue;
      candidate.rates.clear();
      candidate.cpu.clear();
      candidate.server_cpu.clear();
    }
  }
  fmt::print("\n{}, {} rounds of {} s\n\n",
             limit > 0 ? fmt::format("{:g} Gbit/s", gbit_per_s) : "no limit", rounds,
             kSampleSeconds);
  fmt::print(
      "| from | block | in flight | GB/s median (min .. max) | of the limit | CPU ms per GB: "
      "reader, server |\n|---|---|---|---|---|---|\n");
  for (const Candidate& c : candidates) {
    const double rate = Quantile(c.rates, 0.5);
    fmt::print("| {} | {} | {} | {:.2f} ({:.2f} .. {:.2f}) | {} | {:.0f}, {:.0f} |\n", c.name,
               FormatBytes(c.block_bytes), c.depth, rate * 1e-9, Quantile(c.rates, 0) * 1e-9,
               Quantile(c.rates, 1) * 1e-9,
               limit > 0 ? fmt::format("{:.2f}", rate / static_cast<double>(limit)) : "-",
               Quantile(c.cpu, 0.5) * 1e12, Quantile(c.server_cpu, 0.5) * 1e12);
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  try {
    const std::filesystem::path directory =
        argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string();
    const int gib = argc > 2 ? std::stoi(argv[2]) : 1;
    const int rounds = argc > 3 ? std::stoi(argv[3]) : 5;
    if (gib < 1 || gib > 16 || rounds < 1) {
      moesaic::Fail(moesaic::ErrorKind::kInvalidArgument,
                    "remote_read_bench [DIRECTORY] [FILE_GIB from 1 to 16] [ROUNDS]");
    }
    const int experts = gib * 1024;
    const moesaic::TemporaryStore store(directory, experts);
    const uint64_t file_bytes = static_cast<uint64_t>(experts) * moesaic::kSlotBytes;
    for (const double gbit_per_s : {0.0, 10.0, 25.0}) {
      moesaic::RunRate(store, file_bytes, rounds, gbit_per_s);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
