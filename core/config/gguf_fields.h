// GgufFields: the metadata of one GGUF model, keys of its architecture without their prefix, and
// what several architectures read in the same way. Internal to core/config.
//
// Refers to the header; used by one thread. What is missing or out of range throws
// Error(kCorrupt), what no served model has Error(kUnsupported), naming file and key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_fields.h"
#include "core/io/gguf.h"

namespace moesaic {

class GgufFields {
 public:
  GgufFields(const GgufHeader& header, std::string_view name);

  const std::string& architecture() const { return architecture_; }
  const JsonFields& all() const { return all_; }
  std::string Key(std::string_view key) const;
  bool Has(std::string_view key) const { return all_.Find(Key(key)) != nullptr; }
  // In the first layer or in any: one layer has it.
  bool HasTensor(std::string_view of_layer) const;
  bool HasTensor(int64_t layer, std::string_view of_layer) const;
  bool HasModelTensor(std::string_view name) const;

  int64_t Int(std::string_view key, int64_t least, int64_t most) const;
  int64_t Int(std::string_view key, int64_t fallback, int64_t least, int64_t most) const;
  double Number(std::string_view key, std::optional<double> fallback, double least,
                double most) const;
  // A number, or an array of the same number for every layer.
  int64_t IntOfAllLayers(std::string_view key, std::optional<int64_t> fallback, int64_t most) const;
  // An array of booleans, one for each of `layers` layers; further ones are of layers that predict
  // tokens.
  std::vector<bool> FlagsOfLayers(std::string_view key, int64_t layers) const;

  int64_t Experts() const;
  // Of a dense layer; a model may have none.
  int64_t DenseWidth() const;
  // Old files have one width for both.
  int64_t ExpertWidth() const;
  // Whether the weights of the chosen experts are divided by their sum.
  bool NormalisedWeights(bool of_family) const;
  void RequireSigmoidRouter() const;

  [[noreturn]] void Unsupported(std::string_view key, std::string_view problem) const;

 private:
  const GgufHeader& header_;
  const JsonFields all_;
  const std::string architecture_;
};

}  // namespace moesaic
