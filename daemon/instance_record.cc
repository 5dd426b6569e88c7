#include "daemon/instance_record.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/stable_hash.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "daemon/job_members.h"

namespace rekindle::daemon {
namespace {

constexpr absl::Duration kEndsWithin = absl::Seconds(5);
constexpr char kRecordEnding[] = ".pid";

// With the PID it names one process; empty when there is none.
std::string StartTimeOf(pid_t pid) {
  auto stat = ReadProcessStat(pid);
  return stat.ok() ? absl::StrCat(stat->start_ticks) : "";
}

}  // namespace

std::string InstanceRecords(const std::string& runtime_directory, const std::string& store) {
  return absl::StrCat(runtime_directory, "/f/", absl::Hex(StableHash(store)));
}

InstanceRecord::InstanceRecord(std::string path, pid_t pid, const restore::Cgroup* group,
                               const std::string& mark)
    : path_(std::move(path)) {
  const std::string text = absl::StrCat(pid, "\n", StartTimeOf(pid), "\n",
                                        group != nullptr ? group->memory_folder() : "", "\n", mark, "\n");
  // Not forced to the disk: after a crash of the machine there is no instance either.
  auto file = OpenFile(path_, O_WRONLY | O_CREAT | O_TRUNC);
  absl::Status written = file.ok() ? WriteFully(file->get(), text.data(), text.size(), path_) : file.status();
  if (!written.ok()) Log(LogLevel::kWarning, written.message());
}

InstanceRecord::~InstanceRecord() { ::unlink(path_.c_str()); }

void EndLeftInstances(const std::string& directory) {
  auto names = ListDirectory(directory);
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    auto record = absl::EndsWith(name, kRecordEnding) ? ReadFile(absl::StrCat(directory, "/", name))
                                                      : absl::StatusOr<std::string>("");
    if (!record.ok()) continue;
    const std::vector<std::string> lines = absl::StrSplit(*record, '\n');
    pid_t pid = 0;
    if (lines.size() < 3 || !absl::SimpleAtoi(lines[0], &pid) || pid <= 0) continue;
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    // Looked at after it was opened, so that its number can't have become another's.
    const bool there = process.valid() && StartTimeOf(pid) == lines[1];
    // Its session has its number only as long as it is there itself.
    if (lines.size() > 3 && !lines[3].empty()) KillJobMembers({there ? pid : 0, lines[3], std::nullopt, {}});
    if (there) SendSignal(process.get(), SIGKILL);
    if (!lines[2].empty()) restore::Cgroup::EndProcesses(lines[2], kEndsWithin);
  }
  restore::Cgroup::RemoveLeftovers();
}

}  // namespace rekindle::daemon
