#include "bindings/python/conversions.h"

#include <nanobind/ndarray.h>

#include <utility>

namespace moesaic::python {

namespace nb = nanobind;

nb::str Text(std::string_view utf8) {
  PyObject* text =
      PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace");
  if (text == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(text);
}

nb::list Integers(std::span<const int32_t> values) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(values.size()));
  if (list == nullptr) throw nb::python_error();
  for (size_t i = 0; i < values.size(); ++i) {
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), PyLong_FromLong(values[i]));
  }
  return nb::steal<nb::list>(list);
}

namespace {

// Keeps the object as long as an array on its memory.
nb::capsule Keep(std::shared_ptr<const void> owner) {
  auto* kept = new std::shared_ptr<const void>(std::move(owner));
  return {kept,
          [](void* held) noexcept { delete static_cast<std::shared_ptr<const void>*>(held); }};
}

}  // namespace

template <typename T>
nb::object ArrayView(std::span<const T> values, std::initializer_list<int64_t> shape,
                     std::shared_ptr<const void> owner) {
  static const T none = {};
  const std::vector<size_t> sizes(shape.begin(), shape.end());
  const T* const data = values.empty() ? &none : values.data();
  return nb::cast(
      nb::ndarray<nb::numpy, const T>(data, sizes.size(), sizes.data(), Keep(std::move(owner))));
}
template nb::object ArrayView<uint8_t>(std::span<const uint8_t>, std::initializer_list<int64_t>,
                                       std::shared_ptr<const void>);
template nb::object ArrayView<int16_t>(std::span<const int16_t>, std::initializer_list<int64_t>,
                                       std::shared_ptr<const void>);
template nb::object ArrayView<uint16_t>(std::span<const uint16_t>, std::initializer_list<int64_t>,
                                        std::shared_ptr<const void>);
template nb::object ArrayView<int32_t>(std::span<const int32_t>, std::initializer_list<int64_t>,
                                       std::shared_ptr<const void>);
template nb::object ArrayView<uint32_t>(std::span<const uint32_t>, std::initializer_list<int64_t>,
                                        std::shared_ptr<const void>);
template nb::object ArrayView<float>(std::span<const float>, std::initializer_list<int64_t>,
                                     std::shared_ptr<const void>);

nb::object MatrixView(const ExpertActivationMatrix& matrix, std::shared_ptr<const void> owner) {
  const size_t cells =
      static_cast<size_t>(matrix.num_layers()) * static_cast<size_t>(matrix.num_experts());
  const uint32_t* const counts = cells == 0 ? nullptr : matrix.Row(0).data();
  return ArrayView<uint32_t>({counts, cells}, {matrix.num_layers(), matrix.num_experts()},
                             std::move(owner));
}

nb::object RoutedView(const std::shared_ptr<const RoutedExperts>& routed) {
  return ArrayView<int16_t>(routed->experts(),
                            {routed->tokens(), routed->num_layers(), routed->top_k()}, routed);
}

nb::object BytesArray(std::vector<uint8_t> values, size_t rows, size_t columns) {
  const size_t shape[2] = {rows, columns};
  auto kept = std::make_shared<std::vector<uint8_t>>(std::move(values));
  return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>>(kept->data(), 2, shape, Keep(kept)));
}

}  // namespace moesaic::python
