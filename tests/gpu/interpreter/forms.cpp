#include "tests/gpu/interpreter/forms.h"

namespace moesaic::ptx {

const Forms& AllForms() {
  static const Forms kForms = [] {
    Forms forms;
    AddIntegerForms(forms);
    AddFloatForms(forms);
    AddMoveForms(forms);
    AddMemoryForms(forms);
    AddWarpForms(forms);
    return forms;
  }();
  return kForms;
}

}  // namespace moesaic::ptx
