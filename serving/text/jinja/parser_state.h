// What the two halves of the parser share: the token cursor and the nesting limit. Internal.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/text/jinja/ast.h"
#include "serving/text/jinja/lexer.h"

namespace moesaic::jinja {

// Nested brackets, operands and blocks. The parser recurses through about ten functions a level,
// and evaluation and destruction follow the tree.
inline constexpr int kMaxNesting = 100;
// Height of an expression's tree: left-associative chains grow it without nesting the parser.
inline constexpr int kMaxExprDepth = 300;

class TokenCursor {
 public:
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[position_]; }
  const Token& next() const {
    return tokens_[position_ + 1 < tokens_.size() ? position_ + 1 : position_];
  }
  const Token& Take();
  bool AtOperator(std::string_view text) const { return current().Is(TokenType::kOperator, text); }
  bool AtName(std::string_view text) const { return current().Is(TokenType::kName, text); }
  bool AtAnyName(std::initializer_list<std::string_view> names) const;
  bool SkipOperator(std::string_view text);
  bool SkipName(std::string_view text);
  void ExpectOperator(std::string_view text);
  void ExpectBlockEnd();
  std::string ExpectName();
  std::string Describe() const;
  [[noreturn]] void Fail(std::string message) const;
  [[noreturn]] void FailAt(int line, std::string message) const;

  // Held by every recursive production.
  class Nested {
   public:
    explicit Nested(TokenCursor& cursor) : cursor_(cursor) {
      if (++cursor_.nesting_ > kMaxNesting) {
        --cursor_.nesting_;
        cursor_.Fail("the template is nested too deeply here");
      }
    }
    ~Nested() { --cursor_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    TokenCursor& cursor_;
  };

 private:
  std::vector<Token> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
};

// The expression half.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenCursor& cursor) : cursor_(cursor) {}

  ExprPtr ParseExpression();  // with `x if c else y`
  ExprPtr ParseOr();          // without
  // Expressions separated by commas make a tuple. `conditional` as above.
  ExprPtr ParseTuple(bool conditional, bool in_parentheses = false);
  // `| name(args) | ...` after `input`, which may be null; null when there is no filter.
  ExprPtr ParseFilterChain(ExprPtr input, bool first_without_pipe = false);

  // The implicit macro names (varargs, kwargs, caller) seen since the innermost Push.
  struct ImplicitNames {
    bool varargs = false;
    bool kwargs = false;
    bool caller = false;
  };
  void PushMacro() { macros_.emplace_back(); }
  ImplicitNames PopMacro();

 private:
  ExprPtr ParseAnd();
  ExprPtr ParseNot();
  ExprPtr ParseCompare();
  ExprPtr ParseSum();
  ExprPtr ParseConcat();
  ExprPtr ParseProduct();
  ExprPtr ParsePower();
  ExprPtr ParseUnary(bool with_filter = true);
  ExprPtr ParsePrimary();
  ExprPtr ParseList();
  ExprPtr ParseDict();
  ExprPtr ParsePostfix(ExprPtr node);
  ExprPtr ParseFilters(ExprPtr node);
  ExprPtr ParseSubscript(ExprPtr node);
  ExprPtr ParseTest(ExprPtr node);
  std::unique_ptr<Arguments> ParseArguments();
  ExprPtr Make(ExprKind kind, int line) const;
  void Adopt(Expr& parent, ExprPtr child) const;
  void AdoptArguments(Expr& parent, std::unique_ptr<Arguments> arguments) const;
  ExprPtr Binary(ExprKind kind, Operator op, int line, ExprPtr left, ExprPtr right) const;
  void Deepen(Expr& parent, const Expr& child) const;

  TokenCursor& cursor_;
  std::vector<ImplicitNames> macros_;
};

}  // namespace moesaic::jinja
