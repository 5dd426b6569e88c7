// Whether the programs and libraries that an image maps are still the ones that it was taken with, looked at
// once and remembered: CRIU would map and read the head of each of them for every copy.
#pragma once

#include <sys/stat.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "criu/image_files.h"

namespace rekindle::restore {

// Immutable.
class FileIdentities {
 public:
  FileIdentities() = default;  // of no file
  // Compares build IDs, several files at once. FailedPrecondition: a file is another one now.
  static absl::StatusOr<FileIdentities> Check(const std::vector<criu::RegularFile>& files);

  // The paths whose build ID is what it was. Others (of 32 bits, say) are left to CRIU.
  const std::set<std::string>& known() const { return known_; }
  // Are the known ones the same files as when they were looked at, and has nobody written to them?
  bool Unchanged() const;

 private:
  struct Seen {
    std::string path;
    struct stat info;
  };
  std::vector<Seen> seen_;
  std::set<std::string> known_;
};

}  // namespace rekindle::restore
