// The forms of PTX instructions that the interpreter knows: those that nvcc makes of our kernels.
// One that is not here is an error by its name. Semantics: NVIDIA, "PTX ISA" 9.0, chapter 9.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "tests/gpu/interpreter/kernel.h"

namespace moesaic::ptx {

// `shape` has a letter for each operand, targets before the colon and sources behind it: 4 or 8,
// the bytes of its register; p, a predicate; *, a register of any size; a, an address.
struct Form {
  std::string_view shape;
  Execute execute = nullptr;
  Flow flow = Flow::kNext;
  Space space = Space::kNone;
  bool is_volatile = false;
};

// By name, such as "add.s32". Moves between a register and several have names of their own
// ("mov.b32 pack", "mov.b32 unpack").
using Forms = std::map<std::string, Form, std::less<>>;
const Forms& AllForms();

// What AllForms is put together from.
void AddIntegerForms(Forms& forms);
void AddFloatForms(Forms& forms);
void AddMoveForms(Forms& forms);    // moves, selections, conversions
void AddMemoryForms(Forms& forms);  // loads and stores
void AddWarpForms(Forms& forms);    // branches, barriers, exchanges between lanes

}  // namespace moesaic::ptx
