#include "serving/text/jinja/parser.h"

#include <fmt/format.h>

#include <utility>

#include "serving/text/jinja/parser_state.h"

namespace moesaic::jinja {
namespace {

class TemplateParser {
 public:
  explicit TemplateParser(std::string_view source)
      : cursor_(Tokenize(source)), expressions_(cursor_) {}

  Body Run() { return ParseBody({}); }

 private:
  // Statements up to a block that starts with one of `ends`, whose name is the current token then.
  // Without `ends` up to the end of the template.
  Body ParseBody(std::initializer_list<std::string_view> ends) {
    TokenCursor::Nested nested(cursor_);
    Body body;
    while (true) {
      const Token& token = cursor_.current();
      switch (token.type) {
        case TokenType::kEnd:
          if (ends.size() == 0) return body;
          cursor_.Fail(
              fmt::format("the template ends where '{{% {} %}}' was expected", *(ends.end() - 1)));
        case TokenType::kData: {
          Statement& text = Add(body, StatementKind::kText, token.line);
          text.text = Value::String(cursor_.Take().text);
          break;
        }
        case TokenType::kVariableBegin: {
          cursor_.Take();
          Add(body, StatementKind::kOutput, token.line)
              .exprs.push_back(expressions_.ParseTuple(/*conditional=*/true));
          if (cursor_.current().type != TokenType::kVariableEnd) {
            cursor_.Fail(fmt::format("expected '}}}}', got {}", cursor_.Describe()));
          }
          cursor_.Take();
          break;
        }
        default:
          cursor_.Take();  // kBlockBegin: the lexer yields nothing else outside a tag
          if (cursor_.AtAnyName(ends)) return body;
          ParseBlock(body);
          cursor_.ExpectBlockEnd();
      }
    }
  }

  // The body of a tag whose `%}` is next, with its end tag's name taken.
  Body ParseBodyUntil(std::string_view end) {
    cursor_.SkipOperator(":");
    cursor_.ExpectBlockEnd();
    Body body = ParseBody({end});
    cursor_.Take();
    return body;
  }

  static Statement& Add(Body& body, StatementKind kind, int line) {
    body.push_back({});
    body.back().kind = kind;
    body.back().line = line;
    return body.back();
  }

  void ParseBlock(Body& body) {
    const int line = cursor_.current().line;
    const std::string tag = cursor_.ExpectName();
    if (tag == "if") {
      ParseIf(Add(body, StatementKind::kIf, line));
    } else if (tag == "for") {
      ParseFor(Add(body, StatementKind::kFor, line));
    } else if (tag == "set") {
      ParseSet(Add(body, StatementKind::kSet, line));
    } else if (tag == "macro") {
      Statement& macro = Add(body, StatementKind::kMacro, line);
      macro.name = cursor_.ExpectName();
      ParseSignature(macro);
      ParseMacroBody(macro, "endmacro");
    } else if (tag == "call") {
      ParseCall(Add(body, StatementKind::kCall, line));
    } else if (tag == "filter") {
      Statement& filter = Add(body, StatementKind::kFilter, line);
      filter.filter = expressions_.ParseFilterChain(nullptr, /*first_without_pipe=*/true);
      filter.bodies.push_back(ParseBodyUntil("endfilter"));
    } else if (tag == "with") {
      ParseWith(Add(body, StatementKind::kWith, line));
    } else if (tag == "print") {
      Statement& print = Add(body, StatementKind::kOutput, line);
      while (cursor_.current().type != TokenType::kBlockEnd) {
        if (!print.exprs.empty()) cursor_.ExpectOperator(",");
        print.exprs.push_back(expressions_.ParseExpression());
      }
    } else if (tag == "generation") {
      // Training code asks which tokens the model generated; for serving it is only a scope.
      // It compiles to a function in Jinja: break and continue cannot leave it.
      Statement& scope = Add(body, StatementKind::kScope, line);
      const int loops = std::exchange(loop_depth_, 0);
      scope.bodies.push_back(ParseBodyUntil("endgeneration"));
      loop_depth_ = loops;
    } else if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) cursor_.FailAt(line, fmt::format("'{}' outside a loop", tag));
      Add(body, tag == "break" ? StatementKind::kBreak : StatementKind::kContinue, line);
    } else if (tag == "include" || tag == "import" || tag == "from" || tag == "extends" ||
               tag == "block" || tag == "autoescape") {
      cursor_.FailAt(line,
                     fmt::format("the template uses the tag '{}', which is not supported", tag));
    } else {
      cursor_.FailAt(line, fmt::format("unknown or misplaced tag '{}'", tag));
    }
  }

  void ParseIf(Statement& node) {
    while (true) {
      node.exprs.push_back(expressions_.ParseTuple(/*conditional=*/false));
      cursor_.SkipOperator(":");
      cursor_.ExpectBlockEnd();
      node.bodies.push_back(ParseBody({"elif", "else", "endif"}));
      const std::string end = cursor_.Take().text;
      if (end == "elif") continue;
      if (end == "else") node.bodies.push_back(ParseBodyUntil("endif"));
      return;
    }
  }

  void ParseFor(Statement& node) {
    node.targets.push_back(ParseTarget(/*with_attribute=*/false));
    if (!cursor_.SkipName("in")) {
      cursor_.Fail(fmt::format("expected 'in', got {}", cursor_.Describe()));
    }
    node.exprs.push_back(expressions_.ParseTuple(/*conditional=*/false));
    if (cursor_.SkipName("if")) node.filter = expressions_.ParseExpression();
    if (cursor_.AtName("recursive"))
      cursor_.Fail("the template uses a recursive loop, which is not supported");
    cursor_.SkipOperator(":");
    cursor_.ExpectBlockEnd();
    ++loop_depth_;
    node.bodies.push_back(ParseBody({"endfor", "else"}));
    --loop_depth_;
    if (cursor_.Take().text == "else") node.bodies.push_back(ParseBodyUntil("endfor"));
  }

  void ParseSet(Statement& node) {
    node.targets.push_back(ParseTarget(/*with_attribute=*/true));
    if (cursor_.SkipOperator("=")) {
      node.exprs.push_back(expressions_.ParseTuple(/*conditional=*/true));
      return;
    }
    node.kind = StatementKind::kSetBlock;
    node.filter = expressions_.ParseFilterChain(nullptr);
    node.bodies.push_back(ParseBodyUntil("endset"));
  }

  void ParseWith(Statement& node) {
    while (cursor_.current().type != TokenType::kBlockEnd) {
      if (!node.targets.empty()) cursor_.ExpectOperator(",");
      node.targets.push_back(ParseTarget(/*with_attribute=*/false));
      cursor_.ExpectOperator("=");
      node.exprs.push_back(expressions_.ParseExpression());
    }
    node.bodies.push_back(ParseBodyUntil("endwith"));
  }

  void ParseCall(Statement& node) {
    if (cursor_.AtOperator("(")) ParseSignature(node);
    node.exprs.push_back(expressions_.ParseExpression());
    if (node.exprs[0]->kind != ExprKind::kCall) {
      cursor_.FailAt(node.line, "expected a call after 'call'");
    }
    ParseMacroBody(node, "endcall");
  }

  void ParseSignature(Statement& node) {
    cursor_.ExpectOperator("(");
    while (!cursor_.AtOperator(")")) {
      if (!node.parameters.empty()) cursor_.ExpectOperator(",");
      Parameter parameter{ExpectAssignable(), nullptr};
      for (const Parameter& other : node.parameters) {
        if (other.name == parameter.name) {
          cursor_.Fail(fmt::format("there are two parameters '{}'", parameter.name));
        }
      }
      if (cursor_.SkipOperator("=")) {
        parameter.default_value = expressions_.ParseExpression();
      } else if (!node.parameters.empty() && node.parameters.back().default_value != nullptr) {
        cursor_.Fail("a parameter without a default follows one with a default");
      }
      node.parameters.push_back(std::move(parameter));
    }
    cursor_.ExpectOperator(")");
  }

  void ParseMacroBody(Statement& node, std::string_view end) {
    const int loops = std::exchange(loop_depth_, 0);
    expressions_.PushMacro();
    node.bodies.push_back(ParseBodyUntil(end));
    const auto names = expressions_.PopMacro();
    node.uses_varargs = names.varargs;
    node.uses_kwargs = names.kwargs;
    node.uses_caller = names.caller;
    loop_depth_ = loops;
  }

  std::string ExpectAssignable() {
    if (cursor_.AtAnyName({"true", "false", "none", "True", "False", "None"})) {
      cursor_.Fail(fmt::format("'{}' cannot be assigned to", cursor_.current().text));
    }
    return cursor_.ExpectName();
  }

  // `a`, `a.b`, `a, b`, `(a, b)`.
  Target ParseTarget(bool with_attribute) {
    Target first = ParseOneTarget(with_attribute);
    if (!cursor_.AtOperator(",")) return first;
    Target tuple;
    tuple.items.push_back(std::move(first));
    while (cursor_.SkipOperator(",")) {
      if (cursor_.AtName("in") || cursor_.AtOperator("=") || cursor_.AtOperator(")")) break;
      tuple.items.push_back(ParseOneTarget(with_attribute));
    }
    return tuple;
  }

  Target ParseOneTarget(bool with_attribute) {
    TokenCursor::Nested nested(cursor_);
    if (cursor_.SkipOperator("(")) {
      Target target = ParseTarget(/*with_attribute=*/false);
      cursor_.ExpectOperator(")");
      return target;
    }
    Target target;
    target.name = ExpectAssignable();
    if (with_attribute && cursor_.SkipOperator(".")) target.attribute = cursor_.ExpectName();
    return target;
  }

  TokenCursor cursor_;
  ExpressionParser expressions_;
  int loop_depth_ = 0;
};

}  // namespace

Body Parse(std::string_view source) { return TemplateParser(source).Run(); }

}  // namespace moesaic::jinja
