// Whether the programs and libraries that an image maps are still the ones that it was taken with, looked at
// once and remembered: CRIU would map and read the head of each of them for every copy.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "criu/image_files.h"

namespace rekindle::restore {

// How a refusal begins for a program or library that was upgraded since the image; the path is before it.
inline constexpr char kAnotherBuild[] = " is another build than the one that the job has mapped";

// By which a file is known to be the same, and not written to since.
struct FileIdentity {
  uint64_t device = 0, inode = 0, size = 0;
  int64_t modified_ns = 0, changed_ns = 0;
  static FileIdentity Of(const struct stat& info);
  friend bool operator==(const FileIdentity& a, const FileIdentity& b) = default;
};

// Immutable.
class FileIdentities {
 public:
  FileIdentities() = default;  // of no file
  // Compares build IDs, several files at once. FailedPrecondition: a file is another one now. `checked`:
  // files of the same image whose build ID was right before, as Lasting() gave them: those that are still the
  // same are not opened.
  using Checked = std::map<std::string, FileIdentity>;  // by path
  static absl::StatusOr<FileIdentities> Check(const std::vector<criu::RegularFile>& files,
                                              const Checked& checked = {});

  // The paths whose build ID is what it was. Others (of 32 bits, say) are left to CRIU.
  const std::set<std::string>& known() const { return known_; }
  // Are the known ones the same files as when they were looked at, and has nobody written to them?
  bool Unchanged() const;
  // The known ones, for later checks, also by other processes. Left out is what had been changed just before:
  // another change at the same moment could not be told.
  Checked Lasting() const;
  // How many files Check has opened.
  size_t opened() const { return opened_; }

 private:
  struct Seen {
    std::string path;
    FileIdentity identity;
    bool lasting = false;
  };
  std::vector<Seen> seen_;
  std::set<std::string> known_;
  size_t opened_ = 0;
};

}  // namespace rekindle::restore
