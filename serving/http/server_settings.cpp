#include "serving/http/server_settings.h"

#include "core/config/setting_section.h"

namespace moesaic {

void AddServerSettings(ServerOptions& server, int64_t& max_queue, bool visible,
                       OptionTable& table) {
  const SettingSection section(table, "Server", visible);
  section.Add({.name = "host",
               .target = &server.host,
               .value_name = "ADDRESS",
               .help = "Address to listen on; 0.0.0.0 for all."});
  section.Add({.name = "port",
               .target = &server.port,
               .help = "Port to listen on; 0: any free one.",
               .min = 0,
               .max = 65535});
  section.Add({.name = "api-key",
               .target = &server.api_keys,
               .value_name = "KEY",
               .help = "Accept only requests with one of these keys (commas separate several).",
               .secret = true});
  section.Add({.name = "api-key-file",
               .target = &server.api_key_file,
               .value_name = "FILE",
               .help = "More keys, which do not show in the process list: one per line, or as "
                       "{\"key\": ..., \"name\": ..., \"models\": [...], \"admin\": true}. "
                       "SIGHUP reads the file again."});
  section.Add({.name = "insecure",
               .target = &server.insecure,
               .help = "Without keys, listen on an address that others can reach all the same."});
  section.Add({.name = "ssl-certfile",
               .target = &server.ssl_certfile,
               .value_name = "FILE",
               .help = "Speak TLS (1.2 or later) with this certificate and those of its issuers "
                       "behind it, in PEM. SIGHUP reads the file again."});
  section.Add({.name = "ssl-keyfile",
               .target = &server.ssl_keyfile,
               .value_name = "FILE",
               .help = "The certificate's private key, in PEM. Default: it is in --ssl-certfile."});
  section.Add({.name = "models",
               .target = &server.models_file,
               .value_name = "FILE",
               .help = "Serve the models of this YAML file, which says of each how it is called, "
                       "when it is loaded and what it may take (docs/multi_model.md)."});
  section.Add({.name = "served-model-name",
               .target = &server.served_model_names,
               .value_name = "NAME",
               .help = "Names that requests may use for the model. Default: the model as given."});
  section.Add({.name = "max-queue",
               .target = &max_queue,
               .help = "Requests that may wait; more are answered with 503 and Retry-After.",
               .min = 0,
               .max = 1e6});
  section.Add({.name = "request-timeout",
               .target = &server.request_timeout,
               .value_name = "SECONDS",
               .help = "A request ends after this long. 0: never.",
               .min = 0,
               .max = 1e6});
  section.Add({.name = "shutdown-timeout",
               .target = &server.shutdown_timeout,
               .value_name = "SECONDS",
               .help = "How long running requests may go on after SIGTERM or SIGINT. 0: none.",
               .min = 0,
               .max = 1e6});
  section.Add({.name = "max-body",
               .target = SizeInBytes(&server.max_body_bytes),
               .help = "Largest request body."});
  section.Add({.name = "batch-dir",
               .target = &server.batch_dir,
               .value_name = "DIR",
               .help = "Take files and batches of clients (/v1/files, /v1/batches), and keep them "
                       "here. They are answered while no other request is there. Default: none."});
  section.Add({.name = "batch-dir-size",
               .target = SizeInBytes(&server.batch_dir_bytes),
               .help = "Of all files of --batch-dir together; more are refused."});
  section.Add({.name = "batch-max-age",
               .target = &server.batch_max_age_days,
               .value_name = "DAYS",
               .help = "When files and ended batches of --batch-dir are removed.",
               .min = 0.01,
               .max = 36500});
  section.Add({.name = "max-upload",
               .target = SizeInBytes(&server.max_upload_bytes),
               .help =
                   "Largest file for --batch-dir, if more than --max-body. It is held in memory "
                   "while it comes."});
  section.Add({.name = "replay-memory",
               .target = SizeInBytes(&server.replay_bytes),
               .help = "For what each model has generated, so that conversations with calls of "
                       "tools come back as the same tokens and the prefix cache has them. 0: "
                       "nothing is kept."});
  section.Add({.name = "grammar-memory",
               .target = &server.grammar_memory,
               .help =
                   "For structured output of each model: compiled grammars, how far answers are "
                   "in them, and tables of the vocabulary. What does not fit beside what is in "
                   "use is refused. auto: 128 MiB, or a 64th of the memory."});
  section.Add({.name = "allowed-origins",
               .target = &server.allowed_origins,
               .value_name = "ORIGIN",
               .help = "Origins that browsers may call from (CORS); * for all."});
  section.Add({.name = "allowed-hosts",
               .target = &server.allowed_hosts,
               .value_name = "HOST",
               .help = "Names by which requests may call this server (their Host header), beside "
                       "localhost; * for all. Without this, only a server that listens on loopback "
                       "checks them."});
  section.Add({.name = "metrics-vllm-names",
               .target = &server.metrics_vllm_names,
               .help = "Export the metrics under vLLM's names too, for existing dashboards."});
}

}  // namespace moesaic
