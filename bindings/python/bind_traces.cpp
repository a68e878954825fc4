#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/python/bind.h"
#include "bindings/python/conversions.h"
#include "bindings/python/eam_archive.h"
#include "core/base/error.h"
#include "tracer/binary_trace.h"
#include "tracer/routing_trace.h"
#include "tracer/routing_trace_json.h"
#include "tracer/trace_ops.h"

namespace moesaic::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

template <typename T, size_t Dimensions>
using Input = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

// A sequence of a trace, which it keeps.
struct SequenceView {
  std::shared_ptr<RoutingTrace> trace;  // shared with the Python objects that look at it
  size_t index = 0;

  const TraceSequence& sequence() const { return trace->sequences[index]; }
  int64_t tokens() const { return trace->tokens(sequence()); }
};

template <typename T>
nb::object PerChoice(const SequenceView& view, const std::vector<T>& values) {
  if (values.empty() && view.tokens() > 0) return nb::none();
  return ArrayView<T>(
      values, {view.tokens(), view.trace->header.num_layers, view.trace->header.top_k}, view.trace);
}

nb::object TokenIds(const SequenceView& view) {
  const std::vector<int32_t>& ids = view.sequence().token_ids;
  if (ids.empty()) return nb::none();
  return ArrayView<int32_t>(ids, {std::ssize(ids)}, view.trace);
}

nb::object EamOf(const SequenceView& view) {
  auto eam = std::make_shared<ExpertActivationMatrix>(RequestEam(*view.trace, view.sequence()));
  return MatrixView(*eam, eam);
}

std::shared_ptr<RoutingTrace> Read(const std::filesystem::path& path) {
  const nb::gil_scoped_release unlocked;
  return std::make_shared<RoutingTrace>(ReadRoutingTrace(path));
}

void Write(const std::filesystem::path& path, const RoutingTrace& trace) {
  const nb::gil_scoped_release unlocked;
  const std::string name = path.string();
  if (name.ends_with(".jsonl") || name.ends_with(".jsonl.gz")) {
    WriteJsonTrace(path, trace);
  } else {
    WriteBinaryTrace(path, trace);
  }
}

std::shared_ptr<RoutingTrace> Make(std::string model, std::string phase, int32_t first_layer,
                                   int32_t num_layers, int32_t num_experts, int32_t top_k,
                                   double weight_scale) {
  constexpr int32_t kMost = 1 << 16;
  if (num_layers < 1 || num_layers > kMost || num_experts < 1 || num_experts > kMost ||
      first_layer < 0 || first_layer > kMost || top_k < 1 || top_k > num_experts) {
    Fail(ErrorKind::kInvalidArgument,
         "a trace of {} layers from {} with {} experts, {} per token, cannot be", num_layers,
         first_layer, num_experts, top_k);
  }
  if (phase != "prefill" && phase != "decode" && phase != "mixed") {
    Fail(ErrorKind::kInvalidArgument, "phase: '{}' is not known; use prefill, decode or mixed",
         phase);
  }
  auto trace = std::make_shared<RoutingTrace>();
  trace->header.model = std::move(model);
  trace->header.phase = std::move(phase);
  trace->header.first_layer = first_layer;
  trace->header.num_layers = num_layers;
  trace->header.num_experts = num_experts;
  trace->header.top_k = top_k;
  trace->header.weight_scale = weight_scale;
  return trace;
}

void CheckExperts(const RoutingTraceHeader& header, const TraceSequence& sequence) {
  const auto top_k = static_cast<size_t>(header.top_k);
  for (size_t i = 0; i < sequence.experts.size(); ++i) {
    if (sequence.experts[i] >= header.num_experts) {
      Fail(ErrorKind::kInvalidArgument, "sequence '{}' names expert {}; layers have 0 to {}",
           sequence.id, sequence.experts[i], header.num_experts - 1);
    }
    for (size_t other = i - i % top_k; other < i; ++other) {
      if (sequence.experts[other] == sequence.experts[i]) {
        Fail(ErrorKind::kInvalidArgument, "sequence '{}' routes a token to expert {} twice",
             sequence.id, sequence.experts[i]);
      }
    }
  }
}

void Append(RoutingTrace& trace, std::string id, std::string domain,
            const Input<uint16_t, 3>& experts, const std::optional<Input<float, 3>>& weights,
            const std::optional<Input<int32_t, 1>>& token_ids, int64_t prefill_tokens) {
  const RoutingTraceHeader& header = trace.header;
  const auto shape_is = [&](const auto& array) {
    return array.shape(0) == experts.shape(0) &&
           array.shape(1) == static_cast<size_t>(header.num_layers) &&
           array.shape(2) == static_cast<size_t>(header.top_k);
  };
  const auto tokens = static_cast<int64_t>(experts.shape(0));
  if (!shape_is(experts) || (weights && !shape_is(*weights)) ||
      (token_ids && static_cast<int64_t>(token_ids->shape(0)) != tokens) || prefill_tokens < 0 ||
      prefill_tokens > tokens) {
    Fail(ErrorKind::kInvalidArgument,
         "sequence '{}' does not have the shape [tokens, {}, {}] of the trace in all its parts", id,
         header.num_layers, header.top_k);
  }
  if (weights.has_value() != (header.weight_scale > 0)) {
    Fail(ErrorKind::kInvalidArgument, "weights are for all sequences of a trace, or for none");
  }
  TraceSequence sequence;
  sequence.id = std::move(id);
  sequence.domain = std::move(domain);
  sequence.experts.assign(experts.data(), experts.data() + experts.size());
  if (weights) sequence.weights.assign(weights->data(), weights->data() + weights->size());
  if (token_ids) sequence.token_ids.assign(token_ids->data(), token_ids->data() + tokens);
  sequence.prefill_tokens = prefill_tokens;
  CheckExperts(header, sequence);
  trace.sequences.push_back(std::move(sequence));
}

using Counts = Input<uint32_t, 2>;

ExpertActivationMatrix ToMatrix(const EamCollection& collection, const Counts& counts) {
  if (counts.shape(0) != static_cast<size_t>(collection.num_layers()) ||
      counts.shape(1) != static_cast<size_t>(collection.num_experts())) {
    Fail(ErrorKind::kInvalidArgument,
         "the matrix is [{}, {}], those of the collection are [{}, {}]", counts.shape(0),
         counts.shape(1), collection.num_layers(), collection.num_experts());
  }
  ExpertActivationMatrix matrix(collection.num_layers(), collection.num_experts());
  for (int layer = 0; layer < collection.num_layers(); ++layer) {
    for (int expert = 0; expert < collection.num_experts(); ++expert) {
      if (const uint32_t tokens = counts(layer, expert)) matrix.Add(layer, expert, tokens);
    }
  }
  return matrix;
}

nb::tuple Nearest(const EamArchive& archive, const Counts& counts) {
  EamCollection& collection = archive.collection();
  const EamMatch match = collection.Nearest(ToMatrix(collection, counts));
  return nb::make_tuple(match.entry, match.similarity);
}

nb::object Entry(const EamArchive& archive, int entry) {
  if (entry < 0 || entry >= archive.collection().size()) {
    throw nb::index_error(
        fmt::format("entry {} of {}", entry, archive.collection().size()).c_str());
  }
  auto matrix = std::make_shared<ExpertActivationMatrix>(archive.collection().Entry(entry));
  return MatrixView(*matrix, matrix);
}

void BindCollection(nb::module_& module) {
  nb::class_<EamArchive>(module, "EamArchive")
      .def(nb::init<int64_t, int64_t, int64_t>(), "num_layers"_a, "num_experts"_a, "capacity"_a)
      .def_static("load", &EamArchive::Load, "file"_a, "capacity"_a)
      .def_static("compact", &EamArchive::Compact, "trace"_a, "capacity"_a, "iterations"_a,
                  "seed"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_static("of_engine", &EamArchive::Of, "engine"_a,
                  nb::call_guard<nb::gil_scoped_release>())
      .def(
          "put_into",
          [](const EamArchive& self, EngineHandle& engine, bool merge) {
            const nb::gil_scoped_release unlocked;
            self.PutInto(engine, merge ? CollectionUpdate::kMerge : CollectionUpdate::kReplace);
          },
          "engine"_a, "merge"_a)
      .def("save", &EamArchive::Save, "file"_a)
      .def("merge", &EamArchive::Merge, "other"_a)
      .def(
          "insert",
          [](EamArchive& self, const Counts& counts) {
            return self.collection().Insert(ToMatrix(self.collection(), counts));
          },
          "counts"_a)
      .def("nearest", &Nearest, "counts"_a)
      .def("entry", &Entry, "entry"_a)
      .def_prop_ro("size", [](const EamArchive& self) { return self.collection().size(); })
      .def_prop_ro("capacity", [](const EamArchive& self) { return self.collection().capacity(); })
      .def_prop_ro("num_layers",
                   [](const EamArchive& self) { return self.collection().num_layers(); })
      .def_prop_ro("num_experts",
                   [](const EamArchive& self) { return self.collection().num_experts(); })
      .def_prop_ro("counts", [](const std::shared_ptr<EamArchive>& self) {
        const EamCollection& collection = self->collection();
        // Entries lie one after another.
        const std::span<const uint8_t> first =
            collection.size() > 0 ? collection.Counts(0) : std::span<const uint8_t>();
        return ArrayView<uint8_t>(
            {first.data(), first.size() * static_cast<size_t>(collection.size())},
            {collection.size(), collection.num_layers(), collection.num_experts()}, self);
      });
}

}  // namespace

void BindTraces(nb::module_& module) {
  nb::class_<SequenceView>(module, "TraceSequence")
      .def_prop_ro("id", [](const SequenceView& self) { return Text(self.sequence().id); })
      .def_prop_ro("domain", [](const SequenceView& self) { return Text(self.sequence().domain); })
      .def_prop_ro("tokens", &SequenceView::tokens)
      .def_prop_ro("prefill_tokens",
                   [](const SequenceView& self) { return self.sequence().prefill_tokens; })
      .def_prop_ro(
          "experts",
          [](const SequenceView& self) { return PerChoice(self, self.sequence().experts); })
      .def_prop_ro(
          "weights",
          [](const SequenceView& self) { return PerChoice(self, self.sequence().weights); })
      .def_prop_ro("token_ids", &TokenIds)
      .def_prop_ro("eam", &EamOf);

  nb::class_<RoutingTrace>(module, "RoutingTrace")
      .def(nb::new_(&Make), "model"_a, "phase"_a, "first_layer"_a, "num_layers"_a, "num_experts"_a,
           "top_k"_a, "weight_scale"_a)
      .def("append", &Append, "id"_a, "domain"_a, "experts"_a, "weights"_a.none(),
           "token_ids"_a.none(), "prefill_tokens"_a)
      .def_prop_ro("model", [](const RoutingTrace& self) { return Text(self.header.model); })
      .def_prop_ro("phase", [](const RoutingTrace& self) { return self.header.phase; })
      .def_prop_ro("first_layer", [](const RoutingTrace& self) { return self.header.first_layer; })
      .def_prop_ro("num_layers", [](const RoutingTrace& self) { return self.header.num_layers; })
      .def_prop_ro("num_experts", [](const RoutingTrace& self) { return self.header.num_experts; })
      .def_prop_ro("top_k", [](const RoutingTrace& self) { return self.header.top_k; })
      .def_ro("lost_bytes", &RoutingTrace::lost_bytes)
      .def_prop_ro("sequences", [](const std::shared_ptr<RoutingTrace>& self) {
        nb::list list;
        for (size_t i = 0; i < self->sequences.size(); ++i) list.append(SequenceView{self, i});
        return list;
      });
  module.def("read_trace", &Read, "path"_a);
  module.def("write_trace", &Write, "path"_a, "trace"_a);
  BindCollection(module);
}

}  // namespace moesaic::python
