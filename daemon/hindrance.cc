#include "daemon/hindrance.h"

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "base/machine.h"
#include "criu/failure.h"
#include "restore/compatibility.h"
#include "restore/files_behind_links.h"
#include "restore/left_connections.h"
#include "restore/lock_check.h"

namespace rekindle::daemon {
namespace {

// As our own errors end, and the lines of CRIU's log. Which of our codes such an error has depends on where
// it was met: for most it is Internal.
bool NamesTroubleOfMachine(absl::string_view message) {
  constexpr int kTrouble[] = {EAGAIN, ENOMEM, ENOSPC, EDQUOT,    EMFILE,
                              ENFILE, EIO,    ESTALE, ETIMEDOUT, EHOSTDOWN};
  for (const int error : kTrouble) {
    if (absl::StrContains(message, ::strerrordesc_np(error))) return true;
  }
  return false;
}

constexpr absl::string_view kFileChanged = "file-changed";

// CRIU does not tell whether that was the image's fault: a process was killed from outside, say, or crashed.
bool IsUnclear(const absl::Status& status) {
  return criu::DiagnosisId(status) == "task-ended" || criu::IsUnknownFailure(status);
}

// As criu/failure_table.cc names it.
absl::string_view ChangedFile(const absl::Status& status) {
  absl::string_view message = status.message();
  constexpr absl::string_view kBefore = "The file ";
  const size_t begin = message.find(kBefore), end = message.find(" is not the one that the job had open");
  if (begin == absl::string_view::npos || end == absl::string_view::npos || end < begin + kBefore.size())
    return "";
  return message.substr(begin + kBefore.size(), end - begin - kBefore.size());
}

}  // namespace

bool MayFitOtherImage(const absl::Status& status) {
  if (status.ok()) return false;
  const Hindrance hindrance = HindranceOf(status);
  return hindrance == Hindrance::kImage || (hindrance == Hindrance::kMoment && IsUnclear(status)) ||
         criu::DiagnosisId(status) == kFileChanged ||
         absl::StrContains(status.message(), restore::kLibrariesMayComeBack);
}

Hindrance HindranceOf(const absl::Status& status) {
  const std::string diagnosis = criu::DiagnosisId(status);
  if (diagnosis == "port-in-use" || diagnosis == "terminal-in-use" || diagnosis == "address-missing")
    return Hindrance::kMachine;
  // A package that is being installed anew is whole in a moment.
  if (diagnosis == kFileChanged)
    return restore::IsLibraryOfPackage(ChangedFile(status)) ? Hindrance::kMachine : Hindrance::kImage;
  if (absl::IsAlreadyExists(status)) return Hindrance::kName;
  if (absl::StrContains(status.message(), restore::kIdsInUse) ||
      absl::StrContains(status.message(), restore::kLocksInUse) ||
      absl::StrContains(status.message(), restore::kConnectionsInUse)) {
    return Hindrance::kMoment;
  }
  if (absl::StrContains(status.message(), kDoesNotFit)) return Hindrance::kOtherMachine;
  if (diagnosis == "task-ended") return Hindrance::kMoment;
  // Aborted: somebody killed CRIU or one of the processes in the making, which says nothing of the image.
  if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status) || absl::IsAborted(status))
    return Hindrance::kMachine;
  if (IsLackOfMachine(status)) return Hindrance::kLacking;
  // A file system, a driver or another job takes its time.
  if (absl::IsDeadlineExceeded(status)) return Hindrance::kMachine;
  // What was read, and is wrong.
  if (absl::IsDataLoss(status) || absl::IsInvalidArgument(status)) return Hindrance::kImage;
  if (absl::StrContains(status.message(), restore::kMakeFolder) ||
      absl::StrContains(status.message(), restore::kLibrariesMayComeBack) ||
      absl::StrContains(status.message(), restore::kUntrustedLink))
    return Hindrance::kMachine;
  if (NamesTroubleOfMachine(status.message())) return Hindrance::kMachine;
  return IsUnclear(status) ? Hindrance::kMoment : Hindrance::kImage;
}

std::string HindranceInWords(const absl::Status& status) {
  const absl::string_view message = status.message();
  // Where we know what it is, CRIU's lines say the same once more.
  return std::string(criu::DiagnosisId(status).empty() ? message : message.substr(0, message.find('\n')));
}

}  // namespace rekindle::daemon
