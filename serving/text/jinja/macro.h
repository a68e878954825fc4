// MacroObject: a macro, or the `caller` of a call block, with the scope it was defined in.
#pragma once

#include <memory>
#include <string>

#include "serving/text/jinja/ast.h"
#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/object.h"

namespace moesaic::jinja {

class MacroObject final : public Object {
 public:
  MacroObject(const Statement& definition, std::string_view name, std::shared_ptr<Scope> closure)
      : definition_(definition), name_(name), closure_(std::move(closure)) {}
  std::string_view type_name() const override { return "Macro"; }
  std::string Repr() const override { return "<Macro '" + std::string(name_) + "'>"; }
  bool callable() const override { return true; }
  Value Call(Interpreter& interpreter, CallArguments& arguments) override {
    return interpreter.CallMacro(definition_, closure_, arguments);
  }
  std::optional<Value> Attribute(std::string_view name) override;
  void Clear() { closure_.reset(); }

 private:
  const Statement& definition_;
  std::string_view name_;  // lives in the template
  std::shared_ptr<Scope> closure_;
};

}  // namespace moesaic::jinja
