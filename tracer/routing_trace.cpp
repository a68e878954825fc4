#include "tracer/routing_trace.h"

#include <zlib.h>

#include <initializer_list>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "tracer/binary_trace.h"

namespace moesaic {
namespace {

using nlohmann::json;

// Larger than any real line (a few MB), small enough that a lying file cannot take the machine.
constexpr size_t kMaxLineBytes = size_t{1} << 30;

json ParseObject(std::string_view text, std::string_view name, int64_t line) {
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) {
    Fail(ErrorKind::kCorrupt, "{}:{}: expected a JSON object on one line", name, line);
  }
  return value;
}

int32_t RequireInt(const json& object, const char* key, int64_t low, int64_t high,
                   std::string_view name) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_integer() || it->get<int64_t>() < low ||
      it->get<int64_t>() > high) {
    Fail(ErrorKind::kCorrupt, "{}:1: \"{}\" must be a whole number from {} to {}", name, key, low,
         high);
  }
  return it->get<int32_t>();
}

std::string OptionalString(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

const json& RequireTokens(const json& object, const char* key, std::string_view name,
                          int64_t line) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) {
    Fail(ErrorKind::kCorrupt, "{}:{}: \"{}\" must be an array with one array per token", name, line,
         key);
  }
  return *it;
}

// Appends one token's numbers, checked for count and range.
template <typename T, typename Convert>
void AppendToken(const json& token, size_t count, int64_t limit, const char* key,
                 std::string_view name, int64_t line, size_t at, std::vector<T>& out,
                 Convert convert) {
  if (!token.is_array() || token.size() != count) {
    Fail(ErrorKind::kCorrupt, "{}:{}: {}[{}] must have {} numbers (layers x top_k)", name, line,
         key, at, count);
  }
  for (const json& value : token) {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= limit) {
      Fail(ErrorKind::kCorrupt, "{}:{}: {}[{}] has {}, which is not a whole number below {}", name,
           line, key, at, value.dump(), limit);
    }
    out.push_back(convert(value.get<int64_t>()));
  }
}

// What the object has beside the named fields, as text; empty when there is nothing.
std::string FurtherFields(json object, std::initializer_list<const char*> named) {
  for (const char* key : named) object.erase(key);
  return object.empty() ? std::string()
                        : object.dump(-1, ' ', false, json::error_handler_t::replace);
}

// One number per token: token_ids as they are, or the texts of tokens.
std::vector<int32_t> ParseTokenIds(const json& object, size_t count, std::string_view name,
                                   int64_t line, TokenTexts* texts) {
  std::vector<int32_t> ids;
  const bool by_id = object.contains("token_ids");
  if (!by_id && (texts == nullptr || !object.contains("tokens"))) return ids;
  const char* key = by_id ? "token_ids" : "tokens";
  const json& tokens = RequireTokens(object, key, name, line);
  if (tokens.size() != count) {
    Fail(ErrorKind::kCorrupt, "{}:{}: {} has {} entries but {} tokens have experts", name, line,
         key, tokens.size(), count);
  }
  ids.reserve(count);
  for (const json& token : tokens) {
    if (by_id && token.is_number_integer() && token.get<int64_t>() >= 0 &&
        token.get<int64_t>() <= std::numeric_limits<int32_t>::max()) {
      ids.push_back(token.get<int32_t>());
    } else if (!by_id && token.is_string()) {
      ids.push_back(texts->Intern(token.get_ref<const std::string&>()));
    } else {
      Fail(ErrorKind::kCorrupt, "{}:{}: {}[{}] must be a {}", name, line, key, ids.size(),
           by_id ? "whole number of 31 bits" : "text");
    }
  }
  return ids;
}

class GzipLines {
 public:
  explicit GzipLines(const std::filesystem::path& path)
      : name_(path.string()), file_(gzopen(name_.c_str(), "rb"), gzclose) {
    if (!file_) Fail(ErrorKind::kNotFound, "{}: cannot open the trace", name_);
    gzbuffer(file_.get(), 1 << 18);
  }

  bool Next(std::string& line) {
    line.clear();
    char buffer[1 << 16];
    while (gzgets(file_.get(), buffer, sizeof(buffer)) != nullptr) {
      line += buffer;
      if (line.size() > kMaxLineBytes)
        Fail(ErrorKind::kCorrupt, "{}: a line is longer than 1 GiB", name_);
      if (!line.empty() && line.back() == '\n') {
        line.pop_back();
        return true;
      }
    }
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    if (code != Z_OK && code != Z_STREAM_END) {
      Fail(ErrorKind::kCorrupt, "{}: damaged or truncated: {}", name_, message);
    }
    return !line.empty();
  }

 private:
  std::string name_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

}  // namespace

int32_t TokenTexts::Intern(std::string_view text) {
  constexpr uint32_t kLargest = std::numeric_limits<int32_t>::max();
  auto id = static_cast<int32_t>(Hash64(text) & kLargest);
  while (!Restore(id, text)) id = static_cast<int32_t>((static_cast<uint32_t>(id) + 1) & kLargest);
  return id;
}

bool TokenTexts::Restore(int32_t id, std::string_view text) {
  const auto [it, added] = texts_.try_emplace(id, text);
  return added || it->second == text;
}

RoutingTraceHeader ParseTraceHeader(std::string_view text, std::string_view name) {
  const json object = ParseObject(text, name, 1);
  RoutingTraceHeader header;
  header.model = OptionalString(object, "model");
  header.phase = OptionalString(object, "phase");
  header.num_layers = RequireInt(object, "n_moe_layers", 1, 10000, name);
  header.first_layer = object.contains("first_moe_layer")
                           ? RequireInt(object, "first_moe_layer", 0, 10000, name)
                           : 0;
  header.num_experts = RequireInt(object, "n_experts", 1, 65535, name);
  header.top_k = RequireInt(object, "top_k", 1, header.num_experts, name);
  if (const auto scale = object.find("weight_scale"); scale != object.end() && scale->is_number()) {
    header.weight_scale = scale->get<double>();
    if (!(header.weight_scale > 0)) {
      Fail(ErrorKind::kCorrupt, "{}:1: \"weight_scale\" must be positive", name);
    }
  }
  if (object.contains("weight_bits")) {
    header.weight_bits = RequireInt(object, "weight_bits", 0, 32, name);
  }
  header.extra = FurtherFields(object, {"model", "phase", "n_moe_layers", "first_moe_layer",
                                        "n_experts", "top_k", "weight_scale", "weight_bits"});
  return header;
}

TraceSequence ParseTraceSequence(std::string_view text, const RoutingTraceHeader& header,
                                 std::string_view name, int64_t line, TokenTexts* texts) {
  json object = ParseObject(text, name, line);
  TraceSequence sequence;
  sequence.id = OptionalString(object, "id");
  sequence.domain = OptionalString(object, "domain");
  const json& experts = RequireTokens(object, "experts", name, line);
  const size_t count = header.experts_per_token();
  sequence.experts.reserve(experts.size() * count);
  for (size_t t = 0; t < experts.size(); ++t) {
    AppendToken(experts[t], count, header.num_experts, "experts", name, line, t, sequence.experts,
                [](int64_t value) { return static_cast<uint16_t>(value); });
  }
  if (header.weight_scale > 0 && object.contains("weights")) {
    const json& weights = RequireTokens(object, "weights", name, line);
    if (weights.size() != experts.size()) {
      Fail(ErrorKind::kCorrupt, "{}:{}: {} tokens have weights but {} have experts", name, line,
           weights.size(), experts.size());
    }
    sequence.weights.reserve(sequence.experts.size());
    const double scale = header.weight_scale;
    for (size_t t = 0; t < weights.size(); ++t) {
      AppendToken(weights[t], count, int64_t{1} << 40, "weights", name, line, t, sequence.weights,
                  [scale](int64_t value) {
                    return static_cast<float>(static_cast<double>(value) / scale);
                  });
    }
  }
  sequence.token_ids = ParseTokenIds(object, experts.size(), name, line, texts);
  if (const auto first = object.find("first_pos"); first != object.end()) {
    if (!first->is_number_integer() || first->get<int64_t>() < 0) {
      Fail(ErrorKind::kCorrupt, "{}:{}: \"first_pos\" must be a whole number", name, line);
    }
    sequence.first_pos = first->get<int64_t>();
  }
  if (const auto prefill = object.find("n_prefill"); prefill != object.end()) {
    if (!prefill->is_number_integer() || prefill->get<int64_t>() < 0 ||
        prefill->get<int64_t>() > static_cast<int64_t>(experts.size())) {
      Fail(ErrorKind::kCorrupt, "{}:{}: \"n_prefill\" must be a number of its tokens", name, line);
    }
    sequence.prefill_tokens = prefill->get<int64_t>();
  }
  sequence.extra =
      FurtherFields(std::move(object), {"id", "domain", "experts", "weights", "tokens", "token_ids",
                                        "first_pos", "n_tokens", "n_prefill"});
  return sequence;
}

RoutingTrace ReadRoutingTrace(const std::filesystem::path& path) {
  if (IsBinaryTrace(path)) return ReadBinaryTrace(path);
  GzipLines lines(path);
  const std::string name = path.string();
  std::string line;
  if (!lines.Next(line)) Fail(ErrorKind::kCorrupt, "{}: empty; expected a header line", name);
  RoutingTrace trace;
  trace.header = ParseTraceHeader(line, name);
  for (int64_t number = 2; lines.Next(line); ++number) {
    if (line.empty()) continue;
    trace.sequences.push_back(
        ParseTraceSequence(line, trace.header, name, number, &trace.token_texts));
  }
  return trace;
}

std::string ShapeDifference(const RoutingTraceHeader& a, const RoutingTraceHeader& b) {
  const auto differ = [](const char* what, auto x, auto y) {
    return fmt::format("{}: {} against {}", what, x, y);
  };
  if (a.num_layers != b.num_layers) return differ("layers", a.num_layers, b.num_layers);
  if (a.first_layer != b.first_layer) return differ("first layer", a.first_layer, b.first_layer);
  if (a.num_experts != b.num_experts) return differ("experts", a.num_experts, b.num_experts);
  if (a.top_k != b.top_k) return differ("experts per token", a.top_k, b.top_k);
  if (a.phase != b.phase) return differ("phase", a.phase, b.phase);
  return "";
}

}  // namespace moesaic
