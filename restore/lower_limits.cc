#include "restore/lower_limits.h"

#include <sys/resource.h>

#include "absl/strings/str_cat.h"
#include "base/limit_names.h"
#include "criu/image_files.h"

namespace rekindle::restore {

std::vector<std::string> LowerLimits(absl::string_view core_image, pid_t process) {
  std::vector<std::string> lower;
  const auto before = criu::ParseLimits(core_image);
  if (!before.ok()) return lower;
  for (const KnownLimit& known : kKnownLimits) {
    const auto number = static_cast<size_t>(known.number);
    rlimit now{};
    if (number >= before->size() ||
        ::prlimit(process, static_cast<__rlimit_resource>(known.number), nullptr, &now) != 0) {
      continue;
    }
    const rlimit& had = (*before)[number];
    if (now.rlim_cur >= had.rlim_cur && now.rlim_max >= had.rlim_max) continue;
    lower.push_back(absl::StrCat(
        "the job's limit of ", known.name, " (ulimit ", known.option, ") is ", LimitText(now.rlim_cur),
        ", at most ", LimitText(now.rlim_max), ", and was ", LimitText(had.rlim_cur), ", at most ",
        LimitText(had.rlim_max),
        ": Rekindle has no CAP_SYS_RESOURCE, and may not raise its own: raise that for whoever starts it"));
  }
  return lower;
}

}  // namespace rekindle::restore
