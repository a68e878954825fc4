// Engine: serves one model. It owns the weights, the KV pool, what brings the experts and one
// thread that runs steps; requests join and leave the running batch between steps.
//
// Thread contract: all public methods may be called from any thread. Sinks are called on the
// engine's thread and must not block.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/config/model_config.h"
#include "prefetch/link/expert_provider.h"
#include "serving/engine/request.h"
#include "serving/model/step_stats.h"
#include "tracer/residency_list.h"

namespace moesaic {

class EamCollection;
class LiveView;
struct RequestExperts;
class Tokenizer;
class MetricsRegistry;
class ResizableKv;
class ResizableSlots;

using RequestId = uint64_t;

// Receives one request's output. Exactly one of {a delta with finish, OnError} comes last.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void OnDelta(OutputDelta delta) = 0;
  virtual void OnError(const Error& error) = 0;
};

struct EngineStatus {
  bool draining = false;
  std::string not_ready;       // why no request can succeed; empty: they can
  std::string not_ready_code;  // the kind of the reason: device_lost, read_failed
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t preemptions = 0;  // so far: sequences that left for want of KV blocks, to come back
  double kv_usage = 0;      // 0..1
  int64_t expert_slots = 0;
  int64_t experts_resident = 0;
  std::vector<DeviceStatus> devices;  // empty: none
  std::vector<ReaderLink> links;      // of several stores of experts; empty: there is one
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const GenerationDefaults& generation_defaults() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual int64_t max_context_tokens() const = 0;  // prompt and output of one request

  // Admits all requests or none. sinks[i] belongs to requests[i] (a shared_ptr because the engine
  // and the connection both outlive each other in some orders). Throws Error: kInvalidArgument (a
  // request can never run: empty prompt, token ids out of range, longer than the context),
  // kUnavailable (queue full or draining). The queue is full when it has no place for one of them;
  // the rest may wait beyond it.
  virtual std::vector<RequestId> Submit(std::vector<EngineRequest> requests,
                                        std::vector<std::shared_ptr<OutputSink>> sinks) = 0;
  // The sink gets finish = kCancelled unless it has ended already. Unknown ids are ignored.
  virtual void Cancel(RequestId id) = 0;
  // Has `use` called once between two steps, on the engine's thread, with the request EAMs that its
  // predictor goes by (null: it has none; collection_file.h). `use` must not throw. An engine that
  // ends first drops it uncalled.
  virtual void WithCollection(std::function<void(EamCollection*)> use) = 0;
  // Likewise, with the experts that are in fast memory, the most worthy first.
  virtual void WithResidents(std::function<void(std::span<const ResidentExpert>)> use) = 0;
  // Likewise with the experts that a request has used: of one that runs, or that has ended lately
  // while somebody watched (live_view.h); null: there is no such request, or nobody knows.
  // `nearest`: with the one of the collection that it is most like, which is looked for on the
  // engine's thread.
  virtual void WithRequest(RequestId id, bool nearest,
                           std::function<void(std::shared_ptr<const RequestExperts>)> use) = 0;
  // Refuses new requests from now on.
  virtual void BeginDrain() = 0;
  virtual EngineStatus Status() const = 0;
  // Sum over all steps so far.
  virtual StepStats Stats() const = 0;
  // For who looks on while it works; null: there is nothing to look at. Any thread.
  virtual LiveView* live() { return nullptr; }
  // For who takes memory of experts from it and gives it some while it works; null: it keeps what
  // it has. Answers have the same bits. Valid while the engine is there; any thread.
  virtual ResizableSlots* resizable_slots() { return nullptr; }
  // Likewise for its keys and values (resizable_kv.h).
  virtual ResizableKv* resizable_kv() { return nullptr; }
};

}  // namespace moesaic
