// From values of C++ to objects of Python. All of it with the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "tracer/expert_activation_matrix.h"
#include "tracer/routed_experts.h"

namespace moesaic::python {

// A str; what is no UTF-8 becomes U+FFFD.
nanobind::str Text(std::string_view utf8);
nanobind::list Integers(std::span<const int32_t> values);

// An instance of the class of its kind, not raised.
nanobind::object MakeError(ErrorKind kind, std::string_view message, std::string_view param = {});

// A read-only numpy array of this shape on memory that `owner` keeps.
template <typename T>
nanobind::object ArrayView(std::span<const T> values, std::initializer_list<int64_t> shape,
                           std::shared_ptr<const void> owner);

// A read-only numpy array uint32 [layers, experts] on the matrix's own memory, which `owner` keeps.
nanobind::object MatrixView(const ExpertActivationMatrix& matrix,
                            std::shared_ptr<const void> owner);

// A read-only numpy array int16 [tokens, layers, top_k] on the object's own memory.
nanobind::object RoutedView(const std::shared_ptr<const RoutedExperts>& routed);
// A numpy array uint8 [rows, columns].
nanobind::object BytesArray(std::vector<uint8_t> values, size_t rows, size_t columns);

}  // namespace moesaic::python
