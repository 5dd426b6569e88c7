#include "criu/restore_preload.h"

#include "absl/strings/str_cat.h"
#include "base/companion_program.h"
#include "base/file.h"
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

absl::Status WriteBounds(const std::string& bounds_file, const Owner& user) {
  std::string text = absl::StrCat(user.uid, " ", user.gid);
  for (const gid_t group : user.groups) absl::StrAppend(&text, " ", group);
  return WriteFileAtomically(bounds_file, text + "\n", 0600);
}

}  // namespace rekindle::criu
