// `moesaic serve-experts`: the bytes of expert stores for other machines.
#include <pthread.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "core/config/log_settings.h"
#include "core/config/settings_environment.h"
#include "core/io/expert_store.h"
#include "core/io/expert_wire.h"
#include "serving/cli/commands.h"
#include "serving/experts/expert_server.h"

namespace moesaic {
namespace {

constexpr uint16_t kDefaultPort = 7450;

struct ServeExpertsFlags {
  ExpertServerOptions server;
  std::string key;
  std::string key_file;
  bool verify = false;
  LogOptions log;
};

void AddFlags(ServeExpertsFlags& flags, OptionTable& table) {
  const char* section = "Server of experts";
  flags.server.port = kDefaultPort;
  table.Add({.name = "host",
             .target = &flags.server.host,
             .value_name = "ADDRESS",
             .help = "Address to listen on; 0.0.0.0: all of this machine.",
             .section = section});
  table.Add({.name = "port",
             .target = &flags.server.port,
             .help = "TCP port to listen on. 0: any that is free.",
             .section = section,
             .min = 0,
             .max = 65535});
  table.Add({.name = "expert-store-key-file",
             .target = &flags.key_file,
             .value_name = "FILE",
             .help = "File with the key that clients share with this server, 16 characters or "
                     "more.",
             .section = section,
             .settable_outside = true});
  table.Add({.name = "expert-store-key",
             .target = &flags.key,
             .value_name = "KEY",
             .help = "The key itself; best set in the environment, where others do not see it.",
             .section = section,
             .settable_outside = true,
             .secret = true});
  table.Add({.name = "max-clients",
             .target = &flags.server.max_clients,
             .help = "Clients at the same time; each may take a buffer of 8 MiB.",
             .section = section,
             .min = 1,
             .max = 1024});
  table.Add({.name = "client-bandwidth",
             .target = SizeInBytes(&flags.server.client_bytes_per_s),
             .help = "Send no more than so many bytes per second to each client. 0: no limit.",
             .section = section});
  table.Add({.name = "verify",
             .target = &flags.verify,
             .help = "Compare every expert with its checksum before the first client is let in; "
                     "what has room is in this machine's page cache from then on.",
             .section = section});
  AddLogSettings(flags.log, table);
}

void LogTotals(const ExpertServerCounters& counters) {
  LogInfo("{} were read by {} clients in {} reads; {} connections were refused",
          FormatBytes(counters.bytes), counters.clients, counters.reads, counters.refused);
}

}  // namespace

int ServeExpertsCommand(const Invocation& invocation) {
  CommandLine line(
      {"serve-experts",
       "STORE [STORE ...]",
       "Serve the bytes of expert stores (`moesaic pack`) to other machines, which name this "
       "server behind a copy of their own: --expert-store DIR,tcp://HOST:PORT. Only those that "
       "know the shared key get any, and the key is never sent. Stores are read through the page "
       "cache, so that this machine's memory is what the others read. What is sent is not "
       "encrypted: use a tunnel where the network is not trusted.",
       {"openssl rand -hex 32 > key",
        "moesaic serve-experts /disk/store --host 0.0.0.0 --expert-store-key-file key",
        "moesaic serve MODEL --expert-store /disk/copy,tcp://other:7450 --expert-store-key-file "
        "key"}});
  ServeExpertsFlags flags;
  AddFlags(flags, line.table());
  if (!line.Parse(invocation)) return 0;
  // Other variables are those of other commands.
  ApplyEnvironment(invocation.environment, line.table());
  if (line.positionals().empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "STORE is missing: a directory that `moesaic pack` has written");
  }
  flags.server.key = ExpertKeyOf(flags.key, flags.key_file);

  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // of all threads that are made from here on
  InitLogging(flags.log);
  const std::vector<std::filesystem::path> stores(line.positionals().begin(),
                                                  line.positionals().end());
  if (flags.verify) {
    for (const std::filesystem::path& store : stores) {
      VerifyExpertStore(store);
      LogInfo("{}: all experts have their checksums", store.string());
    }
  }
  const std::string host = flags.server.host;
  const ExpertServer server(stores, std::move(flags.server));
  for (size_t i = 0; i < stores.size(); ++i) {
    LogInfo("serving the experts of {} ({}) on {}", stores[i].string(),
            FormatBytes(server.identities()[i].bytes), ExpertPeerName({host, server.port()}));
  }
  int signal = 0;
  sigwait(&signals, &signal);
  LogTotals(server.counters());
  return 0;
}

}  // namespace moesaic
