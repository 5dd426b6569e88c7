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
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

std::string PathOf(const std::string& directory, absl::string_view name) {
  return absl::StrCat(directory, "/.", name, ".hold");
}

absl::Status HeldByAnother(const std::string& path, absl::string_view name) {
  const std::string content = ReadFile(path).value_or("");
  const std::vector<absl::string_view> words =
      absl::StrSplit(content, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  const absl::string_view holder = words.empty() ? "" : words[0];
  // Its number says nothing here, and must not be killed here.
  if (words.size() > 2 && IsOtherMachine(words[2])) {
    return absl::AlreadyExistsError(absl::StrCat("the machine ", words[1],
                                                 ", which shares this store, supervises a job named '", name,
                                                 "': end that job there, or choose another --name"));
  }
  const std::string program = ReadFile(absl::StrCat("/proc/", holder, "/comm")).value_or("");
  if (absl::StartsWith(program, "rekindled")) {
    return absl::AlreadyExistsError(absl::StrCat("rekindled (PID ", holder, ") supervises a job named '",
                                                 name, "': end that job with its 'rekindle stop ", name,
                                                 "', or choose another --name"));
  }
  return absl::AlreadyExistsError(absl::StrCat("the command with PID ", holder, " supervises a job named '",
                                               name, "': end that job with 'kill ", holder,
                                               "', or choose another --name"));
}

}  // namespace

absl::StatusOr<SupervisedHold> SupervisedHold::Take(const std::string& directory, absl::string_view name) {
  // Somebody may be looking at it (CheckIsFree), or be about to remove it.
  constexpr int kTries = 5;
  constexpr absl::Duration kBetweenTries = absl::Milliseconds(5);
  const std::string path = PathOf(directory, name);
  for (int tries = 1;; ++tries) {
    absl::StatusOr<UniqueFd> file = LockFile(path, LOCK_EX | LOCK_NB);
    if (absl::IsUnavailable(file.status())) {
      if (tries == kTries) return HeldByAnother(path, name);
      absl::SleepFor(kBetweenTries);
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
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid() || ::flock(file.get(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK)
    return absl::OkStatus();
  return HeldByAnother(path, name);
}

void SupervisedHold::Remove() {
  ::unlink(path_.c_str());
  file_.Reset();
}

}  // namespace rekindle::daemon
