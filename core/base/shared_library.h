// SharedLibrary: a library that is loaded when it is asked for, and stays loaded: the program
// starts without it.
//
// Thread contract: immutable; any thread.
#pragma once

namespace moesaic {

class SharedLibrary {
 public:
  // `name` is what messages call it, `file` what the loader looks for, `remedy` what to do without
  // it. Throws Error(kNotFound) with all three when it cannot be loaded. The texts outlive it.
  SharedLibrary(const char* name, const char* file, const char* remedy);

  // Points `function` to the library's of this name. Throws Error(kNotFound) when it has none.
  template <typename Function>
  void Find(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(Address(symbol));
  }

 private:
  void* Address(const char* symbol) const;

  const char* const name_;
  const char* const file_;
  void* const handle_;
};

}  // namespace moesaic
