#include "base/huge_pages.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/process_stat.h"

namespace rekindle {

bool HugePagesAllowed() {
  auto setting = ReadFile("/sys/kernel/mm/transparent_hugepage/enabled");
  return setting.ok() && !absl::StrContains(*setting, "[never]");
}

bool HugePagesAllowedFor(pid_t pid) {
  // Kernels before 5.0 do not tell.
  auto status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
  return HugePagesAllowed() && (!status.ok() || StatusField(*status, "THP_enabled") != "0");
}

}  // namespace rekindle
