#include "tracer/routing_trace_json.h"

#include <fmt/format.h>
#include <zlib.h>

#include <cmath>
#include <iterator>
#include <memory>

#include "core/base/error.h"
#include "core/base/json.h"

namespace moesaic {
namespace {

void AddFurtherFields(const std::string& extra, Json& object) {
  if (extra.empty()) return;
  const Json further = Json::parse(extra, nullptr, /*allow_exceptions=*/false);
  if (!further.is_object()) return;
  for (const auto& [key, value] : further.items()) object[key] = value;
}

std::string Dump(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// ,"key":[[...],[...]]: one array per token. Written by hand: a trace has millions of numbers.
template <typename T, typename Convert>
void AppendPerToken(const char* key, const std::vector<T>& values, size_t per_token,
                    std::string& out, Convert convert) {
  auto to = std::back_inserter(out);
  fmt::format_to(to, ",\"{}\":[", key);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t column = i % per_token;
    if (column == 0) out += i == 0 ? "[" : ",[";
    if (column > 0) out += ',';
    fmt::format_to(to, "{}", convert(values[i]));
    if (column + 1 == per_token) out += ']';
  }
  out += ']';
}

class TextFile {
 public:
  explicit TextFile(const std::filesystem::path& path)
      : name_(path.string()),
        file_(gzopen(name_.c_str(), name_.ends_with(".gz") ? "wb6" : "wbT"), gzclose) {
    if (!file_) Fail(ErrorKind::kIo, "{}: cannot create it", name_);
    gzbuffer(file_.get(), 1 << 18);
  }
  void Line(const std::string& text) {
    if (gzwrite(file_.get(), text.data(), static_cast<unsigned>(text.size())) <= 0 ||
        gzputc(file_.get(), '\n') < 0) {
      Fail(ErrorKind::kIo, "{}: cannot write: is the disk full?", name_);
    }
  }
  void Close() {
    if (gzclose(file_.release()) != Z_OK) {
      Fail(ErrorKind::kIo, "{}: cannot write: is the disk full?", name_);
    }
  }

 private:
  std::string name_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

}  // namespace

std::string FormatTraceHeader(const RoutingTraceHeader& header) {
  Json object = {{"model", header.model},
                 {"phase", header.phase},
                 {"n_moe_layers", header.num_layers},
                 {"first_moe_layer", header.first_layer},
                 {"n_experts", header.num_experts},
                 {"top_k", header.top_k}};
  if (header.weight_scale == std::floor(header.weight_scale) && header.weight_scale > 0 &&
      header.weight_scale < 1e15) {
    object["weight_scale"] = static_cast<int64_t>(header.weight_scale);
  } else if (header.weight_scale > 0) {
    object["weight_scale"] = header.weight_scale;
  }
  if (header.weight_bits > 0) object["weight_bits"] = header.weight_bits;
  AddFurtherFields(header.extra, object);
  return Dump(object);
}

std::string FormatTraceSequence(const RoutingTrace& trace, const TraceSequence& sequence) {
  const RoutingTraceHeader& header = trace.header;
  Json object = Json::object();
  if (!sequence.id.empty()) object["id"] = sequence.id;
  if (!sequence.domain.empty()) object["domain"] = sequence.domain;
  AddFurtherFields(sequence.extra, object);
  if (sequence.first_pos >= 0) object["first_pos"] = sequence.first_pos;
  if (sequence.prefill_tokens > 0) object["n_prefill"] = sequence.prefill_tokens;
  object["n_tokens"] = trace.tokens(sequence);
  if (!sequence.token_ids.empty() && trace.token_texts.empty()) {
    object["token_ids"] = sequence.token_ids;
  } else if (!sequence.token_ids.empty()) {
    Json texts = Json::array();
    for (const int32_t id : sequence.token_ids) {
      const auto text = trace.token_texts.texts().find(id);
      texts.push_back(text == trace.token_texts.texts().end() ? "" : text->second);
    }
    object["tokens"] = std::move(texts);
  }
  std::string line = Dump(object);
  line.pop_back();  // the closing brace
  const size_t per_token = header.experts_per_token();
  AppendPerToken("experts", sequence.experts, per_token, line, [](uint16_t id) { return id; });
  if (!sequence.weights.empty()) {
    const double scale = header.weight_scale;
    AppendPerToken("weights", sequence.weights, per_token, line, [scale](float weight) {
      return std::max(0LL, std::llround(static_cast<double>(weight) * scale));
    });
  }
  line += '}';
  return line;
}

void WriteJsonTrace(const std::filesystem::path& path, const RoutingTrace& trace) {
  TextFile file(path);
  RoutingTraceHeader header = trace.header;
  header.weight_bits = 0;  // of the other form only
  file.Line(FormatTraceHeader(header));
  for (const TraceSequence& sequence : trace.sequences) {
    file.Line(FormatTraceSequence(trace, sequence));
  }
  file.Close();
}

}  // namespace moesaic
