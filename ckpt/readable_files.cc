#include "ckpt/readable_files.h"

#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
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
    const std::string process = absl::StrCat("/proc/", pid);
    struct stat info;
    const auto add = [&](const std::string& link) {
      if (::stat(link.c_str(), &info) == 0) open_.insert({info.st_dev, info.st_ino});
    };
    for (const std::string& fd : ListDirectory(process + "/fd").value_or(std::vector<std::string>())) {
      const absl::StatusOr<int> access = AccessToldBy(absl::StrCat(process, "/fdinfo/", fd));
      if (access.ok() && (*access & R_OK) != 0) add(absl::StrCat(process, "/fd/", fd));
    }
    // "7f00-8000 rw-s 00000000 00:1b 7  /dev/shm/x". A program's own text need not be readable to be run, and
    // is mapped privately.
    for (absl::string_view line : absl::StrSplit(ReadFile(process + "/maps").value_or(""), '\n')) {
      const std::pair<absl::string_view, absl::string_view> range_and_rest =
          absl::StrSplit(line, absl::MaxSplits(' ', 1));
      if (range_and_rest.second.size() < 4 || range_and_rest.second[3] != 's') continue;
      // The kernel pads the numbers here, but not in the links' names.
      const std::vector<absl::string_view> range = absl::StrSplit(range_and_rest.first, '-');
      uint64_t start = 0, end = 0;
      if (range.size() != 2 || !absl::SimpleHexAtoi(range[0], &start) ||
          !absl::SimpleHexAtoi(range[1], &end)) {
        continue;
      }
      add(absl::StrCat(process, "/map_files/", absl::Hex(start), "-", absl::Hex(end)));
    }
  }
}

}  // namespace rekindle::ckpt
