#include "serving/text/jinja/interpreter.h"

#include <algorithm>
#include <optional>

#include "core/base/check.h"
#include "serving/text/jinja/builtins.h"
#include "serving/text/jinja/collections.h"
#include "serving/text/jinja/format.h"
#include "serving/text/jinja/interpreter_guards.h"
#include "serving/text/jinja/loop.h"
#include "serving/text/jinja/macro.h"
#include "serving/text/jinja/raise.h"

namespace moesaic::jinja {

const Value* Scope::FindHere(std::string_view name) const {
  for (const auto& [key, value] : variables) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Scope::Set(std::string_view name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Interpreter::Interpreter(const RenderContext& context, const RenderOptions& options)
    : options_(options), budget_(options.limits), scope_(std::make_shared<Scope>(nullptr)) {
  for (const auto& [name, value] : context) scope_->Set(name, value);
}

Interpreter::~Interpreter() {
  for (const auto& object : namespaces_) object->Clear();
  for (const auto& macro : macros_) macro->Clear();
}

MarkedText Interpreter::Run(const Body& body) {
  MarkedText out;
  out_ = &out;
  Execute(body);
  out_ = nullptr;
  return out;
}

Interpreter::Flow Interpreter::Execute(const Body& body) {
  for (const Statement& statement : body) {
    const Flow flow = ExecuteStatement(statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

void Interpreter::CheckOutput() {
  if (out_->size_bytes() > budget_.limits().output_bytes) {
    Raise("the output is longer than {} bytes", budget_.limits().output_bytes);
  }
}

void Interpreter::Emit(const Value& value) {
  AppendStr(value, budget_, *out_);
  CheckOutput();
}

Interpreter::Flow Interpreter::ExecuteStatement(const Statement& statement) {
  const DepthGuard depth(*this);
  budget_.Charge(1);
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::kText:
      Emit(statement.text);
      return Flow::kNext;
    case StatementKind::kOutput:
      for (const ExprPtr& expr : statement.exprs) Emit(Evaluate(*expr));
      return Flow::kNext;
    case StatementKind::kIf:
      return ExecuteIf(statement);
    case StatementKind::kFor:
      return ExecuteFor(statement);
    case StatementKind::kSet:
      Assign(statement.targets[0], Evaluate(*statement.exprs[0]));
      return Flow::kNext;
    case StatementKind::kSetBlock:
      return ExecuteSetBlock(statement);
    case StatementKind::kMacro:
      scope_->Set(statement.name, DefineMacro(statement, statement.name));
      return Flow::kNext;
    case StatementKind::kCall:
      ExecuteCallBlock(statement);
      return Flow::kNext;
    case StatementKind::kFilter:
      return ExecuteFilterBlock(statement);
    case StatementKind::kWith:
      return ExecuteWith(statement);
    case StatementKind::kScope: {
      const ScopeGuard scope(*this, scope_);
      return Execute(statement.bodies[0]);
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecuteIf(const Statement& statement) {
  for (size_t i = 0; i < statement.exprs.size(); ++i) {
    if (TruthOf(*statement.exprs[i])) return Execute(statement.bodies[i]);
  }
  const bool has_else = statement.bodies.size() > statement.exprs.size();
  return has_else ? Execute(statement.bodies.back()) : Flow::kNext;
}

Interpreter::Flow Interpreter::ExecuteFor(const Statement& statement) {
  const Value iterable = Evaluate(*statement.exprs[0]);
  ItemCursor items(*this, iterable);
  const std::shared_ptr<Scope> outer = scope_;
  const auto next = [&]() -> std::optional<Value> {
    while (std::optional<Value> item = items.Next()) {
      budget_.Charge(1);
      if (statement.filter == nullptr) return item;
      const ScopeGuard scope(*this, outer);
      Assign(statement.targets[0], *item);
      if (TruthOf(*statement.filter)) return item;
    }
    return std::nullopt;
  };
  const auto loop = std::make_shared<LoopObject>(next, iterable.depth());
  // The source points into this frame, and a template can keep `loop` longer than that.
  struct Finisher {
    LoopObject& loop;
    ~Finisher() { loop.Finish(); }
  } finisher{*loop};
  // Jinja runs `else` unless the body was completed once: also after a break in the first item.
  bool completed = false;
  while (std::optional<Value> item = loop->Advance()) {
    const ScopeGuard scope(*this, outer);
    budget_.ChargeBytes(sizeof(Scope));
    scope_->Set("loop", Value::FromObject(loop));
    Assign(statement.targets[0], *item);
    const Flow flow = Execute(statement.bodies[0]);
    if (flow == Flow::kBreak) break;
    completed |= flow == Flow::kNext;
  }
  if (completed || statement.bodies.size() < 2) return Flow::kNext;
  const ScopeGuard scope(*this, outer);
  return Execute(statement.bodies[1]);
}

Interpreter::Flow Interpreter::ExecuteSetBlock(const Statement& statement) {
  Value text;
  {
    MarkedText captured;
    const CaptureGuard capture(*this, captured);
    const ScopeGuard scope(*this, scope_);
    const Flow flow = Execute(statement.bodies[0]);
    if (flow != Flow::kNext) return flow;
    text = NewString(std::move(captured));
  }
  if (statement.filter != nullptr) {
    const BlockTextGuard block(block_text_, &text);
    text = Evaluate(*statement.filter);
  }
  Assign(statement.targets[0], text);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecuteFilterBlock(const Statement& statement) {
  Value text;
  {
    MarkedText captured;
    const CaptureGuard capture(*this, captured);
    const ScopeGuard scope(*this, scope_);
    const Flow flow = Execute(statement.bodies[0]);
    if (flow != Flow::kNext) return flow;
    text = NewString(std::move(captured));
  }
  const BlockTextGuard block(block_text_, &text);
  Emit(Evaluate(*statement.filter));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecuteWith(const Statement& statement) {
  std::vector<Value> values;
  for (const ExprPtr& expr : statement.exprs) values.push_back(Evaluate(*expr));
  const ScopeGuard scope(*this, scope_);
  for (size_t i = 0; i < values.size(); ++i) Assign(statement.targets[i], values[i]);
  return Execute(statement.bodies[0]);
}

Value Interpreter::DefineMacro(const Statement& statement, std::string_view name) {
  budget_.ChargeBytes(sizeof(MacroObject) + sizeof(Scope));
  macros_.push_back(std::make_shared<MacroObject>(statement, name, scope_));
  return Value::FromObject(macros_.back());
}

void Interpreter::ExecuteCallBlock(const Statement& statement) {
  const Value caller = DefineMacro(statement, "caller");
  Emit(EvaluateCall(*statement.exprs[0], &caller));
}

void Interpreter::Assign(const Target& target, const Value& value) {
  if (!target.items.empty()) {
    const std::vector<Value> items = Elements(value);
    if (items.size() != target.items.size()) {
      Raise("cannot unpack {} values into {} names", items.size(), target.items.size());
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(target.items[i], items[i]);
  } else if (target.attribute.empty()) {
    budget_.Charge(scope_->variables.size() / 16);
    scope_->Set(target.name, value);
  } else {
    const Value object = EvaluateName(target.name);
    auto* attributes =
        object.IsObject() ? dynamic_cast<NamespaceObject*>(&object.object()) : nullptr;
    if (attributes == nullptr) {
      Raise("'{}' is no namespace, its attributes cannot be set", target.name);
    }
    attributes->Set(target.attribute, value);
  }
}

Value Interpreter::CallMacro(const Statement& macro, const std::shared_ptr<Scope>& closure,
                             CallArguments& arguments) {
  const DepthGuard depth(*this);
  const int call_line = line_;
  MarkedText captured;
  {
    const CaptureGuard capture(*this, captured);
    const ScopeGuard scope(*this, closure);
    const BlockTextGuard block(block_text_, nullptr);
    BindMacroArguments(macro, arguments);
    Execute(macro.bodies[0]);
  }
  line_ = call_line;
  return NewString(std::move(captured));
}

void Interpreter::BindMacroArguments(const Statement& macro, CallArguments& arguments) {
  const auto& parameters = macro.parameters;
  auto& keywords = arguments.keywords;
  const auto take_keyword = [&](std::string_view name) -> std::optional<Value> {
    budget_.Charge(keywords.size());
    const auto it = std::find_if(keywords.begin(), keywords.end(),
                                 [name](const auto& keyword) { return keyword.first == name; });
    if (it == keywords.end()) return std::nullopt;
    Value value = std::move(it->second);
    keywords.erase(it);
    return value;
  };
  const size_t given = arguments.positional.size();
  std::vector<std::optional<Value>> values(parameters.size());
  bool caller_bound = false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (i < given) {
      values[i] = arguments.positional[i];
    } else {
      values[i] = take_keyword(parameters[i].name);
    }
    caller_bound |= parameters[i].name == "caller";
  }
  const bool is_macro = macro.kind == StatementKind::kMacro;
  const std::string_view name = is_macro ? std::string_view(macro.name) : "caller";
  if (macro.uses_caller && is_macro && !caller_bound) {
    std::optional<Value> caller = take_keyword("caller");
    scope_->Set("caller", caller ? *caller : Value::UndefinedBecause("no caller is defined"));
  }
  if (macro.uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [key, value] : keywords) entries.emplace_back(Value::String(key), value);
    scope_->Set("kwargs", NewDict(std::move(entries), budget_));
  } else if (!keywords.empty()) {
    Raise("macro '{}' takes no keyword argument '{}'", name, keywords[0].first);
  }
  if (macro.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = parameters.size(); i < given; ++i) rest.push_back(arguments.positional[i]);
    scope_->Set("varargs", NewList(std::move(rest), ListKind::kTuple));
  } else if (given > parameters.size()) {
    Raise("macro '{}' takes not more than {} arguments, {} were given", name, parameters.size(),
          given);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (values[i]) {
      scope_->Set(parameter.name, *values[i]);
    } else if (parameter.default_value != nullptr) {
      scope_->Set(parameter.name, Evaluate(*parameter.default_value));
    } else {
      scope_->Set(parameter.name, Value::UndefinedBecause(fmt::format(
                                      "the parameter '{}' was not provided", parameter.name)));
    }
  }
}

}  // namespace moesaic::jinja
