#include "daemon/supervised_hold.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
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
#include "base/pid_namespace.h"
#include "base/process_stat.h"
#include "base/start_ticks.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

std::string PathOf(const std::string& directory, absl::string_view name) {
  return absl::StrCat(directory, "/.", name, ".hold");
}

// What a holder has written of itself; empty where it has not done so yet, or just removed it. The last two
// are of no holder of an older version.
struct Holder {
  std::string pid, host, machine, pid_namespace, start_ticks;
};

Holder ReadHolder(const std::string& path) {
  const std::string content = ReadFile(path).value_or("");
  // The machine's id may be empty.
  std::vector<std::string> words = absl::StrSplit(content, absl::ByAnyChar(" \n"));
  words.resize(5);
  return {words[0], words[1], words[2], words[3], words[4]};
}

std::string DescriptionOfUs() {
  const absl::StatusOr<ProcessStat> us = ReadProcessStat(::getpid());
  return absl::StrCat(::getpid(), " ", ThisHostName(), " ", ThisMachineId(), " ", OurPidNamespace(), " ",
                      us.ok() ? us->start_ticks : 0, "\n");
}

// What can be seen of it from here. Only of one that is seen alive its number says anything.
enum class Sight {
  kAlive,
  kOtherMachine,    // nobody sees from here whether it lives
  kOtherContainer,  // nor there: it has other numbers for processes
  kNone,            // it has not said who it is, or has ended: the lock may go with the next look
};

Sight Look(const Holder& holder) {
  if (IsOtherMachine(holder.machine)) return Sight::kOtherMachine;
  pid_t pid = 0;
  if (!absl::SimpleAtoi(holder.pid, &pid) || pid <= 0) return Sight::kNone;
  uint64_t pid_namespace = 0, start_ticks = 0;
  const uint64_t ours = OurPidNamespace();
  if (ours != 0 && absl::SimpleAtoi(holder.pid_namespace, &pid_namespace) && pid_namespace != 0 &&
      pid_namespace != ours) {
    return Sight::kOtherContainer;
  }
  const absl::StatusOr<ProcessStat> process = ReadProcessStat(pid);
  if (!process.ok()) return absl::IsNotFound(process.status()) ? Sight::kNone : Sight::kAlive;
  const bool another = absl::SimpleAtoi(holder.start_ticks, &start_ticks) && start_ticks != 0 &&
                       !IsSameStart(start_ticks, process->start_ticks);
  return process->ending() || another ? Sight::kNone : Sight::kAlive;
}

absl::Status HeldByAnother(const Holder& holder, Sight sight, absl::string_view name) {
  switch (sight) {
    case Sight::kOtherMachine:
      return absl::AlreadyExistsError(absl::StrCat("the machine ", holder.host,
                                                   ", which shares this store, supervises a job named '",
                                                   name, "': end that job there, or choose another --name"));
    case Sight::kOtherContainer:
      return absl::AlreadyExistsError(absl::StrCat("a process in another container (host name ", holder.host,
                                                   "), which shares this store, supervises a job named '",
                                                   name, "': end that job there, or choose another --name"));
    case Sight::kNone:
      return absl::AlreadyExistsError(
          absl::StrCat("another process, of which nothing is known here, supervises a job named '", name,
                       "': try again, and if that does not help, end that job, or choose another --name"));
    case Sight::kAlive:
      break;
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
      const Sight sight = Look(holder);
      // One in another container may have ended as well.
      const bool may_go = sight == Sight::kNone || sight == Sight::kOtherContainer;
      if ((may_go ? fork_takes : looks_take).passed()) return HeldByAnother(holder, sight, name);
      absl::SleepFor(kTryAgainIn);
      continue;
    }
    RK_RETURN_IF_ERROR(file.status());
    struct stat info;
    if (::fstat(file->get(), &info) != 0) return ErrnoStatus(errno, path);
    if (info.st_nlink == 0) continue;
    const std::string self = DescriptionOfUs();
    // A full disk does not keep a job from being supervised: who waits is then told of nobody.
    if (::ftruncate(file->get(), 0) == 0)
      WriteFully(file->get(), self.data(), self.size(), path).IgnoreError();
    return SupervisedHold(path, *std::move(file));
  }
}

absl::Status SupervisedHold::CheckIsFree(const std::string& directory, absl::string_view name) {
  const std::string path = PathOf(directory, name);
  if (absl::StrContains(name, '/')) return absl::OkStatus();  // no job's
  for (const Deadline fork_takes(kForkMayTake);; absl::SleepFor(kTryAgainIn)) {
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file.valid() && ::flock(file.get(), LOCK_SH | LOCK_NB) == 0) {
      const HeldLock looked(std::move(file));
      return absl::OkStatus();
    }
    if (!file.valid() || errno != EWOULDBLOCK) return absl::OkStatus();
    const Holder holder = ReadHolder(path);
    const Sight sight = Look(holder);
    if (sight != Sight::kNone || fork_takes.passed()) return HeldByAnother(holder, sight, name);
  }
}

void SupervisedHold::Remove() {
  ::unlink(path_.c_str());
  lock_.Reset();
}

}  // namespace rekindle::daemon
