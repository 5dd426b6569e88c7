#include "restore/our_numbers.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/shown_command.h"
#include "restore/compatibility.h"

namespace rekindle::restore {

pid_t OurNumbers::Of(pid_t theirs) const {
  if (!elsewhere_) return theirs;
  const auto at = of_theirs_.find(theirs);
  return at == of_theirs_.end() ? 0 : at->second;
}

v1::JobManifest InOurNumbers(v1::JobManifest manifest, const OurNumbers& numbers) {
  const auto change = [&numbers](auto* all) {
    for (auto& one : *all) {
      for (int32_t& thread : *one.mutable_threads()) thread = numbers.Of(thread);
    }
  };
  change(manifest.mutable_placements());
  change(manifest.mutable_manners());
  return manifest;
}

std::vector<criu::PstreeEntry> InOurNumbers(std::vector<criu::PstreeEntry> tree, const OurNumbers& numbers) {
  for (criu::PstreeEntry& process : tree) {
    process.pid = numbers.Of(process.pid);
    for (auto& thread : process.threads) thread = numbers.Of(thread);
  }
  return tree;
}

gpu::GpuRecord InOurNumbers(gpu::GpuRecord record, const OurNumbers& numbers) {
  for (pid_t& pid : record.pids) pid = numbers.Of(pid);
  for (gpu::GpuUse& use : record.uses) use.pid = numbers.Of(use.pid);
  return record;
}

std::vector<WithheldTask> InOurNumbers(std::vector<WithheldTask> tasks, const OurNumbers& numbers) {
  for (WithheldTask& task : tasks) task.pid = numbers.Of(task.pid);
  return tasks;
}

absl::Status CheckIdsAreFreeIn(const criu::JobNamespaces& namespaces,
                               const std::vector<criu::PstreeEntry>& tree) {
  const OurNumbers taken(namespaces.AllNumbers());
  for (const criu::PstreeEntry& process : tree) {
    for (const pid_t number : process.threads) {
      const pid_t holder = taken.Of(number);
      if (holder == 0) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(kIdsInUse, ", and ", number, " is in use in the container: our ", holder, " (",
                       ShownCommandOf(holder),
                       "). If that is the job itself, it still runs; otherwise end it, or restore into a "
                       "container in which "
                       "nothing but its first process runs"));
    }
  }
  return absl::OkStatus();
}

}  // namespace rekindle::restore
