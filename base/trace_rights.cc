#include "base/trace_rights.h"

#include <sys/stat.h>

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/status.h"

namespace rekindle {
namespace {

// Places in /proc/PID/stat behind the name, from `state` on: where code, stack, data, arguments and
// environment lie, which the kernel chooses at random each time.
constexpr size_t kStartCode = 23, kStartStack = 25, kStartData = 42, kArgumentsBegin = 45,
                 kEnvironmentEnd = 48;

std::vector<uint32_t> Numbers(absl::string_view field) {
  std::vector<uint32_t> numbers;
  for (absl::string_view word : absl::StrSplit(field, absl::ByAnyChar(" \t"), absl::SkipWhitespace())) {
    if (uint32_t number = 0; absl::SimpleAtoi(word, &number)) numbers.push_back(number);
  }
  return numbers;
}

bool InOurUserNamespace(pid_t pid) {
  struct stat its, ours;
  return ::stat(absl::StrCat("/proc/", pid, "/ns/user").c_str(), &its) != 0 ||
         ::stat("/proc/self/ns/user", &ours) != 0 || its.st_ino == ours.st_ino;
}

absl::Status CheckThread(pid_t pid, const std::string& status, const Owner& user) {
  for (const uint32_t uid : Numbers(StatusField(status, "Uid"))) {
    if (uid != user.uid)
      return absl::PermissionDeniedError(absl::StrCat("runs with the rights of uid ", uid));
  }
  for (const uint32_t gid : Numbers(StatusField(status, "Gid"))) {
    if (gid == user.gid || std::find(user.groups.begin(), user.groups.end(), gid) != user.groups.end())
      continue;
    return absl::PermissionDeniedError(absl::StrCat("runs with the rights of gid ", gid));
  }
  uint64_t capabilities = 0;
  if (!absl::SimpleHexAtoi(StatusField(status, "CapPrm"), &capabilities) || capabilities == 0)
    return absl::OkStatus();
  // Within a namespace of their own a user's processes may have all.
  if (!InOurUserNamespace(pid)) return absl::OkStatus();
  return absl::PermissionDeniedError("has capabilities");
}

}  // namespace

absl::Status CheckMayTrace(pid_t pid, const Owner& user) {
  const std::string folder = absl::StrCat("/proc/", pid);
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> threads, ListDirectory(folder + "/task"));
  bool has_memory = false;
  for (const std::string& thread : threads) {
    const absl::StatusOr<std::string> status = ReadFile(absl::StrCat(folder, "/task/", thread, "/status"));
    if (!status.ok()) continue;  // it has ended
    RK_RETURN_IF_ERROR(CheckThread(pid, *status, user));
    const std::string state = StatusField(*status, "State");
    has_memory |= !state.empty() && state[0] != 'Z' && state[0] != 'X';
  }
  if (!has_memory) return absl::OkStatus();
  struct stat info;
  if (::stat((folder + "/status").c_str(), &info) != 0) return absl::NotFoundError("is gone");
  if (info.st_uid == user.uid) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "lets nobody look into its memory (it is or was a set-uid program, can't be read, or asked for it with "
      "PR_SET_DUMPABLE)");
}

absl::StatusOr<std::string> ProgramOf(pid_t pid) {
  RK_ASSIGN_OR_RETURN(const std::string stat, ReadFile(absl::StrCat("/proc/", pid, "/stat")));
  const size_t behind = stat.rfind(") ");
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(behind == std::string::npos ? 0 : behind + 2), ' ');
  if (behind == std::string::npos || fields.size() <= kEnvironmentEnd) {
    return absl::InternalError(absl::StrCat("/proc/", pid, "/stat has not the form that is known"));
  }
  return absl::StrCat(
      absl::StrJoin(fields.begin() + kStartCode, fields.begin() + kStartStack + 1, " "), " ",
      fields[kStartData], " ",
      absl::StrJoin(fields.begin() + kArgumentsBegin, fields.begin() + kEnvironmentEnd + 1, " "));
}

}  // namespace rekindle
