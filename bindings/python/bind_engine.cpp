#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/answer_stream.h"
#include "bindings/python/bind.h"
#include "bindings/python/conversions.h"
#include "bindings/python/engine_handle.h"
#include "serving/api/token_speller.h"
#include "serving/text/tokenizer.h"
#include "tracer/request_tracer.h"

namespace moesaic::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// Signals reach Python while its main thread waits in here: their handlers run, and what these
// raise (KeyboardInterrupt) ends the waiting.
void RunSignalHandlers() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Joining the engine's threads takes as long as a step, and other threads of Python run meanwhile.
void FreeWithoutGil(EngineHandle* engine) {
  if (PyGILState_Check() == 0) {
    delete engine;
    return;
  }
  const nb::gil_scoped_release unlocked;
  delete engine;
}

std::shared_ptr<EngineHandle> MakeEngine(Keywords settings, std::string config,
                                         std::vector<std::string> environment,
                                         std::filesystem::path executable, std::string workload) {
  const nb::gil_scoped_release unlocked;
  EngineArguments arguments{std::move(settings), std::move(config), std::move(environment),
                            std::move(executable), std::move(workload)};
  return {new EngineHandle(std::move(arguments), RunSignalHandlers), FreeWithoutGil};
}

void CloseEngine(EngineHandle& engine) {
  const nb::gil_scoped_release unlocked;
  engine.Close();
}

Prepared PrepareWithoutGil(EngineHandle& engine, std::string body, bool chat,
                           std::string request_id, bool fill_context, bool routed_experts) {
  const nb::gil_scoped_release unlocked;
  return Prepare(engine,
                 {std::move(body), chat, std::move(request_id), fill_context, routed_experts});
}

nb::tuple TokenTuple(const GeneratedToken& token) {
  nb::list top;
  for (const TokenLogprob& best : token.top) top.append(nb::make_tuple(best.token, best.logprob));
  return nb::make_tuple(token.token, token.logprob, top);
}

nb::object TokenTuples(const std::vector<GeneratedToken>& tokens) {
  nb::list list;
  for (const GeneratedToken& token : tokens) list.append(TokenTuple(token));
  return list;
}

nb::list TokenIds(const std::vector<GeneratedToken>& tokens) {
  if (tokens.size() == 1) return Integers({&tokens.front().token, 1});
  std::vector<int32_t> ids;
  ids.reserve(tokens.size());
  for (const GeneratedToken& token : tokens) ids.push_back(token.token);
  return Integers(ids);
}

const char* EventName(ChatEvent::Kind kind) {
  switch (kind) {
    case ChatEvent::Kind::kReasoning:
      return "reasoning";
    case ChatEvent::Kind::kContent:
      return "content";
    case ChatEvent::Kind::kCallBegin:
      return "call";
    case ChatEvent::Kind::kArguments:
      return "arguments";
    case ChatEvent::Kind::kCallEnd:
      break;
  }
  return "call_end";
}

nb::object EventTuples(const AnswerStream::Item& item) {
  if (!item.chat) return nb::none();
  nb::list events;
  for (const ChatEvent& event : item.events) {
    events.append(nb::make_tuple(EventName(event.kind), Text(event.text), event.id, event.call));
  }
  return events;
}

// (finish_reason, stop_text, cached_tokens, trace, routed, error), or None while more comes.
nb::object EndOf(const AnswerStream::Item& item) {
  if (!item.ends()) return nb::none();
  const OutputDelta& delta = item.delta;
  nb::object error = nb::none();
  if (item.error) error = MakeError(item.error->kind(), item.error->what());
  return nb::make_tuple(item.finish_reason, Text(delta.stop_text), delta.usage.cached_tokens,
                        nb::cast(std::const_pointer_cast<RequestTrace>(delta.trace)),
                        delta.routed == nullptr ? nb::none() : RoutedView(delta.routed), error);
}

// The tuples that moesaic/_outputs.py takes apart: (choice, text, token_ids, logprobs,
// prompt_logprobs, events, end).
nb::list ItemTuples(const std::vector<AnswerStream::Item>& items) {
  nb::list list;
  for (const AnswerStream::Item& item : items) {
    const OutputDelta& delta = item.delta;
    list.append(
        nb::make_tuple(item.choice, Text(delta.text), TokenIds(delta.tokens),
                       item.logprobs ? TokenTuples(delta.tokens) : nb::none(),
                       delta.prompt_tokens.empty() ? nb::none() : TokenTuples(delta.prompt_tokens),
                       EventTuples(item), EndOf(item)));
  }
  return list;
}

nb::list Take(AnswerStream& stream, int milliseconds) {
  // A loop that was woken takes what is there: to hand the GIL over and back would cost as much.
  if (milliseconds == 0) return ItemTuples(stream.Take(std::chrono::milliseconds(0)));
  std::vector<AnswerStream::Item> items;
  {
    const nb::gil_scoped_release unlocked;
    items = stream.Take(std::chrono::milliseconds(milliseconds));
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  return ItemTuples(items);
}

std::vector<size_t> Submit(AnswerStream& stream, const std::vector<Prepared*>& prepared) {
  std::vector<Prepared> requests;
  requests.reserve(prepared.size());
  for (Prepared* request : prepared) requests.push_back(std::move(*request));
  const nb::gil_scoped_release unlocked;
  return stream.Submit(std::move(requests));
}

nb::dict LedgerDict(const MemoryLedger& ledger) {
  nb::dict items;
  for (const MemoryItem& item : ledger.items) items[item.name.c_str()] = item.bytes;
  nb::dict result;
  result["memory"] = ledger.memory;
  result["limit_bytes"] = ledger.limit_bytes == UINT64_MAX
                              ? nb::object(nb::none())
                              : nb::object(nb::int_(ledger.limit_bytes));
  result["total_bytes"] = ledger.total_bytes();
  result["items"] = items;
  return result;
}

nb::list Ledgers(EngineHandle& engine) {
  const EngineHandle::User use(engine);
  nb::list ledgers;
  for (const MemoryLedger& ledger : use->ledgers) ledgers.append(LedgerDict(ledger));
  return ledgers;
}

nb::dict Stats(EngineHandle& engine) {
  const EngineHandle::User use(engine);
  const StepStats steps = use->engine().Stats();
  const EngineStatus status = use->engine().Status();
  nb::dict result;
  result["steps"] = steps.steps;
  result["prefill_tokens"] = steps.prefill_tokens;
  result["decode_tokens"] = steps.decode_tokens;
  result["running"] = status.running;
  result["waiting"] = status.waiting;
  result["preemptions"] = status.preemptions;
  result["kv_usage"] = status.kv_usage;
  result["expert_slots"] = status.expert_slots;
  result["experts_resident"] = status.experts_resident;
  result["expert_hits"] = steps.experts.hits;
  result["expert_late_hits"] = steps.experts.late_hits;
  result["expert_misses"] = steps.experts.misses;
  result["expert_evictions"] = steps.experts.evictions;
  result["expert_bytes_read"] = steps.experts.bytes_read;
  result["prefetched"] = steps.experts.prefetched;
  result["prefetched_used"] = steps.experts.prefetched_used;
  result["blocked_us"] = steps.experts.blocked_us;
  result["attention_us"] = steps.attention_us;
  result["moe_us"] = steps.moe_us;
  result["predict_us"] = steps.predict_us;
  result["head_us"] = steps.head_us;
  result["total_us"] = steps.total_us;
  return result;
}

// uint8 [layers, experts], 1: in fast memory. Asked of the engine's thread, which answers between
// two steps.
nb::object Residency(EngineHandle& engine) {
  std::vector<uint8_t> resident;
  size_t layers = 0;
  size_t experts = 0;
  {
    const nb::gil_scoped_release unlocked;
    const EngineHandle::User use(engine);
    layers = static_cast<size_t>(use->engine().config().num_layers());
    experts = static_cast<size_t>(use->engine().config().num_experts());
    auto answer = std::make_shared<std::promise<std::vector<ResidentExpert>>>();
    std::future<std::vector<ResidentExpert>> listed = answer->get_future();
    use->engine().WithResidents([answer](std::span<const ResidentExpert> residents) {
      answer->set_value({residents.begin(), residents.end()});
    });
    resident.resize(layers * experts);
    for (const ResidentExpert& expert : listed.get()) {
      resident[expert.id.layer * experts + expert.id.index] = 1;
    }
  }
  return BytesArray(std::move(resident), layers, experts);
}

nb::list Encode(EngineHandle& engine, const std::string& text, bool add_special_tokens) {
  std::vector<int32_t> tokens;
  {
    const nb::gil_scoped_release unlocked;
    const EngineHandle::User use(engine);
    tokens = use->engine().tokenizer().Encode(text, {add_special_tokens, true});
  }
  return Integers(tokens);
}

nb::str Decode(EngineHandle& engine, const std::vector<int32_t>& tokens, bool skip_special) {
  const EngineHandle::User use(engine);
  return Text(use->engine().tokenizer().Decode(tokens, skip_special));
}

nb::dict SpecialTokens(EngineHandle& engine) {
  const EngineHandle::User use(engine);
  const SpecialTokenIds& ids = use->engine().tokenizer().special_ids();
  nb::dict tokens;
  tokens["bos"] = nb::cast(ids.bos);
  tokens["eos"] = nb::cast(ids.eos);
  tokens["unk"] = nb::cast(ids.unk);
  tokens["pad"] = nb::cast(ids.pad);
  return tokens;
}

nb::str TokenTextOf(EngineHandle& engine, int32_t token) {
  const EngineHandle::User use(engine);
  return Text(TokenString(MakeTokenSpeller(use->engine().tokenizer(), false)(token, false).bytes));
}

template <auto Matrix>
nb::object ViewOf(const std::shared_ptr<RequestTrace>& trace) {
  return MatrixView((*trace).*Matrix, trace);
}

void BindTrace(nb::module_& module) {
  nb::class_<RequestTrace>(module, "RequestTrace")
      .def_prop_ro("prefill", ViewOf<&RequestTrace::prefill>)
      .def_prop_ro("decode", ViewOf<&RequestTrace::decode>)
      .def_ro("prefill_tokens", &RequestTrace::prefill_tokens)
      .def_ro("decode_tokens", &RequestTrace::decode_tokens)
      .def_ro("iterations", &RequestTrace::iterations);
}

}  // namespace

void BindEngine(nb::module_& module) {
  BindTrace(module);
  nb::class_<Prepared>(module, "Prepared")
      .def_prop_ro("prompt_token_ids",
                   [](const Prepared& self) { return Integers(self.prompt_tokens); })
      .def_prop_ro("choices", [](const Prepared& self) { return self.requests.size(); })
      .def_ro("unknown_fields", &Prepared::unknown_fields);

  nb::class_<EngineHandle>(module, "Engine")
      .def(nb::new_(&MakeEngine), "settings"_a, "config"_a, "environment"_a, "executable"_a,
           "workload"_a)
      .def("prepare", &PrepareWithoutGil, "body"_a, "chat"_a, "request_id"_a, "fill_context"_a,
           "routed_experts"_a)
      .def("close", &CloseEngine)
      .def_prop_ro("closed", &EngineHandle::closed)
      .def_prop_ro(
          "model",
          [](EngineHandle& self) { return EngineHandle::User(self)->model().names.front(); })
      .def_prop_ro("max_model_len",
                   [](EngineHandle& self) {
                     return EngineHandle::User(self)->engine().max_context_tokens();
                   })
      .def("stats", &Stats)
      .def("residency", &Residency)
      .def("ledgers", &Ledgers)
      .def("encode", &Encode, "text"_a, "add_special_tokens"_a)
      .def("decode", &Decode, "tokens"_a, "skip_special_tokens"_a)
      .def_prop_ro("special_tokens", &SpecialTokens)
      .def("token_text", &TokenTextOf, "token"_a);

  nb::class_<AnswerStream>(module, "AnswerStream")
      .def(nb::init<std::shared_ptr<EngineHandle>, int, bool, size_t>(), "engine"_a,
           "wake_descriptor"_a, "only_ends"_a, "notice_tokens"_a = 1)
      .def("submit", &Submit, "prepared"_a)
      .def("take", &Take, "milliseconds"_a)
      .def("abandon", &AnswerStream::Abandon, "first_choice"_a, "count"_a,
           nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace moesaic::python
