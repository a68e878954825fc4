// InputRecord: what the lines of a batch job's input were when its first answer was written, so
// that a job that goes on can tell that the input has changed.
//
// It is kept in OUTPUT.progress:
//   "moesaic-batch-progress 1 FORM LINES CHECKSUM\n", FORM: jsonl or text, CHECKSUM: XXH64, hex
//   LINES times 8 bytes, little endian: XXH64 of the line; 0: it is blank
// and replaced as a whole, so that a process that is killed leaves the one before or this one. A
// line's hash is of its text, and its place is its number, which "line-N" ids are made of. A
// million lines take 8 MB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

enum class BatchInputForm {
  kAuto,   // what LookAtInput finds
  kJsonl,  // an object per line
  kText,   // a prompt per line
};

struct InputRecord {
  BatchInputForm form = BatchInputForm::kJsonl;
  std::vector<uint64_t> lines;  // hashes by line number, from 1; blank lines at the end left out

  int64_t requests() const;  // lines that are not blank
  bool operator==(const InputRecord&) const = default;
};

bool IsBlankLine(std::string_view line);
// 0: the line is blank.
uint64_t HashOfInputLine(std::string_view line);

// Goes through the input once. Where the form is not given it is kJsonl when one of the first
// kLinesLookedAt lines that are not blank is a JSON object, kText when none of them begins like
// one. Throws Error(kInvalidArgument) when it cannot be told, Error(kNotFound / kIo).
InputRecord LookAtInput(const std::filesystem::path& input, BatchInputForm form);
inline constexpr int64_t kLinesLookedAt = 100;

// Number of the first line that is not what it was; 0: all of `before` is there, and maybe more.
int64_t FirstChangedLine(const InputRecord& before, const InputRecord& now);

std::string PackInputRecord(const InputRecord& record);
// Untrusted bytes; `name` goes into messages. Throws Error(kInvalidArgument) when it is something
// else than a record, Error(kCorrupt) when it is damaged.
InputRecord ParseInputRecord(std::string_view bytes, std::string_view name);
// Null: there is no file, or an empty one. Throws also Error(kIo).
std::optional<InputRecord> ReadInputRecord(const std::filesystem::path& file);
// Throws Error(kIo).
void WriteInputRecord(const std::filesystem::path& file, const InputRecord& record);

}  // namespace moesaic
