#include "bindings/python/errors.h"

#include <nanobind/nanobind.h>

#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "bindings/python/conversions.h"
#include "core/base/error.h"
#include "core/base/thread_limit.h"
#include "serving/api/api_error.h"

namespace moesaic::python {
namespace {

namespace nb = nanobind;

ErrorKind KindOf(const ApiError& error) {
  switch (error.status()) {
    case 400:
      return ErrorKind::kInvalidArgument;
    case 404:
      return ErrorKind::kNotFound;
    case 503:
      return ErrorKind::kUnavailable;
    default:
      return ErrorKind::kInternal;
  }
}

void Raise(ErrorKind kind, std::string_view message, std::string_view param = {}) {
  const nb::object error = MakeError(kind, message, param);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

void Translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const ApiError& error) {
    Raise(KindOf(error), error.what(), error.param());
  } catch (const Error& error) {
    Raise(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    Raise(ErrorKind::kResourceExhausted,
          "out of memory; lower memory, or expert_memory where it is given");
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) throw;
    Raise(ErrorKind::kResourceExhausted, ThreadLimitAdvice());
  }
}

}  // namespace

nb::object MakeError(ErrorKind kind, std::string_view message, std::string_view param) {
  return nb::module_::import_("moesaic._errors")
      .attr("make")(ErrorKindName(kind), Text(message), Text(param));
}

void TranslateErrors() { nb::register_exception_translator(Translate); }

}  // namespace moesaic::python
