// The syntax tree of a chat template. Immutable after parsing; shared by every rendering.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serving/text/jinja/value.h"

namespace moesaic::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star;         // *expr
  ExprPtr double_star;  // **expr
};

enum class ExprKind {
  kConstant,     // constant
  kName,         // name
  kList,         // children
  kTuple,        // children
  kDict,         // children: key, value, key, value, ...
  kAttribute,    // children[0], name
  kItem,         // children[0], children[1]
  kSlice,        // children[0], then start, stop, step; each may be null
  kCall,         // children[0], arguments
  kFilter,       // children[0] (null: the text of the block), name, arguments
  kTest,         // children[0], name, arguments
  kNot,          // children[0]
  kNegative,     // children[0]
  kPositive,     // children[0]
  kBinary,       // children[0], children[1], op
  kAnd,          // children[0], children[1]
  kOr,           // children[0], children[1]
  kConcat,       // children
  kCompare,      // children, ops.size() + 1 of them
  kConditional,  // children: condition, value, otherwise (may be null)
};

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expr {
  ExprKind kind;
  int line;
  int depth = 1;  // of this subtree
  std::string name;
  Value constant;
  Operator op = Operator::kAdd;
  std::vector<Operator> ops;
  std::vector<ExprPtr> children;
  std::unique_ptr<Arguments> arguments;
};

// What an assignment writes to: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;
  std::vector<Target> items;  // not empty: a tuple
};

struct Parameter {
  std::string name;
  ExprPtr default_value;  // may be null
};

struct Statement;
using Body = std::vector<Statement>;

enum class StatementKind {
  kText,      // text
  kOutput,    // exprs
  kIf,        // exprs[i] guards bodies[i]; one body more than exprs: else
  kFor,       // target, exprs[0] iterable, filter; bodies[0], bodies[1] else
  kSet,       // target, exprs[0]
  kSetBlock,  // target, filter (may be null), bodies[0]
  kMacro,     // name, parameters, bodies[0]
  kCall,      // exprs[0] a kCall, parameters, bodies[0]
  kFilter,    // filter, bodies[0]
  kWith,      // targets and exprs, bodies[0]
  kScope,     // bodies[0]
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind;
  int line;
  std::string name;
  Value text;
  std::vector<ExprPtr> exprs;
  ExprPtr filter;
  std::vector<Target> targets;
  std::vector<Parameter> parameters;
  std::vector<Body> bodies;
  // kMacro, kCall: which of the implicit names the body mentions. Arguments that no parameter
  // takes are an error unless it does.
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

}  // namespace moesaic::jinja
