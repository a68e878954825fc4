#include "core/io/checkpoint_index.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"

namespace moesaic {
namespace {

using nlohmann::json;

// Reads {"weight_map": {tensor: file, ...}, anything else} without building a document, so that
// hostile nesting costs nothing.
class IndexHandler : public json::json_sax_t {
 public:
  explicit IndexHandler(std::string_view file) : file_(file) {}

  bool found() const { return found_; }
  std::map<std::string, std::string> Take() { return std::move(weight_map_); }

  bool null() override { return Scalar(); }
  bool boolean(bool) override { return Scalar(); }
  bool number_integer(number_integer_t) override { return Scalar(); }
  bool number_unsigned(number_unsigned_t) override { return Scalar(); }
  bool number_float(number_float_t, const string_t&) override { return Scalar(); }
  bool binary(binary_t&) override { return Scalar(); }
  bool string(string_t& value) override {
    if (depth_ == 0) return Scalar();
    if (!InWeightMap()) return true;
    CheckFileName(value);
    if (!weight_map_.emplace(key_, std::move(value)).second) {
      Fail(ErrorKind::kCorrupt, "{}: weight_map names the tensor {} twice", file_,
           QuotedName(key_));
    }
    return true;
  }
  bool key(string_t& value) override {
    if (depth_ == 1) in_weight_map_key_ = value == "weight_map";
    if (depth_ == 2 && in_weight_map_key_) key_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ == 1 && in_weight_map_key_) {
      if (found_) Fail(ErrorKind::kCorrupt, "{}: has two weight_map objects", file_);
      found_ = true;
    } else if (InWeightMap()) {
      return Scalar();
    }
    return Enter();
  }
  bool end_object() override { return Leave(); }
  bool start_array(std::size_t) override {
    if (depth_ == 0 || in_weight_map_key_) return Scalar();
    return Enter();
  }
  bool end_array() override { return Leave(); }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    Fail(ErrorKind::kCorrupt, "{}: is not valid JSON: {:.300}", file_, error.what());
  }

 private:
  static constexpr int kMostDepth = 16;

  bool InWeightMap() const { return depth_ == 2 && in_weight_map_key_; }
  // A value that is not a string, or a string at the top.
  bool Scalar() const {
    if (depth_ == 0) Fail(ErrorKind::kCorrupt, "{}: expected a JSON object", file_);
    if (depth_ == 1 && in_weight_map_key_) {
      Fail(ErrorKind::kCorrupt, "{}: weight_map: expected an object", file_);
    }
    if (InWeightMap()) {
      Fail(ErrorKind::kCorrupt, "{}: weight_map: the value of {} is not a file name", file_,
           QuotedName(key_));
    }
    return true;
  }
  bool Enter() {
    if (++depth_ > kMostDepth) Fail(ErrorKind::kCorrupt, "{}: is nested too deeply", file_);
    return true;
  }
  bool Leave() {
    --depth_;
    return true;
  }
  void CheckFileName(const std::string& value) const {
    const bool plain = !value.empty() && value.front() != '.' &&
                       value.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!plain || !value.ends_with(".safetensors")) {
      Fail(ErrorKind::kCorrupt,
           "{}: weight_map: the file of tensor {} is {}, expected the name of a .safetensors file "
           "in the "
           "same directory",
           file_, QuotedName(key_), QuotedName(value));
    }
  }

  std::string_view file_;
  int depth_ = 0;
  bool found_ = false;
  bool in_weight_map_key_ = false;
  std::string key_;
  std::map<std::string, std::string> weight_map_;
};

}  // namespace

std::string QuotedName(std::string_view name) {
  constexpr size_t kMostShown = 200;
  std::string text = "\"";
  for (const char c : name.substr(0, kMostShown)) {
    text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return text + (name.size() > kMostShown ? "...\"" : "\"");
}

std::map<std::string, std::string> ParseCheckpointIndex(std::string_view text,
                                                        std::string_view name) {
  IndexHandler handler(name);
  json::sax_parse(text, &handler);
  if (!handler.found()) Fail(ErrorKind::kCorrupt, "{}: has no weight_map", name);
  return handler.Take();
}

}  // namespace moesaic
