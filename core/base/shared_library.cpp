#include "core/base/shared_library.h"

#include <dlfcn.h>

#include "core/base/error.h"

namespace moesaic {

SharedLibrary::SharedLibrary(const char* name, const char* file, const char* remedy)
    : name_(name), file_(file), handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  Fail(ErrorKind::kNotFound, "{}: {} cannot be loaded: {}; {}", name, file, dlerror(), remedy);
}

void* SharedLibrary::Address(const char* symbol) const {
  void* const address = dlsym(handle_, symbol);
  if (address == nullptr) Fail(ErrorKind::kNotFound, "{}: {} has no {}", name_, file_, symbol);
  return address;
}

}  // namespace moesaic
