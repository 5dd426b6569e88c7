#include "criu/hung_restore.h"

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/process_stat.h"

namespace rekindle::criu {
namespace {

// Differs as soon as the process has run. Empty: it runs, is stopped, waits for a disk, or has gone.
std::string Standstill(int pidfd) {
  const absl::StatusOr<std::string> facts = ReadFile(absl::StrCat("/proc/self/fdinfo/", pidfd));
  if (!facts.ok()) return "";
  const absl::StatusOr<std::string> status =
      ReadFile(absl::StrCat("/proc/", StatusField(*facts, "Pid"), "/status"));
  if (!status.ok() || !absl::StartsWith(StatusField(*status, "State"), "S")) return "";
  return absl::StrCat(StatusField(*status, "voluntary_ctxt_switches"), " ",
                      StatusField(*status, "nonvoluntary_ctxt_switches"));
}

}  // namespace

absl::Status HungRestore::Look() {
  const std::optional<pid_t> dead = find_dead_();
  const std::string stands = dead ? Standstill(criu_pidfd_) : "";
  if (stands.empty()) {
    patience_.reset();
    return absl::OkStatus();
  }
  if (!patience_ || stands != stands_) {
    stands_ = stands;
    patience_.emplace(kMayGoOn);
  }
  if (!patience_->passed()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      "process ", *dead,
      " of the job was killed while it was being restored, and CRIU would wait for it without end: try "
      "again; when nobody killed it, look for the out-of-memory killer in the system's log"));
}

}  // namespace rekindle::criu
