// A descriptor that another part of the program owns and closes, and whose number the next one gets: is it
// still the one that it was?
#pragma once

#include <sys/stat.h>

#include <optional>

namespace rekindle {

// Thread-safe. A socket's inode is its own as long as it is open.
class OpenDescriptor {
 public:
  // Nothing where it is not open; errno says why.
  static std::optional<OpenDescriptor> Of(int number) {
    struct stat info;
    if (::fstat(number, &info) != 0) return std::nullopt;
    return OpenDescriptor(number, info.st_dev, info.st_ino);
  }

  int number() const { return number_; }
  bool IsStillOpen() const {
    struct stat info;
    return ::fstat(number_, &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
  }

 private:
  OpenDescriptor(int number, dev_t device, ino_t inode) : number_(number), device_(device), inode_(inode) {}

  int number_;
  dev_t device_;
  ino_t inode_;
};

}  // namespace rekindle
