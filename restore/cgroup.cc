#include "restore/cgroup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/cgroup_memory.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/machine.h"
#include "base/process_stat.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

constexpr char kGroupsFolder[] = "rekindle";
constexpr const char* kControllers[] = {"memory", "cpu", "pids"};
constexpr int kPeriodMicroseconds = 100000;
// Of processes that were killed. What does not end in it waits for something in the kernel; then its groups
// stay until RemoveLeftovers finds them empty.
constexpr absl::Duration kEmptiesWithin = absl::Seconds(5);

// Where the controllers are mounted.
struct Hierarchies {
  std::string unified;                     // v2 with all of kControllers; empty: none such
  std::map<std::string, std::string> old;  // by controller
};

absl::StatusOr<Hierarchies> FindHierarchies(const std::string& mounts_file = "/proc/self/mounts") {
  RK_ASSIGN_OR_RETURN(std::string mounts, ReadFile(mounts_file));
  Hierarchies found;
  for (absl::string_view line : absl::StrSplit(mounts, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ');
    if (fields.size() < 4) continue;
    if (fields[2] == "cgroup2") {
      auto controllers = ReadFile(absl::StrCat(fields[1], "/cgroup.controllers"));
      if (!controllers.ok()) continue;
      const std::set<std::string> there = absl::StrSplit(absl::StripAsciiWhitespace(*controllers), ' ');
      if (std::all_of(std::begin(kControllers), std::end(kControllers),
                      [&](const char* c) { return there.count(c) > 0; })) {
        found.unified = fields[1];
      }
    } else if (fields[2] == "cgroup") {
      for (const std::string& option : std::vector<std::string>(absl::StrSplit(fields[3], ','))) {
        for (const char* controller : kControllers) {
          if (option == controller) found.old[controller] = fields[1];
        }
      }
    }
  }
  return found;
}

absl::Status WriteInto(const std::string& path, const std::string& text) {
  RK_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_WRONLY));
  if (::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()))
    return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("writing '", text, "' to ", path));
}

std::optional<uint64_t> NumberIn(const std::string& path, absl::string_view key) {
  auto text = ReadFile(path);
  if (!text.ok()) return std::nullopt;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    uint64_t number = 0;
    if (!key.empty() && !absl::ConsumePrefix(&line, absl::StrCat(std::string(key), " "))) continue;
    if (absl::SimpleAtoi(line, &number)) return number;
  }
  return std::nullopt;
}

absl::Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("making the cgroup ", path));
}

// Our PID alone names other processes in other PID namespaces.
std::string NewName() {
  static const uint64_t started = ReadProcessStat(::getpid()).value_or(ProcessStat()).start_ticks;
  static std::atomic<uint64_t> next{0};
  return absl::StrCat(::getpid(), "-", started, "-", next.fetch_add(1));
}

// Makes the folder and locks it: RemoveLeftovers takes one that nobody has locked for left over. Its maker's
// PID would not tell, being another in each PID namespace.
absl::StatusOr<UniqueFd> MakeLockedFolder(const std::string& path) {
  constexpr int kTries = 100;  // each lost to a RemoveLeftovers between the two steps
  for (int i = 0; i < kTries; ++i) {
    RK_RETURN_IF_ERROR(MakeFolder(path));
    UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid()) {
      if (errno == ENOENT) continue;
      return ErrnoStatus(errno, absl::StrCat("opening the cgroup ", path));
    }
    if (::flock(folder.get(), LOCK_SH | LOCK_NB) != 0) continue;
    if (IsFileAt(folder, path)) return folder;
  }
  return absl::AbortedError(absl::StrCat("making the cgroup ", path, ": it is removed again each time"));
}

// Of all controllers.
std::vector<std::string> GroupFoldersOf(const Hierarchies& hierarchies) {
  std::set<std::string> folders;
  if (!hierarchies.unified.empty()) folders.insert(absl::StrCat(hierarchies.unified, "/", kGroupsFolder));
  for (const auto& [controller, mount] : hierarchies.old)
    folders.insert(absl::StrCat(mount, "/", kGroupsFolder));
  return {folders.begin(), folders.end()};
}

// Nothing in this group, which may have a folder for each controller, forks any more: killed one by one they
// could for ever be fewer than what they start meanwhile.
void RefuseForks(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) WriteInto(absl::StrCat(folder, "/pids.max"), "0").IgnoreError();
}

// Returns whether there were any.
bool KillProcessesIn(const std::string& folder) {
  if (WriteInto(absl::StrCat(folder, "/cgroup.kill"), "1").ok()) {
    return !ReadFile(absl::StrCat(folder, "/cgroup.procs")).value_or("").empty();
  }
  const std::string processes = ReadFile(absl::StrCat(folder, "/cgroup.procs")).value_or("");
  for (absl::string_view line : absl::StrSplit(processes, '\n', absl::SkipEmpty())) {
    int pid = 0;
    if (absl::SimpleAtoi(line, &pid) && pid > 0) ::kill(pid, SIGKILL);
  }
  return !processes.empty();
}

// Where groups are made: in one folder for each controller, or one for all.
struct Parents {
  bool unified = false;
  std::vector<std::string> folders;
};

constexpr char kHandedDown[] = "+memory +cpu +pids";

// Of the unified hierarchy, to the groups in this folder, which lies at its root.
absl::Status HandDown(const std::string& folder) {
  for (const std::string& parent : {folder.substr(0, folder.rfind('/')), folder})
    RK_RETURN_IF_ERROR(WriteInto(absl::StrCat(parent, "/cgroup.subtree_control"), kHandedDown));
  return absl::OkStatus();
}

absl::Status HaveMore(uint64_t bytes, absl::string_view of, uint64_t limit) {
  return absl::ResourceExhaustedError(absl::StrCat("its processes have ", FormatBytes(bytes), " of ", of,
                                                   " before they run, more than its limit of ",
                                                   FormatBytes(limit), ": give it more with --memory"));
}

absl::StatusOr<Parents> MakeParents() {
  RK_ASSIGN_OR_RETURN(const Hierarchies hierarchies, FindHierarchies());
  Parents parents;
  if (!hierarchies.unified.empty()) {
    parents.unified = true;
    const std::string parent = absl::StrCat(hierarchies.unified, "/", kGroupsFolder);
    RK_RETURN_IF_ERROR(MakeFolder(parent));
    RK_RETURN_IF_ERROR(HandDown(parent));
    parents.folders.push_back(parent);
    return parents;
  }
  for (const char* controller : kControllers) {
    auto found = hierarchies.old.find(controller);
    if (found == hierarchies.old.end()) {
      return absl::UnimplementedError(
          absl::StrCat("limiting a sandbox: this machine has no cgroup controller '", controller, "'"));
    }
    const std::string parent = absl::StrCat(found->second, "/", kGroupsFolder);
    if (absl::c_linear_search(parents.folders, parent)) continue;
    RK_RETURN_IF_ERROR(MakeFolder(parent));
    parents.folders.push_back(parent);
  }
  return parents;
}

// Made once: to hand controllers down the kernel goes through all groups that there are, one at a time for
// the whole machine, and a container host has thousands of mounts to read. Thread-safe.
class KnownParents {
 public:
  static KnownParents& Get() {
    static KnownParents* known = new KnownParents();  // used until the end
    return *known;
  }
  absl::StatusOr<Parents> Find() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!parents_) {
      RK_ASSIGN_OR_RETURN(parents_, MakeParents());
    }
    return *parents_;
  }
  // Something of them has changed, as it seems: they are made again.
  void Forget() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    parents_.reset();
  }

 private:
  absl::Mutex mutex_;
  std::optional<Parents> parents_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

bool EndedByMemoryLimit(const ExitState& exit, uint64_t out_of_memory_kills) {
  return out_of_memory_kills > 0 && (exit.signal == SIGKILL || exit.code == 128 + SIGKILL);
}

absl::Status ExplainLimits(const absl::Status& failure, absl::string_view what, const CgroupLimits& limits,
                           const LimitEvents& events) {
  if (failure.ok()) return failure;
  std::vector<std::string> reasons;
  if (limits.memory_bytes > 0 && events.out_of_memory_kills > 0) {
    reasons.push_back(absl::StrCat("it needs more memory than its limit of ",
                                   FormatBytes(limits.memory_bytes), ": give it more with --memory"));
  }
  if (limits.processes > 0 && events.refused_processes > 0) {
    reasons.push_back(absl::StrCat("it needs more processes and threads than its limit of ", limits.processes,
                                   ": allow it more with --processes"));
  }
  if (reasons.empty()) return failure;
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": ", absl::StrJoin(reasons, "; "), ". What came of it: ", failure.message()));
}

absl::StatusOr<uint64_t> Cgroup::AvailableMemory(const std::string& mounts) {
  RK_ASSIGN_OR_RETURN(const Hierarchies hierarchies, FindHierarchies(mounts));
  const auto old = hierarchies.old.find("memory");
  // Without controllers they stay in our own groups.
  if (hierarchies.unified.empty() && old == hierarchies.old.end()) return OwnAvailableMemoryBytes();
  RK_ASSIGN_OR_RETURN(uint64_t available, AvailableMemoryBytes());
  for (const MemoryLimit& limit :
       MemoryLimitsAbove(hierarchies.unified.empty() ? old->second : hierarchies.unified)) {
    available = std::min(available, limit.free);
  }
  return available;
}

absl::StatusOr<std::string> Cgroup::Examine(const std::string& mounts) {
  RK_ASSIGN_OR_RETURN(Hierarchies hierarchies, FindHierarchies(mounts));
  auto writable = [](const std::string& folder) -> absl::Status {
    if (::access(folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(
        folder, " can't be written: run as root, and in a container mount its cgroups writable"));
  };
  if (!hierarchies.unified.empty()) {
    const std::string& root = hierarchies.unified;
    RK_RETURN_IF_ERROR(writable(root));
    // Below the machine's own root the kernel hands controllers down only from groups without processes.
    auto enabled = ReadFile(absl::StrCat(root, "/cgroup.subtree_control"));
    auto processes = ReadFile(absl::StrCat(root, "/cgroup.procs"));
    const std::set<std::string> there = absl::StrSplit(absl::StripAsciiWhitespace(enabled.value_or("")), ' ');
    const bool handed_down = std::all_of(std::begin(kControllers), std::end(kControllers),
                                         [&](const char* c) { return there.count(c) > 0; });
    if (!handed_down && PathExists(absl::StrCat(root, "/cgroup.type")) && !processes.value_or("").empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          root,
          " has processes in it, so its controllers can't be handed down: move them into a group below it, "
          "and write '+memory +cpu +pids' to its cgroup.subtree_control"));
    }
    return absl::StrCat("cgroup v2 at ", root);
  }
  std::vector<std::string> folders;
  for (const char* controller : kControllers) {
    auto found = hierarchies.old.find(controller);
    if (found == hierarchies.old.end()) {
      return absl::UnimplementedError(absl::StrCat(
          "no cgroup hierarchy has the controller '", controller,
          "': mount cgroup2 with it on /sys/fs/cgroup (the kernel's cgroup_disable= must not name it)"));
    }
    RK_RETURN_IF_ERROR(writable(found->second));
    folders.push_back(found->second);
  }
  return absl::StrCat("cgroup v1: ", absl::StrJoin(folders, ", "));
}

absl::StatusOr<std::unique_ptr<Cgroup>> Cgroup::Make() {
  RK_ASSIGN_OR_RETURN(const Parents known, KnownParents::Get().Find());
  auto group = MakeIn(known.folders, known.unified);
  if (group.ok()) return group;
  KnownParents::Get().Forget();
  RK_ASSIGN_OR_RETURN(const Parents again, KnownParents::Get().Find());
  return MakeIn(again.folders, again.unified);
}

absl::StatusOr<std::unique_ptr<Cgroup>> Cgroup::MakeIn(const std::vector<std::string>& parents,
                                                       bool unified) {
  std::unique_ptr<Cgroup> group(new Cgroup());
  group->unified_ = unified;
  const std::string name = NewName();
  for (const std::string& parent : parents) {
    const std::string folder = absl::StrCat(parent, "/", name);
    RK_ASSIGN_OR_RETURN(UniqueFd lock, MakeLockedFolder(folder));
    group->folders_.push_back(folder);
    group->locks_.push_back(std::move(lock));
    RK_ASSIGN_OR_RETURN(UniqueFd processes, OpenFile(absl::StrCat(folder, "/cgroup.procs"), O_WRONLY));
    group->processes_.push_back(std::move(processes));
  }
  const std::string peak =
      absl::StrCat(group->memory_folder(), group->unified_ ? "/memory.peak" : "/memory.max_usage_in_bytes");
  for (const int flags : {O_RDWR, O_RDONLY}) {
    if (!group->peak_.valid()) group->peak_.Reset(::open(peak.c_str(), flags | O_CLOEXEC));
  }
  return group;
}

Cgroup::~Cgroup() {
  processes_.clear();
  const Deadline deadline(kEmptiesWithin);
  bool forks = true;
  for (const std::string& folder : folders_) {
    while (::rmdir(folder.c_str()) != 0 && errno == EBUSY) {
      if (std::exchange(forks, false)) RefuseForks(folders_);
      KillProcessesIn(folder);
      if (deadline.passed()) break;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
}

void Cgroup::EndProcesses(const std::string& memory_folder, absl::Duration patience) {
  std::vector<std::string> folders = {memory_folder};
  const size_t name = memory_folder.rfind('/');
  if (auto hierarchies = FindHierarchies(); hierarchies.ok() && name != std::string::npos) {
    for (const std::string& parent : GroupFoldersOf(*hierarchies))
      folders.push_back(absl::StrCat(parent, memory_folder.substr(name)));
  }
  RefuseForks(folders);
  const Deadline deadline(patience);
  while (KillProcessesIn(memory_folder) && !deadline.passed()) absl::SleepFor(absl::Milliseconds(2));
}

absl::Status Cgroup::Set(const CgroupLimits& limits) {
  bool handed_down = false;
  auto set = [&](const char* in_unified, const char* in_old, const std::string& value) -> absl::Status {
    for (;;) {
      for (const std::string& folder : folders_) {
        const std::string path = absl::StrCat(folder, "/", unified_ ? in_unified : in_old);
        if (PathExists(path)) return WriteInto(path, value);
      }
      // Somebody has taken the controllers back: this group gets them with its parents.
      if (!unified_ || std::exchange(handed_down, true)) break;
      RK_RETURN_IF_ERROR(HandDown(folders_[0].substr(0, folders_[0].rfind('/'))));
    }
    return absl::UnimplementedError(
        absl::StrCat("limiting a sandbox: its cgroup has no ", unified_ ? in_unified : in_old));
  };
  if (limits.memory_bytes > 0) {
    limits_.memory_bytes = limits.memory_bytes;
    const std::string bytes =
        absl::StrCat(limits.memory_bytes - std::min(beside_, limits.memory_bytes / 4 * 3));
    // In the old hierarchies the other limit, of memory and swap together, must not be the smaller one.
    const std::string with_swap = absl::StrCat(memory_folder(), "/memory.memsw.limit_in_bytes");
    const bool counts_swap = !unified_ && PathExists(with_swap);
    absl::Status status = set("memory.max", "memory.limit_in_bytes", bytes);
    if (!status.ok() && counts_swap && WriteInto(with_swap, bytes).ok())
      status = set("memory.max", "memory.limit_in_bytes", bytes);
    // The unified hierarchy takes any limit, and kills.
    if (!status.ok() && MemoryInUse() > limits.memory_bytes)
      return HaveMore(MemoryInUse(), "memory", limits.memory_bytes);
    RK_RETURN_IF_ERROR(status);
    // Else what is beyond the limit is swapped out, on everybody's disk, and the limit ends nothing.
    const std::string swap = absl::StrCat(memory_folder(), "/memory.swap.max");
    if (unified_ && PathExists(swap)) RK_RETURN_IF_ERROR(WriteInto(swap, "0"));
    if (counts_swap) {
      status = WriteInto(with_swap, bytes);
      const uint64_t both =
          NumberIn(absl::StrCat(memory_folder(), "/memory.memsw.usage_in_bytes"), "").value_or(0);
      // What was beyond the other limit has just been swapped out.
      if (!status.ok() && both + beside_ > limits.memory_bytes)
        return HaveMore(both + beside_, "memory and swap", limits.memory_bytes);
      RK_RETURN_IF_ERROR(status);
    }
  }
  if (limits.cpus > 0) {
    limits_.cpus = limits.cpus;
    const int64_t quota = std::llround(limits.cpus * kPeriodMicroseconds);
    if (unified_) {
      RK_RETURN_IF_ERROR(set("cpu.max", "", absl::StrCat(quota, " ", kPeriodMicroseconds)));
    } else {
      RK_RETURN_IF_ERROR(set("", "cpu.cfs_period_us", absl::StrCat(kPeriodMicroseconds)));
      RK_RETURN_IF_ERROR(set("", "cpu.cfs_quota_us", absl::StrCat(quota)));
    }
  }
  if (limits.processes > 0) {
    limits_.processes = limits.processes;
    RK_RETURN_IF_ERROR(set("pids.max", "pids.max", absl::StrCat(limits.processes)));
  }
  return absl::OkStatus();
}

std::vector<int> Cgroup::processes() const {
  std::vector<int> descriptors;
  for (const UniqueFd& fd : processes_) descriptors.push_back(fd.get());
  return descriptors;
}

uint64_t Cgroup::MemoryInUse() const {
  for (const std::string& folder : folders_) {
    auto bytes = NumberIn(absl::StrCat(folder, unified_ ? "/memory.current" : "/memory.usage_in_bytes"), "");
    if (bytes) return *bytes + beside_;
  }
  return 0;
}

uint64_t Cgroup::PeakMemory() const {
  char text[32];
  const ssize_t n = ::pread(peak_.get(), text, sizeof text, 0);
  uint64_t bytes = 0;
  if (n <= 0 || !absl::SimpleAtoi(absl::string_view(text, static_cast<size_t>(n)), &bytes)) return 0;
  return bytes == 0 ? 0 : bytes + beside_;
}

void Cgroup::ResetPeak() const {
  // Any text does. Where it can't be done the peak goes on being that of the group's life.
  [[maybe_unused]] const ssize_t n = ::pwrite(peak_.get(), "0", 1, 0);
}

uint64_t Cgroup::CountIn(const char* in_unified, const char* in_old, absl::string_view key) const {
  for (const std::string& folder : folders_) {
    auto number = NumberIn(absl::StrCat(folder, "/", unified_ ? in_unified : in_old), key);
    if (number) return *number;
  }
  return 0;
}

uint64_t Cgroup::OutOfMemoryKills() const {
  return CountIn("memory.events", "memory.oom_control", "oom_kill");
}

LimitEvents Cgroup::Events() const {
  return {OutOfMemoryKills(), CountIn("pids.events", "pids.events", "max")};
}

void Cgroup::RemoveLeftovers() {
  auto hierarchies = FindHierarchies();
  if (!hierarchies.ok()) return;
  for (const std::string& parent : GroupFoldersOf(*hierarchies)) {
    auto names = ListDirectory(parent);
    for (const std::string& name : names.value_or(std::vector<std::string>())) {
      const std::string path = absl::StrCat(parent, "/", name);
      // Held until after the removal. One that still has processes can't be removed.
      UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (folder.valid() && ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) ::rmdir(path.c_str());
    }
  }
}

}  // namespace rekindle::restore
