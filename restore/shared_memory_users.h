// Which processes of this machine use shared memory that has a name (/dev/shm).
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <map>
#include <utility>

namespace rekindle::restore {

// As it is when first asked. Not thread-safe.
class SharedMemoryUsers {
 public:
  // Any of those that have `file` mapped; 0: nobody does.
  pid_t UserOf(const struct stat& file);

 private:
  void ReadAll();
  void Read(pid_t pid);

  bool read_ = false;
  std::map<std::pair<dev_t, ino_t>, pid_t> users_;
};

}  // namespace rekindle::restore
