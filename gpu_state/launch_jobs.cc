#include "gpu_state/launch_jobs.h"

#include <cstddef>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/proc_text.h"

namespace rekindle::gpu {
namespace {

bool IsOfLaunchJob(pid_t pid) {
  constexpr char kVariable[] = "CUDA_CHECKPOINT_JOB_FILE=";
  const std::string environment = EnvironmentOf(pid);
  for (const absl::string_view entry : absl::StrSplit(environment, '\0')) {
    if (absl::StartsWith(entry, kVariable)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::vector<pid_t>> RoundsOf(absl::Span<const pid_t> pids) {
  std::vector<std::vector<pid_t>> rounds;
  size_t of_launch_jobs = 0;
  for (const pid_t pid : pids) {
    const size_t round = IsOfLaunchJob(pid) ? of_launch_jobs++ : 0;
    if (round == rounds.size()) rounds.emplace_back();
    rounds[round].push_back(pid);
  }
  return rounds;
}

}  // namespace rekindle::gpu
