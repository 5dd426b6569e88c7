#include "ckpt/job_pipes.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/opened_files.h"
#include "base/process_stat.h"
#include "base/unique_fd.h"

namespace rekindle::ckpt {
namespace {

bool HasRight(const std::string& link, mode_t right) {
  struct stat info;
  return ::lstat(link.c_str(), &info) == 0 && (info.st_mode & right) != 0;
}

// Does anybody but `job` have the end of `pipe` that has this right?
bool OthersHave(const std::string& pipe, mode_t right, const std::set<pid_t>& job) {
  for (const pid_t pid : ListProcesses()) {
    if (job.contains(pid)) continue;
    const auto descriptors = ForeignDescriptorsOf(pid);
    if (!descriptors.ok()) continue;  // it has ended, or may not be looked at
    for (const ForeignDescriptor& descriptor : *descriptors) {
      if (ReadLink(descriptor.link()).value_or("") == pipe && HasRight(descriptor.link(), right)) return true;
    }
  }
  return false;
}

}  // namespace

void JobPipes::Add(pid_t pid, int fd, const std::string& pipe) {
  const std::string link = absl::StrCat("/proc/", pid, "/fd/", fd);
  const auto note = [&](std::map<std::string, End>& ends) {
    End& end = ends[pipe];
    end.pids.insert(pid);
    if (end.fd < 0) {
      end.pid = pid;
      end.fd = fd;
    }
    if (fd == 1 || fd == 2) end.outputs.emplace(fd, pid);
  };
  if (HasRight(link, S_IRUSR)) note(readers_);
  if (HasRight(link, S_IWUSR)) note(writers_);
}

bool JobPipes::HasEnded(const End& end) const {
  // Its own: one that is opened anew would not know that there were writers.
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, end.pid, 0)));
  if (!process.valid()) return false;
  const UniqueFd own(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), end.fd, 0)));
  pollfd entry{own.get(), POLLIN, 0};
  return own.valid() && ::poll(&entry, 1, 0) > 0 && (entry.revents & POLLHUP) != 0;
}

bool JobPipes::IsInJobAlone(const StdioDescriptor& slot) const {
  const auto& others = slot.writable ? readers_ : writers_;
  const auto other = others.find(slot.path);
  if (other == others.end()) {
    const auto own = readers_.find(slot.path);
    return !slot.writable && own != readers_.end() && HasEnded(own->second);
  }
  std::set<pid_t> job = other->second.pids;
  for (const auto* ends : {&readers_, &writers_}) {
    for (const auto& [pipe, end] : *ends) job.insert(end.pids.begin(), end.pids.end());
  }
  return !OthersHave(slot.path, slot.writable ? S_IRUSR : S_IWUSR, job);
}

std::string JobPipes::OutputToOthers(int fd) const {
  for (const auto& [pipe, end] : writers_) {
    if (end.outputs.contains(fd) && !readers_.contains(pipe)) return pipe;
  }
  return "";
}

void JobPipes::Sort(std::vector<StdioDescriptor>* stdio) const {
  for (StdioDescriptor& slot : *stdio) {
    if (slot.kind != "pipe" || !IsInJobAlone(slot)) continue;
    slot.resource = slot.writable ? OutputToOthers(slot.fd) : "";
  }
}

}  // namespace rekindle::ckpt
