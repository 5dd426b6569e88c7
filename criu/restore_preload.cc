#include "criu/restore_preload.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/companion_program.h"
#include "base/file.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "criu/user_bounds.h"

namespace rekindle::criu {
namespace {

constexpr char kLibrary[] = "rekindle-criu-restore.so";

}  // namespace

absl::StatusOr<std::vector<std::string>> RestoreVariables(const std::string& bounds_file) {
  RK_ASSIGN_OR_RETURN(const std::string library, FindCompanionProgram(kLibrary));
  std::vector<std::string> variables = {absl::StrCat("LD_PRELOAD=", library)};
  if (!bounds_file.empty()) variables.push_back(absl::StrCat(USER_BOUNDS_VARIABLE, "=", bounds_file));
  return variables;
}

absl::Status CheckPreloaded(int criu_pidfd) {
  RK_ASSIGN_OR_RETURN(const std::string facts, ReadFile(absl::StrCat("/proc/self/fdinfo/", criu_pidfd)));
  const std::string pid = StatusField(facts, "Pid");
  absl::StatusOr<std::string> maps = ReadFile(absl::StrCat("/proc/", pid, "/maps"));
  // The conversation with it tells that better. One that is ending has no memory any more before it has
  // ended.
  if ((maps.ok() && maps->empty()) || AwaitExit(criu_pidfd, absl::ZeroDuration())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(Annotate(maps.status(), "looking what is loaded into CRIU"));
  if (absl::StrContains(*maps, kLibrary)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "restoring with CRIU: ", kLibrary,
      " is not loaded into it, which keeps it to the rights of the job's user, and the job's file locks. "
      "It is linked statically, or a script that starts it drops LD_PRELOAD; use a dynamically linked one "
      "(as distributions have it, and scripts/setup.sh of Rekindle's sources installs it), or name one in "
      "REKINDLE_CRIU"));
}

absl::Status WriteBounds(const std::string& bounds_file, const Owner& user,
                         const std::vector<std::string>& placed_sockets,
                         const std::vector<std::string>& own_folders) {
  std::string text = absl::StrCat(user.uid, " ", user.gid);
  for (const gid_t group : user.groups) absl::StrAppend(&text, " ", group);
  absl::StrAppend(&text, "\n", absl::StrJoin(own_folders, " "), "\n");
  for (const std::string& name : placed_sockets) text.append(name.c_str(), name.size() + 1);
  return ReplaceFile(bounds_file, text, 0600);  // no CRIU outlives a power cut
}

}  // namespace rekindle::criu
