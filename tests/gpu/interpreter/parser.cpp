#include "tests/gpu/interpreter/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "tests/gpu/interpreter/forms.h"
#include "tests/gpu/interpreter/ptx_text.h"

namespace moesaic::ptx {
namespace {

constexpr uint32_t kMostBytes = 1 << 20;  // of what a kernel declares, of registers of one kind

class KernelParser {
 public:
  KernelParser(std::string name, int line) : line_(line) { kernel_.name = std::move(name); }

  void AddParameter(std::string_view declaration);
  void Attribute(std::string_view text);
  void AddStatement(const Statement& statement);
  void AddLabel(const Statement& statement);
  Kernel Finish();

 private:
  template <typename... Args>
  [[noreturn]] void Bad(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorKind::kCorrupt, fmt::format("PTX line {}: {}", line_,
                                                 fmt::format(format, std::forward<Args>(args)...)));
  }
  template <typename T = uint32_t>
  T Number(std::string_view text) const;
  uint32_t Reserve(uint32_t& top, uint32_t bytes, uint32_t alignment) const;
  void Declare(std::string_view text);
  void DeclareRegisters(std::string_view text);
  uint32_t DeclareMemory(std::string_view text, uint32_t& top);
  void AddInstruction(std::string_view text);
  void AddOperands(Instruction& instruction, const Form& form,
                   const std::vector<std::string_view>& operands);
  Operand Register(std::string_view name);
  Operand Special(std::string_view name);
  Operand Constant(uint64_t bits, uint32_t lane_bytes);
  Operand Value(std::string_view text, char shape);
  Operand Address(std::string_view text, Instruction& instruction);

  struct Registers {
    uint32_t lane_bytes = 0;  // 0: predicates
    uint32_t count = 0;       // 0: one, of exactly this name
  };
  Kernel kernel_;
  int line_;
  std::map<std::string, Registers, std::less<>> declared_;  // by name without a number
  std::map<std::string, Operand, std::less<>> registers_;   // those that are used
  std::map<std::string, uint32_t, std::less<>> symbols_;    // shared and local memory, parameters
  std::map<std::pair<uint64_t, uint32_t>, Operand> constants_;
  std::map<std::string, uint32_t, std::less<>> labels_;
  std::vector<std::pair<uint32_t, std::string>> branches_;  // whose target is looked up at last
};

template <typename T>
T KernelParser::Number(std::string_view text) const {
  T value = 0;
  int base = 10;
  std::string_view digits = text;
  if (digits.starts_with("0x") || digits.starts_with("0X")) {
    digits.remove_prefix(2);
    base = 16;
  }
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.empty()) {
    Bad("'{}' is no number", text);
  }
  return value;
}

// Takes so many bytes; where they begin.
uint32_t KernelParser::Reserve(uint32_t& top, uint32_t bytes, uint32_t alignment) const {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > 1024) {
    Bad("an alignment of {}", alignment);
  }
  const uint32_t begin = (top + alignment - 1) / alignment * alignment;
  if (bytes > kMostBytes || begin + bytes > kMostBytes * 16) Bad("{} bytes are too many", bytes);
  top = begin + bytes;
  return begin;
}

// ".param .u64 NAME" or ".param .align 8 .b8 NAME[80]".
void KernelParser::AddParameter(std::string_view declaration) {
  if (TakeWord(declaration) != ".param") Bad("a parameter must begin with .param");
  const uint32_t offset = DeclareMemory(declaration, kernel_.parameter_bytes);
  kernel_.parameters.push_back({offset, kernel_.parameter_bytes - offset});
}

// "[.align N] .b8 NAME[BYTES]", or a single element without a size. Where it begins.
uint32_t KernelParser::DeclareMemory(std::string_view text, uint32_t& top) {
  uint32_t alignment = 0;
  std::string_view word = TakeWord(text);
  if (word == ".align") {
    alignment = Number(TakeWord(text));
    word = TakeWord(text);
  }
  const uint32_t element = word.empty() ? 0 : TypeBytes(word.substr(1));
  if (element == 0) Bad("'{}' is no type of memory", word);
  uint32_t elements = 1;
  std::string_view name = text;
  if (const size_t bracket = text.find('['); bracket != std::string_view::npos) {
    name = Trim(text.substr(0, bracket));
    if (text.back() != ']') Bad("'{}' is no array", text);
    elements = Number(Trim(text.substr(bracket + 1, text.size() - bracket - 2)));
  }
  if (elements > kMostBytes) Bad("{} elements are too many", elements);
  const uint32_t begin = Reserve(top, elements * element, alignment == 0 ? element : alignment);
  if (name.empty() || !symbols_.emplace(name, begin).second) Bad("'{}' is declared twice", name);
  return begin;
}

// What stands between the parameters and the body.
void KernelParser::Attribute(std::string_view text) {
  while (!(text = Trim(text)).empty()) {
    const std::string_view word = TakeWord(text);
    if (word != ".maxntid" && word != ".minnctapersm") {
      Fail(ErrorKind::kUnsupported, "PTX line {}: directive {} of a kernel", line_, word);
    }
    const size_t end = std::min(text.find('.'), text.size());
    uint32_t product = 1;
    for (const std::string_view number : SplitList(text.substr(0, end))) {
      product = std::min(product * std::min(Number(number), 4096u), 4096u);
    }
    if (word == ".maxntid") kernel_.most_threads = product;
    text.remove_prefix(end);
  }
}

void KernelParser::AddLabel(const Statement& statement) {
  line_ = statement.line;
  if (!labels_.emplace(statement.text, static_cast<uint32_t>(kernel_.code.size())).second) {
    Bad("label '{}' stands here twice", statement.text);
  }
}

void KernelParser::AddStatement(const Statement& statement) {
  line_ = statement.line;
  if (statement.text.starts_with('.')) {
    Declare(statement.text);
  } else {
    AddInstruction(statement.text);
    kernel_.source.push_back({statement.line, statement.text});
  }
}

void KernelParser::Declare(std::string_view text) {
  const std::string_view directive = TakeWord(text);
  if (directive == ".pragma") return;  // advice to the assembler
  if (directive == ".reg") {
    DeclareRegisters(text);
  } else if (directive == ".shared") {
    DeclareMemory(text, kernel_.shared_bytes);
  } else if (directive == ".local") {
    DeclareMemory(text, kernel_.local_bytes);
  } else {
    Fail(ErrorKind::kUnsupported, "PTX line {}: directive {}", line_, directive);
  }
}

// ".b32 %r<33>" or ".b64 %SP".
void KernelParser::DeclareRegisters(std::string_view text) {
  const std::string_view type = TakeWord(text);
  const uint32_t bytes = type.empty() ? 0 : TypeBytes(type.substr(1));
  if (bytes == 0 && type != ".pred") Bad("'{}' is no type of a register", type);
  for (std::string_view name : SplitList(text)) {
    uint32_t count = 0;
    if (const size_t angle = name.find('<'); angle != std::string_view::npos) {
      if (name.back() != '>') Bad("'{}' declares no registers", name);
      count = Number(name.substr(angle + 1, name.size() - angle - 2));
      name = name.substr(0, angle);
    }
    const uint32_t lane_bytes = type == ".pred" ? 0 : std::max(bytes, 4u);
    if (!declared_.emplace(name, Registers{lane_bytes, count}).second) {
      Bad("registers '{}' are declared twice", name);
    }
  }
}

Operand KernelParser::Register(std::string_view name) {
  if (const auto known = registers_.find(name); known != registers_.end()) return known->second;
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  auto declared = declared_.find(name);
  const bool single = declared != declared_.end() && declared->second.count == 0;
  if (!single) {
    declared = declared_.find(name.substr(0, digits));
    if (digits == name.size() || declared == declared_.end() ||
        Number(name.substr(digits)) >= declared->second.count) {
      Bad("register '{}' is not declared", name);
    }
  }
  Operand operand;
  operand.lane_bytes = static_cast<uint8_t>(declared->second.lane_bytes);
  const uint32_t bytes = operand.lane_bytes == 0 ? 4 : operand.lane_bytes * kLanes;
  operand.offset = Reserve(kernel_.register_bytes, bytes, operand.lane_bytes == 0 ? 4 : 32);
  registers_.emplace(name, operand);
  return operand;
}

// %tid.x and the like: a register that the launch fills in.
Operand KernelParser::Special(std::string_view name) {
  using Kind = SpecialRegister::Kind;
  if (const auto known = registers_.find(name); known != registers_.end()) return known->second;
  static const std::map<std::string_view, Kind> kKinds = {{"%tid", Kind::kThread},
                                                          {"%ntid", Kind::kBlockSize},
                                                          {"%ctaid", Kind::kBlock},
                                                          {"%nctaid", Kind::kGridSize},
                                                          {"%laneid", Kind::kLane}};
  const size_t dot = name.find('.');
  const auto kind = kKinds.find(name.substr(0, dot));
  const std::string_view axis = dot == std::string_view::npos ? "x" : name.substr(dot + 1);
  const size_t index = std::string_view("xyz").find(axis);
  if (kind == kKinds.end() || axis.size() != 1 || index == std::string_view::npos) {
    Fail(ErrorKind::kUnsupported, "PTX line {}: special register {}", line_, name);
  }
  Operand operand;
  operand.lane_bytes = 4;
  operand.offset = Reserve(kernel_.register_bytes, 4 * kLanes, 32);
  registers_.emplace(name, operand);
  kernel_.special_registers.push_back({kind->second, static_cast<int>(index), operand});
  return operand;
}

// Of a predicate all lanes have the lowest bit.
Operand KernelParser::Constant(uint64_t bits, uint32_t lane_bytes) {
  if (lane_bytes == 0) bits = bits != 0 ? 0xffffffffu : 0;
  const auto [known, is_new] = constants_.try_emplace({bits, lane_bytes});
  if (!is_new) return known->second;
  auto top = static_cast<uint32_t>(kernel_.constants.size());
  Operand& operand = known->second;
  operand.constant = true;
  operand.lane_bytes = static_cast<uint8_t>(lane_bytes);
  const uint32_t bytes = lane_bytes == 0 ? 4 : lane_bytes;
  const int copies = lane_bytes == 0 ? 1 : kLanes;
  operand.offset = Reserve(top, bytes * static_cast<uint32_t>(copies), 32);
  kernel_.constants.resize(top);
  for (int i = 0; i < copies; ++i) {
    std::memcpy(kernel_.constants.data() + operand.offset + i * static_cast<int>(bytes), &bits,
                bytes);
  }
  return operand;
}

// A source: a register, a special one, a number, or the address of what was declared.
Operand KernelParser::Value(std::string_view text, char shape) {
  const uint32_t lane_bytes = shape == 'p' ? 0 : shape == '4' ? 4 : 8;
  if (text.starts_with('%')) {
    const bool special = text.find('.') != std::string_view::npos || text == "%laneid";
    const Operand operand = special ? Special(text) : Register(text);
    if (shape != '*' && operand.lane_bytes != lane_bytes) {
      Bad("register '{}' has another size than the instruction", text);
    }
    return operand;
  }
  if (text.starts_with("0f") || text.starts_with("0F")) {
    const std::string hex = "0x" + std::string(text.substr(2));
    return Constant(Number<uint32_t>(hex), lane_bytes);
  }
  if (text.starts_with('-')) {
    return Constant(static_cast<uint64_t>(Number<int64_t>(text)), lane_bytes);
  }
  if (!text.empty() && text[0] >= '0' && text[0] <= '9') {
    return Constant(Number<uint64_t>(text), lane_bytes);
  }
  const auto symbol = symbols_.find(text);
  if (symbol == symbols_.end()) Bad("operand '{}' is not declared", text);
  return Constant(symbol->second, lane_bytes);
}

// "[BASE]", "[BASE+N]".
Operand KernelParser::Address(std::string_view text, Instruction& instruction) {
  if (text.size() < 3 || text.front() != '[' || text.back() != ']') Bad("'{}' is no address", text);
  text = text.substr(1, text.size() - 2);
  const size_t plus = text.find('+');
  if (plus != std::string_view::npos) {
    instruction.displacement = Number<int64_t>(Trim(text.substr(plus + 1)));
  }
  const std::string_view base = Trim(text.substr(0, plus));
  return Value(base, base.starts_with('%') ? '*' : '8');
}

void KernelParser::AddInstruction(std::string_view text) {
  Instruction instruction;
  if (text.starts_with('@')) {
    std::string_view guard = TakeWord(text).substr(1);
    instruction.guarded = true;
    instruction.guard_negated = guard.starts_with('!');
    if (instruction.guard_negated) guard.remove_prefix(1);
    instruction.guard = Value(guard, 'p');
  }
  std::string name(TakeWord(text));
  const std::vector<std::string_view> operands = SplitList(text);
  if (name.starts_with("mov.") && operands.size() == 2) {
    if (operands[0].starts_with('{')) name += " unpack";
    if (operands[1].starts_with('{')) name += " pack";
  }
  const auto form = AllForms().find(name);
  if (form == AllForms().end()) {
    Fail(ErrorKind::kUnsupported,
         "PTX line {}: the interpreter does not know the instruction '{}' (tests/gpu/interpreter/"
         "forms.h says where to add it)",
         line_, name);
  }
  instruction.execute = form->second.execute;
  instruction.flow = form->second.flow;
  instruction.space = form->second.space;
  instruction.is_volatile = form->second.is_volatile;
  if (instruction.flow == Flow::kBranch) {
    if (operands.size() != 1) Bad("a branch has one target");
    branches_.emplace_back(kernel_.code.size(), operands[0]);
  } else {
    AddOperands(instruction, form->second, operands);
  }
  kernel_.code.push_back(instruction);
}

void KernelParser::AddOperands(Instruction& instruction, const Form& form,
                               const std::vector<std::string_view>& operands) {
  // Vectors and pairs ("a|b") as operands one behind the other.
  std::vector<std::string_view> flat;
  for (const std::string_view operand : operands) {
    if (operand.starts_with('{') && operand.ends_with('}')) {
      for (const std::string_view part : SplitList(operand.substr(1, operand.size() - 2))) {
        flat.push_back(part);
      }
    } else if (const size_t bar = operand.find('|'); bar != std::string_view::npos) {
      flat.push_back(Trim(operand.substr(0, bar)));
      flat.push_back(Trim(operand.substr(bar + 1)));
    } else {
      flat.push_back(operand);
    }
  }
  const size_t targets = form.shape.find(':');
  if (flat.size() + 1 != form.shape.size()) {
    Bad("{} operands where {} are wanted", flat.size(), form.shape.size() - 1);
  }
  for (size_t i = 0; i < flat.size(); ++i) {
    if (i < targets) {
      if (!flat[i].starts_with('%')) Bad("'{}' is no register", flat[i]);
      instruction.to[instruction.targets++] = Value(flat[i], form.shape[i]);
      continue;
    }
    const char shape = form.shape[i + 1];
    instruction.from[instruction.sources++] =
        shape == 'a' ? Address(flat[i], instruction) : Value(flat[i], shape);
  }
  instruction.vector = static_cast<uint8_t>(std::count(form.shape.begin(), form.shape.end(), '*'));
}

Kernel KernelParser::Finish() {
  for (const auto& [index, label] : branches_) {
    const auto target = labels_.find(label);
    if (target == labels_.end()) {
      line_ = kernel_.source[index].line;
      Bad("there is no label '{}'", label);
    }
    kernel_.code[index].target = target->second;
  }
  // Whoever comes past the last instruction has ended.
  Instruction end;
  end.flow = Flow::kExit;
  kernel_.code.push_back(end);
  kernel_.source.push_back({line_, "}"});
  return std::move(kernel_);
}

Kernel ParseKernel(PtxReader& reader) {
  const Statement head = reader.Until("({");
  KernelParser parser(head.text, head.line);
  if (head.text.empty() || head.end == 0) {
    Fail(ErrorKind::kCorrupt, "PTX line {}: a kernel without a name or a body", head.line);
  }
  if (head.end == '(') {
    const Statement parameters = reader.Until(")");
    for (const std::string_view declaration : SplitList(parameters.text)) {
      parser.AddParameter(declaration);
    }
    parser.Attribute(reader.Until("{").text);
  }
  for (int depth = 1; depth > 0;) {
    switch (reader.Peek()) {
      case '\0':
        Fail(ErrorKind::kCorrupt, "PTX line {}: the body of a kernel does not end", reader.line());
      case '{':
        reader.Drop();
        ++depth;
        break;
      case '}':
        reader.Drop();
        --depth;
        break;
      default: {
        const Statement statement = reader.Until(";:");
        if (statement.end == 0) {
          Fail(ErrorKind::kCorrupt, "PTX line {}: '{}' does not end", statement.line,
               statement.text);
        }
        if (statement.end == ':') {
          parser.AddLabel(statement);
        } else if (!statement.text.empty()) {
          parser.AddStatement(statement);
        }
      }
    }
  }
  return parser.Finish();
}

}  // namespace

std::vector<Kernel> ParseModule(std::string_view text) {
  std::vector<Kernel> kernels;
  PtxReader reader(text);
  while (reader.Peek() != '\0') {
    const int line = reader.line();
    const Statement word = reader.Until(" \t\n");
    if (word.text == ".version" || word.text == ".target" || word.text == ".address_size") {
      reader.DropLine();
    } else if (word.text == ".entry") {
      kernels.push_back(ParseKernel(reader));
    } else if (word.text != ".visible" && word.text != ".weak") {
      Fail(ErrorKind::kUnsupported, "PTX line {}: '{}' outside of a kernel", line, word.text);
    }
  }
  return kernels;
}

}  // namespace moesaic::ptx
