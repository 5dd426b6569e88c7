// Which files the processes of a frozen job can read: only those may come into an image that is not root's.
//
// A file is found by its name, and whoever owns the job can put another in its place while the job stands
// still. So what is read counts, not what it was called.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <set>
#include <utility>
#include <vector>

namespace rekindle::ckpt {

class ReadableFiles {
 public:
  // All.
  ReadableFiles() = default;
  // Those that belong to `uid`, and those that one of `pids` has open for reading or shares through a
  // mapping. The processes are looked at when first needed, and have to stand still by then.
  ReadableFiles(uid_t uid, std::vector<pid_t> pids) : all_(false), uid_(uid), pids_(std::move(pids)) {}

  bool Has(const struct stat& file);

 private:
  void LookAtProcesses();

  bool all_ = true, looked_ = false;
  uid_t uid_ = 0;
  std::vector<pid_t> pids_;
  std::set<std::pair<dev_t, ino_t>> open_;
};

}  // namespace rekindle::ckpt
