#include "ckpt/readable_files.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/opened_files.h"

namespace rekindle::ckpt {

bool ReadableFiles::Has(const struct stat& file) {
  if (all_ || file.st_uid == uid_) return true;
  if (!looked_) LookAtProcesses();
  return open_.contains({file.st_dev, file.st_ino});
}

void ReadableFiles::LookAtProcesses() {
  looked_ = true;
  for (const pid_t pid : pids_) {
    struct stat info;
    const auto add = [&](const std::string& link) {
      if (::stat(link.c_str(), &info) == 0) open_.insert({info.st_dev, info.st_ino});
    };
    for (const ForeignDescriptor& descriptor :
         ForeignDescriptorsOf(pid).value_or(std::vector<ForeignDescriptor>())) {
      const absl::StatusOr<int> access = AccessToldBy(descriptor.fdinfo());
      if (access.ok() && (*access & R_OK) != 0) add(descriptor.link());
    }
    // A program's own text need not be readable to be run, and is mapped privately.
    const auto mappings = FileMappingsOf(pid, MappingsOf::kSharedFiles);
    for (const FileMapping& mapping : mappings.value_or(std::vector<FileMapping>())) add(mapping.link);
  }
}

}  // namespace rekindle::ckpt
