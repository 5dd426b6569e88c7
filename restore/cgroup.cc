#include "restore/cgroup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

constexpr char kFolder[] = "rekindle";
constexpr const char* kControllers[] = {"memory", "cpu", "pids"};
constexpr int kPeriodMicroseconds = 100000;
constexpr absl::Duration kEmptiesWithin = absl::Seconds(10);

// Where the controllers are mounted.
struct Hierarchies {
  std::string unified;                     // v2 with all of kControllers; empty: none such
  std::map<std::string, std::string> old;  // by controller
};

absl::StatusOr<Hierarchies> FindHierarchies() {
  RK_ASSIGN_OR_RETURN(std::string mounts, ReadFile("/proc/self/mounts"));
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

std::string NewName() {
  static std::atomic<uint64_t> next{0};
  return absl::StrCat(::getpid(), "-", absl::ToUnixMillis(absl::Now()), "-", next.fetch_add(1));
}

void RemoveFolder(const std::string& folder) {
  const absl::Time deadline = absl::Now() + kEmptiesWithin;
  while (::rmdir(folder.c_str()) != 0 && errno == EBUSY && absl::Now() < deadline) {
    auto processes = ReadFile(absl::StrCat(folder, "/cgroup.procs"));
    if (processes.ok()) {
      for (absl::string_view line : absl::StrSplit(*processes, '\n', absl::SkipEmpty())) {
        int pid = 0;
        if (absl::SimpleAtoi(line, &pid) && pid > 0) ::kill(pid, SIGKILL);
      }
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cgroup>> Cgroup::Make() {
  RK_ASSIGN_OR_RETURN(Hierarchies hierarchies, FindHierarchies());
  std::unique_ptr<Cgroup> group(new Cgroup());
  const std::string name = NewName();
  std::vector<std::string> parents;
  if (!hierarchies.unified.empty()) {
    group->unified_ = true;
    const std::string parent = absl::StrCat(hierarchies.unified, "/", kFolder);
    RK_RETURN_IF_ERROR(MakeFolder(parent));
    for (const std::string& folder : {hierarchies.unified, parent}) {
      RK_RETURN_IF_ERROR(WriteInto(absl::StrCat(folder, "/cgroup.subtree_control"), "+memory +cpu +pids"));
    }
    parents.push_back(parent);
  } else {
    for (const char* controller : kControllers) {
      auto found = hierarchies.old.find(controller);
      if (found == hierarchies.old.end()) {
        return absl::UnimplementedError(
            absl::StrCat("limiting a sandbox: this machine has no cgroup controller '", controller, "'"));
      }
      parents.push_back(absl::StrCat(found->second, "/", kFolder));
      RK_RETURN_IF_ERROR(MakeFolder(parents.back()));
    }
  }
  for (const std::string& parent : parents) {
    const std::string folder = absl::StrCat(parent, "/", name);
    if (std::find(group->folders_.begin(), group->folders_.end(), folder) != group->folders_.end()) continue;
    RK_RETURN_IF_ERROR(MakeFolder(folder));
    group->folders_.push_back(folder);
    RK_ASSIGN_OR_RETURN(UniqueFd processes, OpenFile(absl::StrCat(folder, "/cgroup.procs"), O_WRONLY));
    group->processes_.push_back(std::move(processes));
  }
  return group;
}

Cgroup::~Cgroup() {
  processes_.clear();
  for (const std::string& folder : folders_) RemoveFolder(folder);
}

absl::Status Cgroup::Set(const CgroupLimits& limits) {
  auto set = [this](const char* in_unified, const char* in_old, const std::string& value) -> absl::Status {
    for (const std::string& folder : folders_) {
      const std::string path = absl::StrCat(folder, "/", unified_ ? in_unified : in_old);
      if (PathExists(path)) return WriteInto(path, value);
    }
    return absl::UnimplementedError(
        absl::StrCat("limiting a sandbox: its cgroup has no ", unified_ ? in_unified : in_old));
  };
  if (limits.memory_bytes > 0) {
    RK_RETURN_IF_ERROR(set("memory.max", "memory.limit_in_bytes", absl::StrCat(limits.memory_bytes)));
  }
  if (limits.cpus > 0) {
    const int64_t quota = std::llround(limits.cpus * kPeriodMicroseconds);
    if (unified_) {
      RK_RETURN_IF_ERROR(set("cpu.max", "", absl::StrCat(quota, " ", kPeriodMicroseconds)));
    } else {
      RK_RETURN_IF_ERROR(set("", "cpu.cfs_period_us", absl::StrCat(kPeriodMicroseconds)));
      RK_RETURN_IF_ERROR(set("", "cpu.cfs_quota_us", absl::StrCat(quota)));
    }
  }
  if (limits.processes > 0) RK_RETURN_IF_ERROR(set("pids.max", "pids.max", absl::StrCat(limits.processes)));
  return absl::OkStatus();
}

std::vector<int> Cgroup::processes() const {
  std::vector<int> descriptors;
  for (const UniqueFd& fd : processes_) descriptors.push_back(fd.get());
  return descriptors;
}

uint64_t Cgroup::OutOfMemoryKills() const {
  for (const std::string& folder : folders_) {
    auto kills =
        NumberIn(absl::StrCat(folder, unified_ ? "/memory.events" : "/memory.oom_control"), "oom_kill");
    if (kills) return *kills;
  }
  return 0;
}

uint64_t Cgroup::RefusedProcesses() const {
  for (const std::string& folder : folders_) {
    auto refused = NumberIn(absl::StrCat(folder, "/pids.events"), "max");
    if (refused) return *refused;
  }
  return 0;
}

void Cgroup::RemoveLeftovers() {
  auto hierarchies = FindHierarchies();
  if (!hierarchies.ok()) return;
  std::set<std::string> parents;
  if (!hierarchies->unified.empty()) parents.insert(absl::StrCat(hierarchies->unified, "/", kFolder));
  for (const auto& [controller, mount] : hierarchies->old) parents.insert(absl::StrCat(mount, "/", kFolder));
  for (const std::string& parent : parents) {
    auto names = ListDirectory(parent);
    for (const std::string& name : names.value_or(std::vector<std::string>())) {
      // Named after who made it; one that is in use can't be removed.
      int pid = 0;
      const std::string owner = name.substr(0, name.find('-'));
      if (absl::SimpleAtoi(owner, &pid) && ::kill(pid, 0) != 0 && errno == ESRCH) {
        ::rmdir(absl::StrCat(parent, "/", name).c_str());
      }
    }
  }
}

}  // namespace rekindle::restore
