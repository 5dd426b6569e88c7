#include "ckpt/mounts_check.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/mountinfo.h"
#include "base/status.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

std::string MountsOf(absl::string_view process) {
  return ReadLink(absl::StrCat("/proc/", process, "/ns/mnt")).value_or("");
}

std::string MountinfoOf(absl::string_view process) {
  return ReadFile(absl::StrCat("/proc/", process, "/mountinfo")).value_or("");
}

constexpr char kMountCures[] =
    "Start it without such mounts (systemd: PrivateTmp=no and the like; in place of `ip netns exec NAME`: "
    "`nsenter --net=/run/netns/NAME`), or in a container with an init, which is restored in another one like "
    "it (docs/containers.md)";

// What is seen at each place: the last that was mounted there.
std::map<std::string, MountLine> TopMounts(absl::string_view mountinfo) {
  std::map<std::string, MountLine> top;
  for (MountLine& mount : ParseMountinfo(mountinfo)) top[mount.point] = mount;
  return top;
}

bool IsSameMount(const MountLine& a, const MountLine& b) {
  return a.device == b.device && a.root == b.root && a.here == b.here;
}

// What the process has open, mapped or works in below one of these places; empty: nothing.
std::string NameBelow(pid_t pid, const std::vector<std::string>& places) {
  if (places.empty()) return "";
  const std::string process = absl::StrCat("/proc/", pid);
  std::vector<std::string> names;
  for (const std::string& fd : ListDirectory(process + "/fd").value_or(std::vector<std::string>()))
    names.push_back(ReadLink(absl::StrCat(process, "/fd/", fd)).value_or(""));
  for (const char* own : {"/cwd", "/exe"}) names.push_back(ReadLink(process + own).value_or(""));
  for (absl::string_view line : absl::StrSplit(ReadFile(process + "/maps").value_or(""), '\n')) {
    const size_t name = line.find('/');
    if (name != absl::string_view::npos) names.emplace_back(line.substr(name));
  }
  for (const std::string& name : names) {
    for (const std::string& place : places) {
      if (name == place || absl::StartsWith(name, absl::StrCat(place, "/"))) return name;
    }
  }
  return "";
}

// Among the mounts that CRIU is to go into; where it goes into none, among ours.
absl::Status CheckStayed(const std::vector<pid_t>& pids, const criu::JobNamespaces& namespaces) {
  const std::string ours = MountsOf("self");
  for (const pid_t pid : pids) {
    if (namespaces.enters_mounts() && namespaces.IsAmongItsMounts(pid)) continue;
    const std::string its = MountsOf(absl::StrCat(pid));
    if (its.empty() || (!namespaces.enters_mounts() && its == ours)) continue;  // or it has gone
    return absl::AbortedError(absl::StrCat(
        "capturing process ", pids.front(), ": ",
        pid == pids.front() ? "it" : absl::StrCat("its process ", pid),
        " has gone into another mount namespace while it was being captured; it runs on, try again"));
  }
  return absl::OkStatus();
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

std::string MountOfTheirsAlone(absl::string_view theirs, absl::string_view ours) {
  const std::map<std::string, MountLine> here = TopMounts(ours);
  for (const auto& [point, mount] : TopMounts(theirs)) {
    const auto same = here.find(point);
    if (same == here.end() || !IsSameMount(mount, same->second))
      return absl::StrCat(point, " (", mount.type, ", ", mount.here, ")");
  }
  return "";
}

std::vector<std::string> MountsOfOursAlone(absl::string_view theirs, absl::string_view ours) {
  std::vector<std::string> points;
  const std::map<std::string, MountLine> there = TopMounts(theirs);
  for (const auto& [point, mount] : TopMounts(ours)) {
    if (!there.contains(point)) points.push_back(point);
  }
  return points;
}

std::string OwnMountsOf(pid_t root) {
  const std::string its = MountsOf(absl::StrCat(root));
  if (its.empty() || its == MountsOf("self")) return "";
  const std::map<std::string, MountLine> mounts = TopMounts(MountinfoOf(absl::StrCat(root)));
  const auto top = mounts.find("/");
  const std::string ties = top == mounts.end() ? "" : absl::StrJoin(top->second.ties, " ");
  if (absl::StrContains(ties, "shared:")) return v1::kSharedMounts;
  return absl::StrContains(ties, "master:") ? v1::kSlaveMounts : v1::kPrivateMounts;
}

absl::Status CheckMounts(const std::vector<pid_t>& pids, const criu::JobNamespaces& namespaces) {
  const pid_t root = pids.front();
  // What is read of a process is of where it is then.
  RK_RETURN_IF_ERROR(CheckStayed(pids, namespaces));
  if (!namespaces.enters_mounts()) return absl::OkStatus();
  const std::string its_root = absl::StrCat("/proc/", root, "/root/");
  const bool same_root = IsSameFile(its_root, "/");
  if (!same_root && IsSameFile(its_root, "/proc/1/root/")) {
    return absl::UnimplementedError(
        absl::StrCat("capturing process ", root,
                     ": it is the machine's own, and this Rekindle is in a container, from where all of the "
                     "machine's mounts would seem to belong to the job: use a Rekindle that runs on the "
                     "machine itself"));
  }
  const std::string theirs = MountinfoOf(absl::StrCat(root)), ours = MountinfoOf("self");
  const std::string outside = same_root ? "" : MountFromOutside(theirs);
  if (!outside.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("capturing process ", root,
                     ": it is in a container that shares the machine's PIDs (docker --pid=host, a "
                     "pod's hostPID: true) and not its mounts (",
                     outside,
                     " is from outside), which CRIU can't take an image "
                     "of: run the container with PIDs of its own"));
  }
  // Of one that has changed it (chroot) the list is what lies below, with other names.
  const std::string folder = ReadLink(absl::StrCat("/proc/", root, "/root")).value_or("");
  if (!same_root || folder != "/") {
    return absl::UnimplementedError(absl::StrCat(
        "capturing process ", root, ": it has a mount namespace of its own, and in it another root (", folder,
        "), where it could not come back. ", kMountCures));
  }
  const std::string alone = MountOfTheirsAlone(theirs, ours);
  if (!alone.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("capturing process ", root,
                     ": it has a mount namespace of its own, and in it something is mounted at ", alone,
                     " that is not mounted so here, where it could not come back. ", kMountCures));
  }
  const std::vector<std::string> covered = MountsOfOursAlone(theirs, ours);
  for (const pid_t pid : pids) {
    const std::string name = NameBelow(pid, covered);
    if (name.empty()) continue;
    return absl::UnimplementedError(absl::StrCat(
        "capturing process ", pid, ": it has a mount namespace of its own, and in it ", name,
        " open or mapped; here something is mounted over that, and it could not come back. ", kMountCures));
  }
  return CheckStayed(pids, namespaces);
}

}  // namespace rekindle::ckpt
