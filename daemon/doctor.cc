#include "daemon/doctor.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/awaited_mount.h"
#include "base/cgroup_folders.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/local_locks.h"
#include "base/lock_error.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "criu/environment.h"
#include "dedup_store/store_folders.h"
#include "gpu_state/device_plan.h"
#include "restore/clone_environment.h"

namespace rekindle::daemon {
namespace {

// Below this a node's store is as good as full: one image of a middling job needs as much.
constexpr uint64_t kLittleSpaceBytes = 2ULL << 30;
// Less than this part of what it may take is little, too.
constexpr uint64_t kLittleShare = 20;

v1::Check MakeCheck(const std::string& name, v1::Check::Result result, const std::string& detail,
                    const std::string& cure = "") {
  v1::Check check;
  check.set_name(name);
  check.set_result(result);
  check.set_detail(detail);
  check.set_cure(cure);
  return check;
}

// The folder itself, or the nearest one above it that exists.
std::string NearestExisting(std::string path) {
  while (!PathExists(path) && path.size() > 1) path = path.substr(0, std::max<size_t>(1, path.rfind('/')));
  return path;
}

// The first of the store's folders that is a symbolic link; empty: none.
std::string LinkedFolder(const std::string& path) {
  for (const char* name : store::kFolders) {
    struct stat info;
    std::string folder = absl::StrCat(path, "/", name);
    if (::lstat(folder.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) return folder;
  }
  return "";
}

// The first of the store's folders that somebody else may write to than its owner; empty: none.
std::string WritableForOthers(const std::string& path) {
  std::vector<std::string> folders = {path};
  for (const char* name : store::kFolders) folders.push_back(absl::StrCat(path, "/", name));
  for (const std::string& folder : folders) {
    struct stat info;
    if (::stat(folder.c_str(), &info) != 0) continue;
    const bool by_group = (info.st_mode & S_IWGRP) != 0 && info.st_gid != info.st_uid;
    if (by_group || (info.st_mode & S_IWOTH) != 0) return folder;
  }
  return "";
}

// Whether the file system gives locks. OK where there is no such file, and where somebody has it locked.
absl::Status TryLock(const std::string& path) {
  absl::StatusOr<UniqueFd> file = OpenFile(path, O_RDWR);
  if (!file.ok() || ::flock(file->get(), LOCK_EX | LOCK_NB) == 0 || errno == EWOULDBLOCK || errno == EINTR)
    return absl::OkStatus();
  return LockError(errno, path);
}

}  // namespace

v1::Check CheckStore(const std::string& path, const absl::Status& opened) {
  std::string there = NearestExisting(path);
  struct statvfs space;
  if (::statvfs(there.c_str(), &space) != 0) {
    return MakeCheck("store", v1::Check::MISSING, std::string(ErrnoStatus(errno, path).message()),
                     "name a folder on a disk with --store");
  }
  if (::access(there.c_str(), W_OK) != 0) {
    return MakeCheck(
        "store", v1::Check::MISSING, absl::StrCat(there, " can't be written"),
        errno == EROFS ? store::kIsReadOnly : "run as root, or name another folder with --store");
  }
  if (!opened.ok() && !absl::IsNotFound(opened)) {
    return MakeCheck("store", v1::Check::MISSING, std::string(opened.message()),
                     absl::IsFailedPrecondition(opened)
                         ? "name another folder with --store"
                         : "name another folder with --store, or mend it: 'rekindle fsck --repair'");
  }
  if (!opened.ok() && !AwaitedMountPoint(path).empty()) {
    return MakeCheck("store", v1::Check::MISSING, std::string(opened.message()),
                     "mount it, or name another folder with --store");
  }
  if (absl::Status locks = TryLock(path + "/catalog/lock"); !locks.ok()) {
    return MakeCheck("store", v1::Check::MISSING, std::string(locks.message()),
                     "have its file system give locks, or name a folder on another one with --store");
  }
  uint64_t free_bytes = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
  std::string detail =
      absl::StrCat(path, opened.ok() ? "" : " (not made yet)", ", ", FormatBytes(free_bytes), " free");
  if (free_bytes < kLittleSpaceBytes) {
    return MakeCheck("store", v1::Check::WARNING, detail,
                     "free some: 'rekindle rm' and 'rekindle gc', or move the store to a larger disk");
  }
  const std::string open_to_others = WritableForOthers(path), link = LinkedFolder(path);
  if (!open_to_others.empty() || !link.empty()) {
    std::vector<std::string> cures;
    if (!open_to_others.empty()) {
      absl::StrAppend(&detail, "; others may write to ", open_to_others,
                      ": they can put other memory, and other programs, into what jobs come back as");
      cures.push_back(absl::StrCat("chmod go-w ", open_to_others));
    }
    if (!link.empty()) {
      absl::StrAppend(&detail, "; ", link,
                      " is a symbolic link, through which 'rekindle gc' and 'rekindle fsck --repair' remove "
                      "nothing: they refuse");
      cures.push_back(
          absl::StrCat("stop rekindled, then put the folder itself there: rm ", link,
                       ", and move what it led to there (mv), or mount it there (mkdir ", link,
                       "; mount --bind, and a line in /etc/fstab for the next start of the machine)"));
    }
    return MakeCheck("store", v1::Check::WARNING, detail, absl::StrJoin(cures, "; "));
  }
  if (const std::string option = LocalLocksOption(there); !option.empty()) {
    return MakeCheck(
        "store", v1::Check::WARNING,
        absl::StrCat(detail, "; its locks hold on this machine alone (mount option '", option, "')"),
        "mount it without that option before another machine uses the store: without locks one "
        "overwrites what the other writes");
  }
  return MakeCheck("store", v1::Check::OK, detail);
}

v1::Check CheckRoom(const std::string& path, const store::StoreStats& stats,
                    const store::StoreLimits& limits) {
  constexpr char kName[] = "store_room";
  const store::LimitChecks checks(limits, path, ::geteuid());
  const uint64_t used = stats.pack_bytes + stats.metadata_bytes;
  for (const absl::Status& full :
       {checks.Store(store::LimitChecks::Stage::kBegin, used, 0),
        checks.HighWater(store::LimitChecks::Stage::kBegin, stats.file_system, 0)}) {
    if (full.ok()) continue;
    return MakeCheck(kName, v1::Check::WARNING, absl::StrCat("every new image is refused: ", full.message()),
                     "free space: 'rekindle prune' and 'rekindle gc'");
  }
  // Not full: what there is up to each limit.
  uint64_t room = stats.file_system.free_bytes, all = stats.file_system.total_bytes;
  const auto limit = [&](uint64_t most, uint64_t taken) {
    if (most - std::min(most, taken) > room) return;
    room = most - std::min(most, taken);
    all = most;
  };
  if (limits.high_water_percent != 0) {
    limit(stats.file_system.total_bytes / 100 * limits.high_water_percent, stats.file_system.used_bytes);
  }
  if (limits.store_max_bytes != 0) limit(limits.store_max_bytes, used);
  const std::string detail =
      absl::StrCat(FormatBytes(room), " more until images are refused (`rekindle quota` shows the limits)");
  if (room >= kLittleSpaceBytes && room >= all / kLittleShare) return MakeCheck(kName, v1::Check::OK, detail);
  return MakeCheck(kName, v1::Check::WARNING, absl::StrCat("only ", detail),
                   "free space: 'rekindle prune' and 'rekindle gc', or move the limits: 'rekindle quota'");
}

// Whose images are hit is not for everybody; `rekindle stats` names them.
v1::Check CheckScrub(const absl::StatusOr<store::ScrubStatus>& status, absl::Time now) {
  constexpr char kName[] = "store_scrub";
  if (!status.ok()) {
    return MakeCheck(kName, v1::Check::WARNING, std::string(status.status().message()),
                     "rekindle fsck --read");
  }
  const store::ScrubState& state = status->state;
  std::string detail = "not all of it was read again yet";
  if (state.last_ended_unix_ns != 0) {
    const absl::Duration ago = now - absl::FromUnixNanos(state.last_ended_unix_ns);
    detail = absl::StrCat("all of it was read again ",
                          FormatSeconds(std::max(0.0, absl::ToDoubleSeconds(ago))), " ago");
  }
  if (state.damage.empty()) {
    return MakeCheck(kName, v1::Check::OK, absl::StrCat(detail, ", no damage is known"));
  }
  return MakeCheck(
      kName, v1::Check::WARNING,
      absl::StrCat("the disk has damaged ", state.damage.size(),
                   " places; images that can't be restored whole: ", status->damaged_images.size()),
      "look at the disk; `rekindle stats` names them, `rekindle fsck --read --repair` drops them");
}

v1::Check CheckCopies(const std::vector<v1::CopyState>& copies) {
  constexpr char kName[] = "copies";
  std::vector<absl::string_view> troubles;
  size_t followed = 0;
  for (const v1::CopyState& copy : copies) {
    if (!copy.trouble().empty()) troubles.push_back(copy.trouble());
    if (!copy.ended()) ++followed;
  }
  if (troubles.empty()) {
    return MakeCheck(kName, v1::Check::OK,
                     followed == 0 ? "no images are copied elsewhere as they come"
                                   : absl::StrCat("images go elsewhere as they come: ", followed,
                                                  followed == 1 ? " name and place" : " names and places"));
  }
  const size_t more = troubles.size() - 1;
  return MakeCheck(kName, v1::Check::WARNING,
                   absl::StrCat(troubles.front(), more == 0 ? "" : absl::StrCat("; and ", more, " more")),
                   "see to that place, and that 'rekindle copy NAME --follow --to PLACE' runs; where it is "
                   "not to go there any more, start and end it once");
}

v1::Check CheckWritableFolder(const std::string& name, const std::string& path) {
  std::string there = NearestExisting(path);
  if (::access(there.c_str(), W_OK | X_OK) == 0) return MakeCheck(name, v1::Check::OK, path);
  return MakeCheck(name, v1::Check::MISSING, absl::StrCat(there, " can't be written"),
                   errno == EROFS
                       ? store::kIsReadOnly
                       : absl::StrCat("run as root, or let user ", ::geteuid(), " write to ", there));
}

v1::Check CheckCgroupsOfOthers(const std::string& first, const std::string& mountinfo) {
  constexpr char kName[] = "cgroups_of_others";
  const std::vector<std::string> unreachable = UnreachableCgroups(first, "", mountinfo);
  // In a cgroup namespace below process 1's what is beside it has no names, also where all is mounted.
  if (unreachable.empty() && !absl::StrContains(first, ":/.."))
    return MakeCheck(kName, v1::Check::OK, "containers' cgroups can be reached");
  return MakeCheck(
      kName, v1::Check::WARNING,
      "the cgroups of other containers can't be reached: nothing is restored into them (--into), and which "
      "of them are paused is not seen",
      absl::StrCat("where Rekindle is in a container: give that ", kCgroupsForContainer, "; else mount it"));
}

v1::Check CheckHugePages(const std::string& setting_file) {
  constexpr char kName[] = "huge_pages";
  absl::StatusOr<std::string> setting = ReadFile(setting_file);
  if (!setting.ok()) {
    return MakeCheck(kName, v1::Check::WARNING,
                     "the kernel has no transparent huge pages: restores are slower",
                     "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE");
  }
  size_t open = setting->find('['), close = setting->find(']');
  std::string chosen = open != std::string::npos && close != std::string::npos
                           ? setting->substr(open + 1, close - open - 1)
                           : "?";
  if (chosen == "never") {
    return MakeCheck(kName, v1::Check::WARNING,
                     "transparent huge pages are off: freezes and restores are slower",
                     absl::StrCat("echo madvise > ", setting_file));
  }
  return MakeCheck(kName, v1::Check::OK, absl::StrCat("transparent huge pages: ", chosen));
}

// Of the jobs that were parked with another driver than that of now; its PID is 0 where there is none.
gpu::LedgerEntry FirstOfOtherDriver(gpu::JobMover& gpus) {
  std::vector<gpu::LedgerEntry> parked = gpus.Parked().value_or(std::vector<gpu::LedgerEntry>());
  for (gpu::LedgerEntry& entry : gpus.ParkedElsewhere()) parked.push_back(std::move(entry));
  for (gpu::LedgerEntry& entry : parked) {
    if (!gpus.DriverTrouble(entry).empty()) return std::move(entry);
  }
  return {};
}

v1::Check CheckGpus(gpu::JobMover& gpus, const std::string& proc_folder) {
  constexpr char kName[] = "gpus";
  auto info = gpus.Info();
  if (absl::IsNotFound(info.status())) {
    if (!PathExists(proc_folder)) return MakeCheck(kName, v1::Check::OK, "no NVIDIA GPU on this machine");
    return MakeCheck(
        kName, v1::Check::WARNING,
        absl::StrCat("the kernel's driver is there (", proc_folder, "), but ", info.status().message()),
        "install the driver's user-space libraries (libcuda1, libnvidia-ml1)");
  }
  if (absl::IsUnavailable(info.status())) {
    return MakeCheck(kName, v1::Check::WARNING, std::string(info.status().message()),
                     "start rekindle-gpu-helper by hand: it says what it lacks, such as a newer libc (2.34); "
                     "if it does not, see whether nvidia-smi works");
  }
  if (absl::IsFailedPrecondition(info.status())) {
    return MakeCheck(kName, v1::Check::WARNING, std::string(info.status().message()),
                     "install the libraries of the kernel module's version again, or, once no job is parked, "
                     "load the module of the libraries' (or restart the machine)");
  }
  if (!info.ok()) {
    return MakeCheck(kName, v1::Check::WARNING, std::string(info.status().message()),
                     "install NVIDIA driver 570 or newer; without it jobs that use a GPU can't be captured");
  }
  const std::string driver =
      absl::StrCat("driver ", info->driver.empty() ? "?" : info->driver, ", CUDA ", info->cuda_version / 1000,
                   ".", info->cuda_version % 1000 / 10, ", checkpoints by ", info->means);
  if (const gpu::LedgerEntry stuck = FirstOfOtherDriver(gpus); stuck.pid != 0) {
    return MakeCheck(kName, v1::Check::WARNING, absl::StrCat(driver, "; ", gpus.DriverTrouble(stuck)),
                     absl::StrCat("install driver ", stuck.driver,
                                  " again for as long as jobs are parked that were parked with it "
                                  "(`rekindle gpu ps` lists them)"));
  }
  auto view = gpus.Devices();
  if (!view.ok()) {
    return MakeCheck(kName, v1::Check::WARNING,
                     absl::StrCat(driver, "; which GPUs there are is not known: ", view.status().message()),
                     "install libnvidia-ml1: it tells how much memory a GPU has free");
  }
  if (const std::optional<gpu::LostGpus> lost = gpu::FindLost(*view))
    return MakeCheck(kName, v1::Check::WARNING, absl::StrCat(driver, "; ", lost->what), lost->cure);
  for (const gpu::GpuDevice& device : view->devices) {
    if (!device.mig) continue;
    return MakeCheck(kName, v1::Check::WARNING,
                     absl::StrCat(driver, "; GPU ", device.uuid, " is split into MIG instances"),
                     "the driver takes no checkpoints of jobs on MIG instances: nvidia-smi -mig 0");
  }
  std::string detail = absl::StrCat(driver, ", ", view->devices.size(), " GPU(s)");
  for (const gpu::GpuDevice& device : view->devices) {
    if (device.trouble.empty()) continue;
    absl::StrAppend(&detail, "; of ", device.uuid, " not everything is told: ", device.trouble);
  }
  return MakeCheck(kName, v1::Check::OK, detail);
}

std::vector<v1::Check> ExamineMachine(Node& node) {
  std::vector<v1::Check> checks;
  std::vector<criu::EnvironmentCheck> found = criu::CheckEnvironment(node.Criu());
  for (criu::EnvironmentCheck& check : restore::CheckCloneEnvironment()) found.push_back(std::move(check));
  for (const criu::EnvironmentCheck& check : found) {
    v1::Check::Result result = check.ok         ? v1::Check::OK
                               : check.required ? v1::Check::MISSING
                                                : v1::Check::WARNING;
    checks.push_back(MakeCheck(check.name, result, check.detail, check.ok ? "" : check.cure));
  }
  const auto store = node.OpenStore(Node::Access::kRead);
  checks.push_back(CheckStore(node.options().store, store.status()));
  if (store.ok()) {
    const absl::StatusOr<store::StoreStats> stats = (*store)->Stats();
    const absl::StatusOr<store::StoreLimits> limits = (*store)->Limits();
    if (stats.ok() && limits.ok()) checks.push_back(CheckRoom((*store)->path(), *stats, *limits));
    if (!limits.ok()) {
      checks.push_back(MakeCheck("store_room", v1::Check::WARNING, std::string(limits.status().message()),
                                 "set them anew: 'rekindle quota'"));
    }
  }
  if (store.ok()) checks.push_back(CheckScrub(store::ReadScrubStatus(**store), absl::Now()));
  const absl::Status runtime = node.CheckRuntimeDirectory();
  checks.push_back(runtime.ok()
                       ? CheckWritableFolder("runtime_directory", node.options().runtime_directory)
                       : MakeCheck("runtime_directory", v1::Check::MISSING, std::string(runtime.message())));
  checks.push_back(CheckWritableFolder("log_directory", node.options().log_directory));
  checks.push_back(CheckCgroupsOfOthers(ReadFile("/proc/1/cgroup").value_or(""),
                                        ReadFile("/proc/self/mountinfo").value_or("")));
  checks.push_back(CheckHugePages("/sys/kernel/mm/transparent_hugepage/enabled"));
  checks.push_back(CheckGpus(node.gpus(), "/proc/driver/nvidia"));
  return checks;
}

}  // namespace rekindle::daemon
