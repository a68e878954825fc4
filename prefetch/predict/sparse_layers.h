// SparseLayers: the layers of a model that have experts, numbered from 0 in their order. Routing,
// caches and links speak of the model's layers; predictors of these numbers, because a layer in
// front of which nothing can be fetched is no distance. Immutable.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/check.h"
#include "core/io/expert_source.h"

namespace moesaic {

class SparseLayers {
 public:
  // All of them have experts.
  explicit SparseLayers(int num_layers) {
    for (int layer = 0; layer < num_layers; ++layer) Add(true);
  }
  SparseLayers(const ExpertSource& source, int num_layers) {
    for (int layer = 0; layer < num_layers; ++layer) Add(source.HasLayer(layer));
  }

  int num_layers() const { return static_cast<int>(number_of_layer_.size()); }  // of the model
  int count() const { return static_cast<int>(layer_of_number_.size()); }
  int number(int layer) const {
    const int32_t number = number_of_layer_[static_cast<size_t>(layer)];
    CHECK_GE(number, 0);
    return number;
  }
  int layer(int number) const { return layer_of_number_[static_cast<size_t>(number)]; }

 private:
  void Add(bool has_experts) {
    number_of_layer_.push_back(has_experts ? count() : -1);
    if (has_experts) layer_of_number_.push_back(num_layers() - 1);
  }

  std::vector<int32_t> number_of_layer_;  // -1 without experts
  std::vector<int32_t> layer_of_number_;
};

}  // namespace moesaic
