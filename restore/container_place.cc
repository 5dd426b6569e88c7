#include "restore/container_place.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

// Anybody else would die of the signal.
bool WantsToKnow(pid_t process) {
  const auto name = ReadFile(absl::StrCat("/proc/", process, "/comm"));
  const auto status = ReadFile(absl::StrCat("/proc/", process, "/status"));
  uint64_t blocked = 0;
  return name.ok() && absl::StripSuffix(*name, "\n") == kPlaceName && status.ok() &&
         absl::SimpleHexAtoi(StatusField(*status, "SigBlk"), &blocked) &&
         (blocked >> (kPlaceIsTaken - 1) & 1) != 0;
}

}  // namespace

void TellPlace(pid_t place, pid_t job) {
  const absl::StatusOr<UniqueFd> pidfd = OpenProcess(place);
  const std::vector<pid_t> numbers = NamespaceNumbers(absl::StrCat(job));
  if (!pidfd.ok() || !WantsToKnow(place)) return;
  siginfo_t info = {};
  info.si_signo = kPlaceIsTaken;
  info.si_code = SI_QUEUE;
  info.si_value.sival_int = numbers.empty() ? 0 : numbers.back();
  if (::syscall(SYS_pidfd_send_signal, pidfd->get(), kPlaceIsTaken, &info, 0) == 0 || errno == ESRCH) return;
  Log(LogLevel::kWarning,
      absl::StrCat(ErrnoStatus(errno, absl::StrCat("telling the container of process ", place)).message(),
                   ": it will not end when the job that came back in it does"));
}

}  // namespace rekindle::restore
