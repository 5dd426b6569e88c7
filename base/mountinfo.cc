#include "base/mountinfo.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace rekindle {

std::vector<MountLine> ParseMountinfo(absl::string_view mountinfo) {
  std::vector<MountLine> mounts;
  for (absl::string_view line : absl::StrSplit(mountinfo, '\n')) {
    // "36 35 0:98 / /mnt rw,noatime master:1 - nfs4 server:/ rw,local_lock=none"
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    const std::vector<std::string> where = absl::StrSplit(halves.first, ' ');
    const std::vector<std::string> what = absl::StrSplit(halves.second, ' ');
    if (where.size() < 6 || what.size() < 3) continue;
    MountLine mount{where[2],
                    where[3],
                    where[4],
                    where[5],
                    std::vector<std::string>(where.begin() + 6, where.end()),
                    what[0],
                    absl::StrSplit(what[2], ',')};
    if (!absl::SimpleAtoi(where[0], &mount.id) || !absl::SimpleAtoi(where[1], &mount.parent)) continue;
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

}  // namespace rekindle
