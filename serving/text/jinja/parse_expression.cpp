#include <fmt/format.h>

#include <algorithm>

#include "serving/text/jinja/parser_state.h"

namespace moesaic::jinja {

// ---- TokenCursor

const Token& TokenCursor::Take() {
  const Token& token = tokens_[position_];
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool TokenCursor::AtAnyName(std::initializer_list<std::string_view> names) const {
  return std::any_of(names.begin(), names.end(), [this](std::string_view n) { return AtName(n); });
}

bool TokenCursor::SkipOperator(std::string_view text) {
  if (!AtOperator(text)) return false;
  Take();
  return true;
}

bool TokenCursor::SkipName(std::string_view text) {
  if (!AtName(text)) return false;
  Take();
  return true;
}

void TokenCursor::ExpectOperator(std::string_view text) {
  if (!SkipOperator(text)) Fail(fmt::format("expected '{}', got {}", text, Describe()));
}

void TokenCursor::ExpectBlockEnd() {
  if (current().type != TokenType::kBlockEnd) {
    Fail(fmt::format("expected the end of the block '%}}', got {}", Describe()));
  }
  Take();
}

std::string TokenCursor::ExpectName() {
  if (current().type != TokenType::kName) Fail(fmt::format("expected a name, got {}", Describe()));
  return Take().text;
}

std::string TokenCursor::Describe() const {
  switch (current().type) {
    case TokenType::kBlockEnd:
      return "the end of the block '%}'";
    case TokenType::kVariableEnd:
      return "the end of the expression '}}'";
    case TokenType::kEnd:
      return "the end of the template";
    case TokenType::kString:
      return "a string";
    default:
      return fmt::format("'{}'", current().text);
  }
}

void TokenCursor::Fail(std::string message) const { FailAt(current().line, std::move(message)); }

void TokenCursor::FailAt(int line, std::string message) const {
  throw SyntaxFailure{line, std::move(message)};
}

// ---- ExpressionParser

ExpressionParser::ImplicitNames ExpressionParser::PopMacro() {
  const ImplicitNames names = macros_.back();
  macros_.pop_back();
  return names;
}

ExprPtr ExpressionParser::Make(ExprKind kind, int line) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

void ExpressionParser::Deepen(Expr& parent, const Expr& child) const {
  parent.depth = std::max(parent.depth, child.depth + 1);
  if (parent.depth > kMaxExprDepth) cursor_.Fail("the expression is too long");
}

void ExpressionParser::Adopt(Expr& parent, ExprPtr child) const {
  if (child != nullptr) Deepen(parent, *child);
  parent.children.push_back(std::move(child));
}

void ExpressionParser::AdoptArguments(Expr& parent, std::unique_ptr<Arguments> arguments) const {
  for (const auto& argument : arguments->positional) Deepen(parent, *argument);
  for (const auto& [name, argument] : arguments->keywords) Deepen(parent, *argument);
  if (arguments->star != nullptr) Deepen(parent, *arguments->star);
  if (arguments->double_star != nullptr) Deepen(parent, *arguments->double_star);
  parent.arguments = std::move(arguments);
}

ExprPtr ExpressionParser::Binary(ExprKind kind, Operator op, int line, ExprPtr left,
                                 ExprPtr right) const {
  ExprPtr node = Make(kind, line);
  node->op = op;
  Adopt(*node, std::move(left));
  Adopt(*node, std::move(right));
  return node;
}

ExprPtr ExpressionParser::ParseExpression() {
  TokenCursor::Nested nested(cursor_);
  int line = cursor_.current().line;
  ExprPtr value = ParseOr();
  while (cursor_.SkipName("if")) {
    ExprPtr node = Make(ExprKind::kConditional, line);
    Adopt(*node, ParseOr());
    Adopt(*node, std::move(value));
    Adopt(*node, cursor_.SkipName("else") ? ParseExpression() : nullptr);
    value = std::move(node);
    line = cursor_.current().line;
  }
  return value;
}

ExprPtr ExpressionParser::ParseOr() {
  ExprPtr left = ParseAnd();
  while (cursor_.AtName("or")) {
    const int line = cursor_.Take().line;
    left = Binary(ExprKind::kOr, Operator::kAdd, line, std::move(left), ParseAnd());
  }
  return left;
}

ExprPtr ExpressionParser::ParseAnd() {
  ExprPtr left = ParseNot();
  while (cursor_.AtName("and")) {
    const int line = cursor_.Take().line;
    left = Binary(ExprKind::kAnd, Operator::kAdd, line, std::move(left), ParseNot());
  }
  return left;
}

ExprPtr ExpressionParser::ParseNot() {
  if (!cursor_.AtName("not")) return ParseCompare();
  TokenCursor::Nested nested(cursor_);
  ExprPtr node = Make(ExprKind::kNot, cursor_.Take().line);
  Adopt(*node, ParseNot());
  return node;
}

ExprPtr ExpressionParser::ParseCompare() {
  static constexpr std::pair<std::string_view, Operator> kComparisons[] = {
      {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual},
  };
  ExprPtr first = ParseSum();
  ExprPtr node;
  while (true) {
    const int line = cursor_.current().line;
    Operator op;
    const auto* symbol =
        std::find_if(std::begin(kComparisons), std::end(kComparisons),
                     [this](const auto& c) { return cursor_.AtOperator(c.first); });
    if (symbol != std::end(kComparisons)) {
      op = symbol->second;
      cursor_.Take();
    } else if (cursor_.SkipName("in")) {
      op = Operator::kIn;
    } else if (cursor_.AtName("not") && cursor_.next().Is(TokenType::kName, "in")) {
      op = Operator::kNotIn;
      cursor_.Take();
      cursor_.Take();
    } else {
      break;
    }
    if (node == nullptr) {
      node = Make(ExprKind::kCompare, line);
      Adopt(*node, std::move(first));
    }
    node->ops.push_back(op);
    Adopt(*node, ParseSum());
  }
  return node == nullptr ? std::move(first) : std::move(node);
}

ExprPtr ExpressionParser::ParseSum() {
  ExprPtr left = ParseConcat();
  while (cursor_.AtOperator("+") || cursor_.AtOperator("-")) {
    const Token& token = cursor_.Take();
    const Operator op = token.text == "+" ? Operator::kAdd : Operator::kSubtract;
    left = Binary(ExprKind::kBinary, op, token.line, std::move(left), ParseConcat());
  }
  return left;
}

ExprPtr ExpressionParser::ParseConcat() {
  ExprPtr first = ParseProduct();
  if (!cursor_.AtOperator("~")) return first;
  ExprPtr node = Make(ExprKind::kConcat, cursor_.current().line);
  Adopt(*node, std::move(first));
  while (cursor_.SkipOperator("~")) Adopt(*node, ParseProduct());
  return node;
}

ExprPtr ExpressionParser::ParseProduct() {
  static constexpr std::pair<std::string_view, Operator> kProducts[] = {
      {"*", Operator::kMultiply},
      {"/", Operator::kDivide},
      {"//", Operator::kFloorDivide},
      {"%", Operator::kModulo},
  };
  ExprPtr left = ParsePower();
  while (true) {
    const auto* symbol =
        std::find_if(std::begin(kProducts), std::end(kProducts),
                     [this](const auto& p) { return cursor_.AtOperator(p.first); });
    if (symbol == std::end(kProducts)) return left;
    const int line = cursor_.Take().line;
    left = Binary(ExprKind::kBinary, symbol->second, line, std::move(left), ParsePower());
  }
}

// Left-associative, and looser than unary minus: both are Jinja's ways, not Python's.
ExprPtr ExpressionParser::ParsePower() {
  ExprPtr left = ParseUnary();
  while (cursor_.AtOperator("**")) {
    const int line = cursor_.Take().line;
    left = Binary(ExprKind::kBinary, Operator::kPower, line, std::move(left), ParseUnary());
  }
  return left;
}

ExprPtr ExpressionParser::ParseUnary(bool with_filter) {
  ExprPtr node;
  if (cursor_.AtOperator("-") || cursor_.AtOperator("+")) {
    TokenCursor::Nested nested(cursor_);
    const Token& token = cursor_.Take();
    node = Make(token.text == "-" ? ExprKind::kNegative : ExprKind::kPositive, token.line);
    Adopt(*node, ParseUnary(false));
  } else {
    node = ParsePrimary();
  }
  node = ParsePostfix(std::move(node));
  return with_filter ? ParseFilters(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::ParsePrimary() {
  const Token& token = cursor_.current();
  ExprPtr node = Make(ExprKind::kConstant, token.line);
  switch (token.type) {
    case TokenType::kName:
      cursor_.Take();
      if (token.text == "true" || token.text == "True") {
        node->constant = Value::Bool(true);
      } else if (token.text == "false" || token.text == "False") {
        node->constant = Value::Bool(false);
      } else if (token.text == "none" || token.text == "None") {
        node->constant = None{};
      } else {
        node->kind = ExprKind::kName;
        node->name = token.text;
        for (ImplicitNames& macro : macros_) {
          macro.varargs |= token.text == "varargs";
          macro.kwargs |= token.text == "kwargs";
          macro.caller |= token.text == "caller";
        }
      }
      return node;
    case TokenType::kString: {
      std::string text;
      while (cursor_.current().type == TokenType::kString) text += cursor_.Take().text;
      node->constant = Value::String(text);
      return node;
    }
    case TokenType::kInteger:
      node->constant = Value::Int(cursor_.Take().integer);
      return node;
    case TokenType::kFloat:
      node->constant = Value::Float(cursor_.Take().number);
      return node;
    default:
      break;
  }
  if (cursor_.SkipOperator("(")) {
    node = ParseTuple(/*conditional=*/true, /*in_parentheses=*/true);
    cursor_.ExpectOperator(")");
    return node;
  }
  if (cursor_.AtOperator("[")) return ParseList();
  if (cursor_.AtOperator("{")) return ParseDict();
  cursor_.Fail(fmt::format("unexpected {}", cursor_.Describe()));
}

ExprPtr ExpressionParser::ParseTuple(bool conditional, bool in_parentheses) {
  std::vector<ExprPtr> items;
  const int line = cursor_.current().line;
  bool is_tuple = false;
  const auto at_end = [&] {
    const TokenType type = cursor_.current().type;
    return type == TokenType::kVariableEnd || type == TokenType::kBlockEnd ||
           type == TokenType::kEnd || cursor_.AtOperator(")");
  };
  while (!at_end()) {
    items.push_back(conditional ? ParseExpression() : ParseOr());
    if (!cursor_.SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !in_parentheses) {
    cursor_.Fail(fmt::format("expected an expression, got {}", cursor_.Describe()));
  }
  ExprPtr node = Make(ExprKind::kTuple, line);
  for (ExprPtr& item : items) Adopt(*node, std::move(item));
  return node;
}

ExprPtr ExpressionParser::ParseList() {
  ExprPtr node = Make(ExprKind::kList, cursor_.Take().line);
  while (!cursor_.AtOperator("]")) {
    if (!node->children.empty()) cursor_.ExpectOperator(",");
    if (cursor_.AtOperator("]")) break;
    Adopt(*node, ParseExpression());
  }
  cursor_.ExpectOperator("]");
  return node;
}

ExprPtr ExpressionParser::ParseDict() {
  ExprPtr node = Make(ExprKind::kDict, cursor_.Take().line);
  while (!cursor_.AtOperator("}")) {
    if (!node->children.empty()) cursor_.ExpectOperator(",");
    if (cursor_.AtOperator("}")) break;
    Adopt(*node, ParseExpression());
    cursor_.ExpectOperator(":");
    Adopt(*node, ParseExpression());
  }
  cursor_.ExpectOperator("}");
  return node;
}

ExprPtr ExpressionParser::ParsePostfix(ExprPtr node) {
  while (true) {
    if (cursor_.AtOperator(".") || cursor_.AtOperator("[")) {
      node = ParseSubscript(std::move(node));
    } else if (cursor_.AtOperator("(")) {
      ExprPtr call = Make(ExprKind::kCall, cursor_.current().line);
      Adopt(*call, std::move(node));
      AdoptArguments(*call, ParseArguments());
      node = std::move(call);
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::ParseFilters(ExprPtr node) {
  while (true) {
    if (cursor_.AtOperator("|")) {
      node = ParseFilterChain(std::move(node));
    } else if (cursor_.AtName("is")) {
      node = ParseTest(std::move(node));
    } else if (cursor_.AtOperator("(")) {
      node = ParsePostfix(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::ParseFilterChain(ExprPtr input, bool first_without_pipe) {
  ExprPtr node = std::move(input);
  while (first_without_pipe || cursor_.SkipOperator("|")) {
    first_without_pipe = false;
    ExprPtr filter = Make(ExprKind::kFilter, cursor_.current().line);
    filter->name = cursor_.ExpectName();
    while (cursor_.SkipOperator(".")) filter->name.append(".").append(cursor_.ExpectName());
    Adopt(*filter, std::move(node));
    AdoptArguments(*filter,
                   cursor_.AtOperator("(") ? ParseArguments() : std::make_unique<Arguments>());
    node = std::move(filter);
  }
  return node;
}

ExprPtr ExpressionParser::ParseSubscript(ExprPtr node) {
  const Token& token = cursor_.Take();
  if (token.text == ".") {
    const Token& attribute = cursor_.Take();
    if (attribute.type == TokenType::kName) {
      ExprPtr result = Make(ExprKind::kAttribute, token.line);
      result->name = attribute.text;
      Adopt(*result, std::move(node));
      return result;
    }
    if (attribute.type != TokenType::kInteger) {
      cursor_.FailAt(attribute.line, "expected a name or a number after '.'");
    }
    ExprPtr index = Make(ExprKind::kConstant, attribute.line);
    index->constant = Value::Int(attribute.integer);
    return Binary(ExprKind::kItem, Operator::kAdd, token.line, std::move(node), std::move(index));
  }
  ExprPtr start;
  if (cursor_.AtOperator("]")) {
    start = Make(ExprKind::kTuple, token.line);  // a[] looks up the empty tuple, and finds nothing
  } else if (!cursor_.AtOperator(":")) {
    start = ParseExpression();
  }
  if (!cursor_.AtOperator(":")) {
    if (cursor_.AtOperator(",")) {
      ExprPtr tuple = Make(ExprKind::kTuple, token.line);
      Adopt(*tuple, std::move(start));
      while (cursor_.SkipOperator(",")) Adopt(*tuple, ParseExpression());
      start = std::move(tuple);
    }
    cursor_.ExpectOperator("]");
    return Binary(ExprKind::kItem, Operator::kAdd, token.line, std::move(node), std::move(start));
  }
  ExprPtr slice = Make(ExprKind::kSlice, token.line);
  Adopt(*slice, std::move(node));
  Adopt(*slice, std::move(start));
  for (int part = 0; part < 2; ++part) {
    const bool given = cursor_.SkipOperator(":") && !cursor_.AtOperator(":") &&
                       !cursor_.AtOperator("]") && !cursor_.AtOperator(",");
    Adopt(*slice, given ? ParseExpression() : nullptr);
  }
  cursor_.ExpectOperator("]");
  return slice;
}

ExprPtr ExpressionParser::ParseTest(ExprPtr node) {
  const int line = cursor_.Take().line;
  const bool negated = cursor_.SkipName("not");
  ExprPtr test = Make(ExprKind::kTest, line);
  test->name = cursor_.ExpectName();
  while (cursor_.SkipOperator(".")) test->name.append(".").append(cursor_.ExpectName());
  Adopt(*test, std::move(node));
  auto arguments = std::make_unique<Arguments>();
  const TokenType type = cursor_.current().type;
  if (cursor_.AtOperator("(")) {
    arguments = ParseArguments();
  } else if (type == TokenType::kName || type == TokenType::kString ||
             type == TokenType::kInteger || type == TokenType::kFloat || cursor_.AtOperator("[") ||
             cursor_.AtOperator("{")) {
    if (!cursor_.AtAnyName({"else", "or", "and"})) {
      if (cursor_.AtName("is")) cursor_.Fail("tests cannot be chained with 'is'");
      arguments->positional.push_back(ParsePostfix(ParsePrimary()));
    }
  }
  AdoptArguments(*test, std::move(arguments));
  if (!negated) return test;
  ExprPtr result = Make(ExprKind::kNot, line);
  Adopt(*result, std::move(test));
  return result;
}

std::unique_ptr<Arguments> ExpressionParser::ParseArguments() {
  cursor_.ExpectOperator("(");
  auto arguments = std::make_unique<Arguments>();
  bool first = true;
  while (!cursor_.AtOperator(")")) {
    if (!first) {
      cursor_.ExpectOperator(",");
      if (cursor_.AtOperator(")")) break;
    }
    first = false;
    bool ordered = arguments->double_star == nullptr;
    if (cursor_.SkipOperator("*")) {
      ordered = ordered && arguments->star == nullptr;
      arguments->star = ParseExpression();
    } else if (cursor_.SkipOperator("**")) {
      arguments->double_star = ParseExpression();
    } else if (cursor_.current().type == TokenType::kName &&
               cursor_.next().Is(TokenType::kOperator, "=")) {
      std::string name = cursor_.Take().text;
      cursor_.Take();
      arguments->keywords.emplace_back(std::move(name), ParseExpression());
    } else {
      ordered = ordered && arguments->star == nullptr && arguments->keywords.empty();
      arguments->positional.push_back(ParseExpression());
    }
    if (!ordered) cursor_.Fail("the arguments of a call are in the wrong order");
  }
  cursor_.ExpectOperator(")");
  return arguments;
}

}  // namespace moesaic::jinja
