// Replacing a file as a whole: whoever reads it, or finds it after a crash or a power cut, sees the
// old content or the new one.
//
// Functions of their arguments; several threads or processes may write different files, and of
// those that write the same file at once one gets Error(kUnavailable).
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "core/base/file_calls.h"

namespace moesaic {

// Writes FILE.tmp beside it, flushes it to disk, renames it over `file` and flushes the directory.
// What a killed process left of FILE.tmp is overwritten. Throws Error(kIo) that names the file;
// `file` is then as it was, but where only the directory could not be flushed: it is then the new
// one, and may be the old one again after a power cut.
void WriteFileAtomically(const std::filesystem::path& file, std::span<const std::byte> content,
                         FileCalls& calls = FileCalls::System());

// The same for text; makes the file's directory where there is none. Throws Error(kIo).
void SaveTextFile(const std::filesystem::path& file, std::string_view text);

// Renames `file` to FILE.LABEL-N with the smallest N >= 1 that is free, and returns that name.
// Throws Error(kIo).
std::filesystem::path SetFileAside(const std::filesystem::path& file, const char* label);

}  // namespace moesaic
