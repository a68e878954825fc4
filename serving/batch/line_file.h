// Files of lines: LineReader goes through one of any size, LineFile appends whole lines to one.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file.h"
#include "core/base/file_calls.h"

namespace moesaic {

class LineReader {
 public:
  // Throws Error(kNotFound / kIo).
  explicit LineReader(const std::filesystem::path& path, uint64_t max_line_bytes = kMaxLineBytes);

  // The next line without its end ("\n" or "\r\n"); false at the end of the file. A line of more
  // than max_line_bytes comes out cut, and too_long() says so. Throws Error(kIo).
  bool Next(std::string* line);
  bool too_long() const { return too_long_; }
  // Whether the line ended with a newline (the last one of a file may not).
  bool whole() const { return whole_; }
  int64_t line_number() const { return line_number_; }                 // of the last line, from 1
  uint64_t end_offset() const { return offset_ - (buffered_ - at_); }  // behind it, in the file

  static constexpr uint64_t kMaxLineBytes = uint64_t{64} << 20;

 private:
  bool Fill();

  File file_;
  uint64_t max_line_bytes_;
  std::vector<char> buffer_;
  size_t at_ = 0;
  size_t buffered_ = 0;
  uint64_t offset_ = 0;  // of the file, behind the buffer
  int64_t line_number_ = 0;
  bool too_long_ = false;
  bool whole_ = false;
};

// Appends lines so that the file never holds a part of one, but for a crash in the middle of a
// write: whoever opens it to go on cuts that off.
class LineFile {
 public:
  enum class Start {
    kNew,    // there must be no file, or an empty one
    kEmpty,  // what is there is thrown away
    kGoOn,   // after the last whole line
  };

  // Creates the file where there is none, and locks it against other processes. Throws Error(kIo /
  // kUnavailable), and Error(kInvalidArgument) when kNew finds something.
  LineFile(std::filesystem::path path, Start start, FileCalls& calls = FileCalls::System());
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // Writes the line and its newline. Throws Error(kIo) when they cannot be written, after what got
  // written of them was taken back; where it cannot be, nothing is appended behind it any more.
  void Append(std::string_view line);
  // What was appended is on the disk, and so is the file's name. Throws Error(kIo); from then on
  // always, because the kernel forgets what it could not write.
  void Sync();

  const std::filesystem::path& path() const { return path_; }
  // Whether the path still names the file that is open here.
  bool InPlace() const;
  uint64_t cut_bytes() const { return cut_bytes_; }  // of an unfinished line, by kGoOn

 private:
  void OpenAndLock();
  void Prepare(Start start);
  void CutUnfinishedLine();
  bool Truncate(uint64_t bytes);  // errno when it cannot be
  void SyncDirectory();
  [[noreturn]] void FailErrno(const char* what, int error) const;

  FileCalls& calls_;
  std::filesystem::path path_;
  int fd_ = -1;
  bool regular_ = false;  // no device
  bool name_is_synced_ = false;
  int append_error_ = 0;  // why part of a line is left at the end
  int sync_error_ = 0;
  uint64_t size_bytes_ = 0;
  uint64_t cut_bytes_ = 0;
  std::string line_;
};

}  // namespace moesaic
