// What the engine throws, as exceptions of Python: moesaic.Error and its kinds
// (moesaic/_errors.py), with the same texts.
#pragma once

namespace moesaic::python {

// Registers the translation; called once, by the module.
void TranslateErrors();

}  // namespace moesaic::python
