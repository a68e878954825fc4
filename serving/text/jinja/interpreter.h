// Interpreter: one rendering of a parsed template. Lives on one thread, for one call.
//
// Ownership: scopes are shared by reference count, because a macro keeps the scope it was defined
// in. Namespaces and macros can hold each other in cycles; the interpreter keeps a list of them
// and empties them when the rendering ends.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/text/jinja/ast.h"
#include "serving/text/jinja/budget.h"
#include "serving/text/jinja/object.h"
#include "serving/text/jinja/template.h"
#include "serving/text/jinja/value.h"

namespace moesaic::jinja {

struct Scope {
  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}
  const Value* FindHere(std::string_view name) const;
  void Set(std::string_view name, Value value);

  // The names live in the template or in the caller's context.
  std::vector<std::pair<std::string_view, Value>> variables;
  std::shared_ptr<Scope> parent;
};

class MacroObject;
class NamespaceObject;

class Interpreter {
 public:
  Interpreter(const RenderContext& context, const RenderOptions& options);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws RenderFailure; line() then says where.
  MarkedText Run(const Body& body);
  int line() const { return line_; }

  // ---- for builtins
  Budget& budget() { return budget_; }
  const RenderOptions& options() const { return options_; }
  // These charge what they make.
  Value NewString(MarkedText text);
  Value NewList(std::vector<Value> items, ListKind kind = ListKind::kList);
  Value NewIterator(std::vector<Value> items);
  // All elements; an Iterator is consumed. Throws RenderFailure when there is nothing to iterate.
  std::vector<Value> Elements(const Value& iterable);
  Value Attribute(const Value& object, std::string_view name);
  Value Item(const Value& object, const Value& key);
  Value CallFilter(std::string_view name, const Value& input, CallArguments& arguments);
  bool CallTest(std::string_view name, const Value& input, CallArguments& arguments);
  Value Call(const Value& callee, CallArguments& arguments);
  std::shared_ptr<NamespaceObject> NewNamespace();
  Value CallMacro(const Statement& macro, const std::shared_ptr<Scope>& closure,
                  CallArguments& arguments);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class DepthGuard;
  class ScopeGuard;
  class CaptureGuard;
  friend class LoopObject;

  Flow Execute(const Body& body);
  Flow ExecuteStatement(const Statement& statement);
  Flow ExecuteIf(const Statement& statement);
  Flow ExecuteFor(const Statement& statement);
  Flow ExecuteSetBlock(const Statement& statement);
  Flow ExecuteFilterBlock(const Statement& statement);
  Flow ExecuteWith(const Statement& statement);
  void ExecuteCallBlock(const Statement& statement);
  Value DefineMacro(const Statement& statement, std::string_view name);
  void Assign(const Target& target, const Value& value);
  void Emit(const Value& value);
  void CheckOutput();

  Value Evaluate(const Expr& expr);
  Value EvaluateName(std::string_view name);
  Value EvaluateDict(const Expr& expr);
  Value EvaluateSlice(const Expr& expr);
  Value EvaluateCall(const Expr& expr, const Value* caller);
  Value EvaluateFilter(const Expr& expr);
  Value EvaluateTest(const Expr& expr);
  Value EvaluateUnary(const Expr& expr);
  Value EvaluateBinary(const Expr& expr);
  Value EvaluateConcat(const Expr& expr);
  Value EvaluateCompare(const Expr& expr);
  Value EvaluateConditional(const Expr& expr);
  std::vector<Value> EvaluateAll(const Expr& expr);
  CallArguments EvaluateArguments(const Arguments& arguments);
  void BindMacroArguments(const Statement& macro, CallArguments& arguments);
  bool TruthOf(const Expr& expr) { return Evaluate(expr).Truthy(); }

  RenderOptions options_;
  Budget budget_;
  int depth_ = 0;
  int line_ = 1;
  std::shared_ptr<Scope> scope_;
  MarkedText* out_ = nullptr;
  const Value* block_text_ = nullptr;  // what a filter without an input is applied to
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;
  std::vector<std::shared_ptr<MacroObject>> macros_;
};

}  // namespace moesaic::jinja
