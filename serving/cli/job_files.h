// JobFiles: which files a command reads and writes, so that it does not write one that it reads, or
// one twice.
//
// Files are compared by what they are (device and inode), so that links hide nothing; one that does
// not exist yet by the directory that it will be in. Devices and pipes may be named as often as you
// like. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace moesaic {

class JobFiles {
 public:
  // `what` names the file in messages: "-i", "--report".
  void Reads(const std::string& what, const std::filesystem::path& file);
  void Writes(const std::string& what, const std::filesystem::path& file);
  // Written as FILE.tmp, which is then renamed.
  void Replaces(const std::string& what, const std::filesystem::path& file);
  // Of the files that lie directly in the directory, those whose names are `of_them`.
  void ReadsAllIn(const std::string& what, const std::filesystem::path& directory,
                  const std::function<bool(const std::string& name)>& of_them);

  // Throws Error(kInvalidArgument) when a file that is written is read or written as another one,
  // too.
  void Check() const;

 private:
  struct Use {
    std::string what;
    std::filesystem::path file;
    bool writes = false;
  };

  void Add(Use use);

  std::map<std::string, std::vector<Use>> uses_;  // by what tells the files apart
};

}  // namespace moesaic
