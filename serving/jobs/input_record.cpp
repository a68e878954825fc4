#include "serving/jobs/input_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <span>
#include <utility>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "serving/api/api_error.h"
#include "serving/api/json_text.h"
#include "serving/batch/line_file.h"

namespace moesaic {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kRecordMagic = "moesaic-batch-progress ";
constexpr std::string_view kRecordVersion = "1";
constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 36;
constexpr size_t kMaxHeaderBytes = 128;

bool IsJsonObject(std::string_view line) {
  try {
    return ParseJson(line).is_object();
  } catch (const ApiError&) {
    return false;
  }
}

const char* FormName(BatchInputForm form) {
  return form == BatchInputForm::kText ? "text" : "jsonl";
}

std::span<const std::byte> BytesOf(const std::vector<uint64_t>& lines) {
  return std::as_bytes(std::span(lines));
}

uint64_t ChecksumOf(const InputRecord& record) {
  return Hash64(BytesOf(record.lines), Hash64(FormName(record.form)));
}

[[noreturn]] void FailDamaged(std::string_view name) {
  Fail(ErrorKind::kCorrupt,
       "{}: it is damaged; remove it to go on, if you are sure that the input has not changed",
       name);
}

// The next word of the header, which ends with a space or is its rest.
std::string_view NextWord(std::string_view& header) {
  const size_t end = header.find(' ');
  const std::string_view word = header.substr(0, end);
  header.remove_prefix(end == std::string_view::npos ? header.size() : end + 1);
  return word;
}

uint64_t NumberOf(std::string_view word, int base, std::string_view name) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
  if (word.empty() || error != std::errc() || end != word.data() + word.size()) FailDamaged(name);
  return value;
}

// Finds out what the lines of an input are.
class FormFinder {
 public:
  void Look(std::string_view line) {
    if (found_ || looked_ == kLinesLookedAt) return;
    ++looked_;
    if (line[line.find_first_not_of(" \t\r\v\f")] != '{') return;
    any_brace_ = true;
    found_ = IsJsonObject(line);
  }

  BatchInputForm Form(const std::filesystem::path& input) const {
    if (found_) return BatchInputForm::kJsonl;
    if (any_brace_) {
      Fail(ErrorKind::kInvalidArgument,
           "{}: of its first {} lines some begin with '{{' and none is JSON, so it cannot be told "
           "what they are; --input-format jsonl or text says it",
           input.string(), looked_);
    }
    return BatchInputForm::kText;
  }

 private:
  int64_t looked_ = 0;
  bool any_brace_ = false;
  bool found_ = false;
};

}  // namespace

int64_t InputRecord::requests() const {
  return std::ssize(lines) - std::count(lines.begin(), lines.end(), uint64_t{0});
}

bool IsBlankLine(std::string_view line) {
  return line.find_first_not_of(" \t\r\v\f") == std::string_view::npos;
}

uint64_t HashOfInputLine(std::string_view line) {
  return IsBlankLine(line) ? 0 : std::max<uint64_t>(1, Hash64(line));
}

InputRecord LookAtInput(const std::filesystem::path& input, BatchInputForm form) {
  InputRecord record;
  LineReader reader(input);
  FormFinder finder;
  std::string line;
  while (reader.Next(&line)) {
    record.lines.push_back(HashOfInputLine(line));
    if (form == BatchInputForm::kAuto && record.lines.back() != 0) finder.Look(line);
  }
  while (!record.lines.empty() && record.lines.back() == 0) record.lines.pop_back();
  record.form = form == BatchInputForm::kAuto ? finder.Form(input) : form;
  return record;
}

int64_t FirstChangedLine(const InputRecord& before, const InputRecord& now) {
  const auto [was, is] =
      std::mismatch(before.lines.begin(), before.lines.end(), now.lines.begin(), now.lines.end());
  return was == before.lines.end() ? 0 : was - before.lines.begin() + 1;
}

std::string PackInputRecord(const InputRecord& record) {
  std::string text = fmt::format("{}{} {} {} {:016x}\n", kRecordMagic, kRecordVersion,
                                 FormName(record.form), record.lines.size(), ChecksumOf(record));
  const std::span<const std::byte> bytes = BytesOf(record.lines);
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text;
}

InputRecord ParseInputRecord(std::string_view bytes, std::string_view name) {
  if (!bytes.starts_with(kRecordMagic)) {
    Fail(ErrorKind::kInvalidArgument,
         "{}: no batch job has written it, and a job needs this name; move it away, or give "
         "another -o",
         name);
  }
  std::string_view header = bytes.substr(0, kMaxHeaderBytes);
  const size_t header_bytes = header.find('\n');
  if (header_bytes == std::string_view::npos) FailDamaged(name);
  header = header.substr(kRecordMagic.size(), header_bytes - kRecordMagic.size());
  const std::string_view content = bytes.substr(header_bytes + 1);
  const std::string_view version = NextWord(header);
  if (version != kRecordVersion) {
    Fail(ErrorKind::kUnsupported, "{}: has format version {}, this program reads {}", name,
         Excerpt(version, 20), kRecordVersion);
  }
  InputRecord record;
  const std::string_view form = NextWord(header);
  if (form != "jsonl" && form != "text") FailDamaged(name);
  record.form = form == "text" ? BatchInputForm::kText : BatchInputForm::kJsonl;
  const uint64_t lines = NumberOf(NextWord(header), 10, name);
  const uint64_t checksum = NumberOf(header, 16, name);
  if (content.size() % sizeof(uint64_t) != 0 || lines != content.size() / sizeof(uint64_t)) {
    FailDamaged(name);
  }
  record.lines.resize(lines);
  if (lines > 0) std::memcpy(record.lines.data(), content.data(), content.size());
  if (ChecksumOf(record) != checksum) FailDamaged(name);
  return record;
}

std::optional<InputRecord> ReadInputRecord(const std::filesystem::path& file) {
  std::string bytes;
  try {
    const File opened(file);
    bytes.resize(kRecordMagic.size());
    bytes.resize(opened.ReadAt(0, std::as_writable_bytes(std::span(bytes))));
    // Not read whole before it is known to be one: it may be anything.
    if (bytes == kRecordMagic) bytes = ReadTextFile(file, kMaxRecordBytes);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kNotFound) return std::nullopt;
    throw;
  }
  if (bytes.empty()) return std::nullopt;
  return ParseInputRecord(bytes, file.string());
}

void WriteInputRecord(const std::filesystem::path& file, const InputRecord& record) {
  const std::string bytes = PackInputRecord(record);
  WriteFileAtomically(file, std::as_bytes(std::span(bytes)));
}

}  // namespace moesaic
