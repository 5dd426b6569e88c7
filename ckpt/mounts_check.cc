#include "ckpt/mounts_check.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/mountinfo.h"

namespace rekindle::ckpt {
namespace {

std::string MountsOf(absl::string_view process) {
  return ReadLink(absl::StrCat("/proc/", process, "/ns/mnt")).value_or("");
}

}  // namespace

std::string MountFromOutside(absl::string_view mountinfo) {
  const std::vector<MountLine> mounts = ParseMountinfo(mountinfo);
  for (const MountLine& mount : mounts) {
    if (mount.root == "/" || mount.point == "/") continue;
    const bool whole_is_there = std::any_of(mounts.begin(), mounts.end(), [&](const MountLine& other) {
      return other.root == "/" && other.device == mount.device;
    });
    if (!whole_is_there) return mount.point;
  }
  return "";
}

absl::Status CheckMounts(pid_t root) {
  const std::string its = MountsOf(absl::StrCat(root));
  if (its.empty() || its == MountsOf("self")) return absl::OkStatus();
  const std::string its_root = absl::StrCat("/proc/", root, "/root/");
  if (IsSameFile(its_root, "/")) return absl::OkStatus();
  if (IsSameFile(its_root, "/proc/1/root/")) {
    return absl::UnimplementedError(
        absl::StrCat("capturing process ", root,
                     ": it is the machine's own, and this Rekindle is in a container, from where all of the "
                     "machine's mounts would seem to belong to the job: use a Rekindle that runs on the "
                     "machine itself"));
  }
  const auto mountinfo = ReadFile(absl::StrCat("/proc/", root, "/mountinfo"));
  const std::string outside = mountinfo.ok() ? MountFromOutside(*mountinfo) : "";
  if (outside.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("capturing process ", root,
                   ": it is in a container that shares the machine's PIDs (docker --pid=host, a "
                   "pod's hostPID: true) and not its mounts (",
                   outside,
                   " is from outside), which CRIU can't take an image "
                   "of: run the container with PIDs of its own"));
}

}  // namespace rekindle::ckpt
