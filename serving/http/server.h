// Server: the HTTP server of `moesaic serve`. It owns the listening socket, the I/O and worker
// threads and all connections.
//
// It listens before there is a model: /health answers, the rest says 503 until SetModels. Signals
// are the caller's business: on the first one it calls Stop with a drain time.
//
// Thread contract: public functions may be called from any thread; Start once, SetModels by one
// thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/metrics.h"
#include "serving/api/model_manager.h"
#include "serving/api/served_model.h"
#include "serving/http/batch_call.h"
#include "serving/http/server_options.h"

namespace moesaic {

class Server {
 public:
  // `metrics` must outlive the server.
  Server(ServerOptions options, MetricsRegistry& metrics);
  ~Server();  // Stop(0), and waits for the workers
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // What it does batches with; before Start. Must outlive the server.
  void SetBatches(BatchBackend batches);
  // Reads the files of keys, binds, listens and starts the threads. Throws Error: kInvalidArgument
  // (host cannot be resolved, wrong keys, an address that others can reach without keys), kIo
  // (address in use, not permitted), and what reading the files throws.
  void Start();
  // Reads the files again, for requests that come from now on. One that cannot be used leaves what
  // there was; the log says so.
  void Reload();
  // The port that is listened on, after Start.
  uint16_t port() const;
  std::string address() const;  // "http://127.0.0.1:8000", for messages

  // From now on these are served, in place of those before. Throws Error(kInvalidArgument) when
  // names clash.
  void SetModels(std::vector<ServedModel> models);
  // Before the first SetModels: how much of the model has been read, from 0 to 1.
  void ShowLoading(double fraction);
  // As ApiService::Model.
  ServedModel Model(const std::string& name);
  // Before the first SetModels: who loads models that are not loaded; outlives this.
  void SetManager(ModelManager* manager);

  // Readiness fails and new requests get 503; running ones go on.
  void BeginDrain();
  // Drains, waits up to `drain_timeout` for running requests, ends the others with an error, closes
  // all connections and joins the threads. Returns true when every request could finish. A second
  // call, from any thread, shortens the wait of the first one to its own timeout.
  bool Stop(std::chrono::milliseconds drain_timeout);
  // After Stop: a worker did not let go of its request within ServerOptions::worker_timeout. The
  // destructor would wait for it, so a process that must end exits without.
  bool HasBusyWorkers() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
