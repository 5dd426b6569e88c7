#include "ckpt/mounts_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/mountinfo.h"
#include "base/opened_files.h"
#include "base/path_below.h"
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

// What is seen at each place.
class VisibleMounts {
 public:
  explicit VisibleMounts(const std::vector<MountLine>& mounts) {
    std::set<int> ids;
    for (const MountLine& mount : mounts) {
      ids.insert(mount.id);
      if (mount.id != mount.parent) below_[mount.parent][mount.point] = &mount;
    }
    for (auto& [parent, places] : below_) {
      if (!ids.contains(parent)) See(places);
    }
    for (const MountLine& mount : mounts) {
      if (mount.id == mount.parent) See({{mount.point, &mount}});
    }
  }
  const std::map<std::string, MountLine>& top() const { return top_; }

 private:
  using Places = std::map<std::string, const MountLine*>;

  // Those in one that is seen, but for where another of them hides the place.
  void See(const Places& places) {
    for (const auto& place : places) {
      const std::string& point = place.first;
      const MountLine* mount = place.second;
      const bool hidden = std::any_of(places.begin(), places.end(), [&](const auto& other) {
        return other.first != point && IsBelow(point, other.first);
      });
      if (hidden || !seen_.insert(mount->id).second) continue;
      const auto own = below_.find(mount->id);
      const bool is_covered =
          own != below_.end() && own->second.contains(point) && own->second.at(point) != mount;
      if (!is_covered) top_[point] = *mount;
      if (own != below_.end()) See(is_covered ? Places{{point, own->second.at(point)}} : own->second);
    }
  }

  std::map<int, Places> below_;  // by the id of what they are mounted in
  std::set<int> seen_;
  std::map<std::string, MountLine> top_;
};

std::map<std::string, MountLine> TopMounts(absl::string_view mountinfo) {
  return VisibleMounts(ParseMountinfo(mountinfo)).top();
}

bool IsSameMount(const MountLine& a, const MountLine& b) {
  return a.device == b.device && a.root == b.root && a.here == b.here;
}

// What the process has open, mapped or works in below one of these places; empty: nothing.
std::string NameBelow(pid_t pid, const std::vector<std::string>& places) {
  if (places.empty()) return "";
  const std::string process = absl::StrCat("/proc/", pid);
  std::vector<std::string> names;
  for (const ForeignDescriptor& descriptor :
       ForeignDescriptorsOf(pid).value_or(std::vector<ForeignDescriptor>()))
    names.push_back(ReadLink(descriptor.link()).value_or(""));
  for (const char* own : {"/cwd", "/exe"}) names.push_back(ReadLink(process + own).value_or(""));
  for (absl::string_view line : absl::StrSplit(ReadFile(process + "/maps").value_or(""), '\n')) {
    const size_t name = line.find('/');
    if (name != absl::string_view::npos) names.emplace_back(line.substr(name));
  }
  for (const std::string& name : names) {
    for (const std::string& place : places) {
      if (IsBelow(name, place)) return name;
    }
  }
  return "";
}

// Was it ours, too, once? Of memory, a part of another, or where something else of ours is it is one that was
// made for the job, which would miss it.
bool IsLeft(const MountLine& mount, const std::vector<MountLine>& ours) {
  bool is_a_point = false;
  for (const MountLine& here : ours) {
    if (here.point != mount.point) continue;
    if (IsSameMount(here, mount)) return mount.point != "/";  // with another over it by now
    is_a_point = true;
  }
  if (is_a_point || mount.root != "/" || mount.point == "/") return false;
  const bool is_memory = mount.type == "tmpfs" || mount.type == "ramfs" || mount.type == "overlay";
  return !is_memory || absl::StartsWith(mount.point, "/run/user/");
}

// "shared:1" of a mount that has such a tie.
std::string TieOf(const MountLine& mount, absl::string_view kind) {
  for (const std::string& tie : mount.ties) {
    if (absl::StartsWith(tie, kind)) return tie;
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

MountsOfTheirs MountsOfTheirsAlone(absl::string_view theirs, absl::string_view ours) {
  const std::vector<MountLine> all_here = ParseMountinfo(ours);
  const std::map<std::string, MountLine> here = VisibleMounts(all_here).top();
  MountsOfTheirs alone;
  for (const auto& [point, mount] : TopMounts(theirs)) {
    const auto same = here.find(point);
    if (same != here.end() && IsSameMount(mount, same->second)) continue;
    if (IsLeft(mount, all_here)) {
      alone.left.push_back(point);
    } else if (alone.made.empty()) {
      alone.made = absl::StrCat(point, " (", mount.type, ", ", mount.here, ")");
    }
  }
  return alone;
}

std::vector<std::string> MountsOfOursAlone(absl::string_view theirs, absl::string_view ours) {
  std::vector<std::string> points;
  const std::map<std::string, MountLine> there = TopMounts(theirs);
  for (const auto& [point, mount] : TopMounts(ours)) {
    if (!there.contains(point)) points.push_back(point);
  }
  return points;
}

std::string TieOfMounts(absl::string_view theirs, absl::string_view ours) {
  const std::map<std::string, MountLine> here = TopMounts(ours);
  std::set<std::string> kinds;
  for (const auto& [point, mount] : TopMounts(theirs)) {
    const auto same = here.find(point);
    if (same == here.end()) continue;
    const std::string group = TieOf(mount, "shared:"), group_here = TieOf(same->second, "shared:");
    if (!TieOf(mount, "master:").empty()) {
      kinds.insert(v1::kSlaveMounts);
    } else if (!group.empty() && group == group_here) {
      kinds.insert(v1::kSharedMounts);
    } else if (!group.empty() || !group_here.empty()) {
      kinds.insert(v1::kPrivateMounts);
    }  // or a copy of ours is as it is, whatever kind is asked for
  }
  return kinds.size() == 1 ? *kinds.begin() : v1::kPrivateMounts;
}

std::string OwnMountsOf(pid_t root) {
  const std::string its = MountsOf(absl::StrCat(root));
  if (its.empty() || its == MountsOf("self")) return "";
  return TieOfMounts(MountinfoOf(absl::StrCat(root)), MountinfoOf("self"));
}

namespace {

// A root can't be taken away from those that work in it.
std::string HowToUnmount(pid_t root, const std::string& point) {
  if (point == "/") return "";
  return absl::StrCat("; or, if it does not need it: `nsenter --target ", root, " --mount umount ", point,
                      "`");
}

}  // namespace

absl::Status CheckMounts(const std::vector<pid_t>& pids, const criu::JobNamespaces& namespaces,
                         std::vector<std::string>* warnings) {
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
  const MountsOfTheirs alone = MountsOfTheirsAlone(theirs, ours);
  // Of a network of its own CRIU has programs take the image, which must be those of the machine.
  std::string in_the_way = alone.made;
  if (in_the_way.empty() && !namespaces.has_our_network() && !alone.left.empty())
    in_the_way = alone.left.front();
  if (!in_the_way.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("capturing process ", root,
                     ": it has a mount namespace of its own, and in it something is mounted at ", in_the_way,
                     " that is not mounted so here, where it could not come back. ", kMountCures,
                     HowToUnmount(root, in_the_way.substr(0, in_the_way.find(" (")))));
  }
  for (const pid_t pid : pids) {
    const std::string name = NameBelow(pid, alone.left);
    if (name.empty()) continue;
    return absl::UnimplementedError(absl::StrCat("capturing process ", pid,
                                                 ": it has a mount namespace of its own, and in it ", name,
                                                 " open or mapped, which is on a file system that is not "
                                                 "mounted here any more, where it could not come "
                                                 "back: mount that again, or let the job close it"));
  }
  if (warnings != nullptr) {
    for (const std::string& point : alone.left) {
      warnings->push_back(absl::StrCat("in the job's mount namespace something is still mounted at ", point,
                                       " that is not mounted here any more; the job has nothing open there, "
                                       "and comes back without it (`nsenter "
                                       "--target ",
                                       root, " --mount umount ", point, "` does away with it)"));
    }
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
