#include "daemon/supervised_hold.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/process_stat.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

std::string PathOf(const std::string& directory, absl::string_view name) {
  return absl::StrCat(directory, "/.", name, ".hold");
}

// What a holder has written of itself; empty where it has not done so yet, or just removed it.
struct Holder {
  std::string pid, host, machine;
};

Holder ReadHolder(const std::string& path) {
  const std::string content = ReadFile(path).value_or("");
  std::vector<std::string> words = absl::StrSplit(content, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  words.resize(3);
  return {words[0], words[1], words[2]};
}

// Its number says nothing here, and must not be killed here.
bool IsElsewhere(const Holder& holder) { return IsOtherMachine(holder.machine); }

// Does it live, as far as this can be seen here? A lock that nobody living is known to have may go with the
// next look.
bool IsKnownToLive(const Holder& holder) {
  pid_t pid = 0;
  if (IsElsewhere(holder)) return true;
  if (!absl::SimpleAtoi(holder.pid, &pid) || pid <= 0) return false;
  const absl::StatusOr<ProcessStat> process = ReadProcessStat(pid);
  return process.ok() ? !process->ending() : !absl::IsNotFound(process.status());
}

absl::Status HeldByAnother(const Holder& holder, absl::string_view name) {
  if (IsElsewhere(holder)) {
    return absl::AlreadyExistsError(absl::StrCat("the machine ", holder.host,
                                                 ", which shares this store, supervises a job named '", name,
                                                 "': end that job there, or choose another --name"));
  }
  if (holder.pid.empty()) {
    return absl::AlreadyExistsError(
        absl::StrCat("another process, which has not said which, supervises a job named '", name,
                     "': try again, and if that does not help, end that job, or choose another --name"));
  }
  const std::string program = ReadFile(absl::StrCat("/proc/", holder.pid, "/comm")).value_or("");
  if (absl::StartsWith(program, "rekindled")) {
    return absl::AlreadyExistsError(absl::StrCat("rekindled (PID ", holder.pid, ") supervises a job named '",
                                                 name, "': end that job with its 'rekindle stop ", name,
                                                 "', or choose another --name"));
  }
  return absl::AlreadyExistsError(
      absl::StrCat("the command with PID ", holder.pid, " supervises a job named '", name,
                   "': end that job with 'kill ", holder.pid, "', or choose another --name"));
}

constexpr absl::Duration kTryAgainIn = absl::Milliseconds(5);

}  // namespace

absl::StatusOr<SupervisedHold> SupervisedHold::Take(const std::string& directory, absl::string_view name) {
  // Somebody may be looking at it (CheckIsFree), or be about to remove it.
  const Deadline looks_take(5 * kTryAgainIn), fork_takes(kForkMayTake);
  const std::string path = PathOf(directory, name);
  for (;;) {
    absl::StatusOr<UniqueFd> file = LockFile(path, LOCK_EX | LOCK_NB);
    if (absl::IsUnavailable(file.status())) {
      const Holder holder = ReadHolder(path);
      if ((IsKnownToLive(holder) ? looks_take : fork_takes).passed()) return HeldByAnother(holder, name);
      absl::SleepFor(kTryAgainIn);
      continue;
    }
    RK_RETURN_IF_ERROR(file.status());
    struct stat info;
    if (::fstat(file->get(), &info) != 0) return ErrnoStatus(errno, path);
    if (info.st_nlink == 0) continue;
    const std::string self = absl::StrCat(::getpid(), " ", ThisHostName(), " ", ThisMachineId(), "\n");
    // For people alone: a full disk does not keep a job from being supervised.
    if (::ftruncate(file->get(), 0) == 0)
      WriteFully(file->get(), self.data(), self.size(), path).IgnoreError();
    return SupervisedHold(path, *std::move(file));
  }
}

absl::Status SupervisedHold::CheckIsFree(const std::string& directory, absl::string_view name) {
  const std::string path = PathOf(directory, name);
  if (absl::StrContains(name, '/')) return absl::OkStatus();  // no job's
  for (const Deadline fork_takes(kForkMayTake);; absl::SleepFor(kTryAgainIn)) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file.valid() || ::flock(file.get(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK)
      return absl::OkStatus();
    const Holder holder = ReadHolder(path);
    if (IsKnownToLive(holder) || fork_takes.passed()) return HeldByAnother(holder, name);
  }
}

void SupervisedHold::Remove() {
  ::unlink(path_.c_str());
  lock_.Reset();
}

}  // namespace rekindle::daemon
