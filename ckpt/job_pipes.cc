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

bool Has(pid_t pid, const std::string& pipe, mode_t right) {
  const auto descriptors = ForeignDescriptorsOf(pid);
  if (!descriptors.ok()) return false;  // it has ended, or may not be looked at
  return std::any_of(descriptors->begin(), descriptors->end(), [&](const ForeignDescriptor& descriptor) {
    return ReadLink(descriptor.link()).value_or("") == pipe && HasRight(descriptor.link(), right);
  });
}

// Also a child that the job has made since its processes were listed, as a shell does all the time.
bool DescendsFrom(pid_t pid, pid_t root) {
  constexpr int kMostGenerations = 1000;
  for (int generation = 0; pid > 1 && generation < kMostGenerations; ++generation) {
    if (pid == root) return true;
    const auto stat = ReadProcessStat(pid);
    // Whose it was can't be told any more, and it does nothing with the pipe either.
    if (!stat.ok()) return true;
    pid = stat->parent;
  }
  return false;
}

}  // namespace

void JobPipes::Add(pid_t pid, int fd, const std::string& pipe) {
  const std::string link = absl::StrCat("/proc/", pid, "/fd/", fd);
  const auto note = [&](std::map<std::string, End>& ends) {
    End& end = ends[pipe];
    if (end.fd < 0) {
      end.pid = pid;
      end.fd = fd;
    }
    if (fd == 1 || fd == 2) end.outputs.insert(fd);
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

bool JobPipes::JobHas(pid_t root, const std::string& pipe, mode_t right) const {
  if ((right == S_IRUSR ? readers_ : writers_).contains(pipe)) return true;
  // A child that it has just made may have it.
  const std::vector<pid_t> tree = ProcessTree(root);
  return std::any_of(tree.begin(), tree.end(), [&](pid_t pid) { return Has(pid, pipe, right); });
}

bool JobPipes::IsInJobAlone(pid_t root, const StdioDescriptor& slot) const {
  const mode_t other = slot.writable ? S_IRUSR : S_IWUSR;
  if (JobHas(root, slot.path, other)) {
    const std::vector<pid_t> all = ListProcesses();
    return std::none_of(all.begin(), all.end(),
                        [&](pid_t pid) { return Has(pid, slot.path, other) && !DescendsFrom(pid, root); });
  }
  const auto own = readers_.find(slot.path);
  return !slot.writable && own != readers_.end() && HasEnded(own->second);
}

std::string JobPipes::OutputToOthers(pid_t root, int fd) const {
  for (const auto& [pipe, end] : writers_) {
    if (end.outputs.contains(fd) && !JobHas(root, pipe, S_IRUSR)) return pipe;
  }
  return "";
}

void JobPipes::Sort(pid_t root, std::vector<StdioDescriptor>* stdio) const {
  for (StdioDescriptor& slot : *stdio) {
    if (slot.kind != "pipe" || !IsInJobAlone(root, slot)) continue;
    slot.resource = slot.writable ? OutputToOthers(root, slot.fd) : "";
  }
}

}  // namespace rekindle::ckpt
