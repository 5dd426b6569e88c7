#include "base/companion_program.h"

#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle {

absl::StatusOr<std::string> FindCompanionProgram(absl::string_view name) {
  std::string self(PATH_MAX, '\0');
  ssize_t n = ::readlink("/proc/self/exe", self.data(), self.size());
  if (n <= 0) return ErrnoStatus(errno, "finding our own executable");
  self.resize(static_cast<size_t>(n));
  std::string directory = self.substr(0, self.rfind('/'));
  std::vector<std::string> candidates = {absl::StrCat(directory, "/", name),
                                         absl::StrCat(directory, "/../libexec/rekindle/", name)};
  if (const char* bundle = std::getenv("REKINDLE_BUNDLE")) {
    candidates.push_back(absl::StrCat(bundle, "/libexec/rekindle/", name));
  }
  const int access = absl::EndsWith(name, ".so") ? R_OK : X_OK;
  for (const std::string& candidate : candidates) {
    if (::access(candidate.c_str(), access) == 0) return candidate;
  }
  return absl::NotFoundError(
      absl::StrCat("finding ", name, ": it is neither in ", directory,
                   " nor in ../libexec/rekindle; install Rekindle again (cmake --install)"));
}

}  // namespace rekindle
