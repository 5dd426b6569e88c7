#include "restore/thread_placement.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/processors.h"

namespace rekindle::restore {

std::vector<std::string> PlaceThreads(const v1::JobManifest& manifest,
                                      const std::vector<criu::PstreeEntry>& tree, pid_t caller) {
  std::vector<std::string> warnings;
  const absl::StatusOr<Processors> ours = AffinityOf(0);
  absl::StatusOr<Processors> allowed = AffinityOf(caller);
  if (!allowed.ok()) allowed = ours;
  if (!ours.ok() || !allowed.ok()) return warnings;
  std::set<pid_t> placed;
  for (const v1::ThreadPlacement& placement : manifest.placements()) {
    const absl::StatusOr<Processors> wanted = ParseProcessors(placement.processors());
    bool may = wanted.ok() && !wanted->empty() &&
               std::includes(allowed->begin(), allowed->end(), wanted->begin(), wanted->end());
    for (int i = 0; may && i < placement.threads_size(); ++i) {
      const absl::Status status = SetAffinity(placement.threads(i), *wanted);
      may = status.ok() || absl::IsNotFound(status);  // it may have ended before the freeze
      if (status.ok()) placed.insert(placement.threads(i));
    }
    if (may) continue;
    warnings.push_back(
        absl::StrCat(placement.threads_size(), placement.threads_size() == 1 ? " thread" : " threads",
                     " of the job ran on processors ", placement.processors(), " alone; they run on ",
                     FormatProcessors(*allowed), " now, those of whoever restores it"));
  }
  if (*allowed == *ours) return warnings;
  for (const criu::PstreeEntry& process : tree) {
    for (pid_t thread : process.threads) {
      if (!placed.contains(thread)) SetAffinityWithinCpuset(thread, *allowed).IgnoreError();
    }
  }
  return warnings;
}

void SpreadThreads(const std::vector<pid_t>& processes) {
  std::map<int, std::vector<pid_t>> at_work;  // threads by processor
  for (pid_t process : processes) {
    for (const pid_t thread : ThreadsOf(process).value_or(std::vector<pid_t>())) {
      const auto stat = ReadProcessStat(thread);
      if (stat.ok() && stat->state == 'R') at_work[stat->processor].push_back(thread);
    }
  }
  std::map<int, size_t> load;
  for (const auto& [processor, threads] : at_work) load[processor] = threads.size();
  for (const auto& [processor, threads] : at_work) {
    for (pid_t thread : threads) {
      const auto allowed = AffinityOf(thread);
      if (!allowed.ok()) continue;
      int best = processor;
      // Neighbours by number mostly share caches and memory: the next one up goes first.
      auto consider = [&, from = processor](int other) {
        if (load[other] + 1 < load[from] && (best == from || load[other] < load[best])) best = other;
      };
      std::for_each(allowed->upper_bound(processor), allowed->end(), consider);
      std::for_each(allowed->begin(), allowed->upper_bound(processor), consider);
      // The kernel moves what is at work at once, and leaves it there.
      if (best == processor || !SetAffinity(thread, {best}).ok()) continue;
      SetAffinityWithinCpuset(thread, *allowed).IgnoreError();
      --load[processor];
      ++load[best];
    }
  }
}

std::vector<std::string> GiveManners(const v1::JobManifest& manifest) {
  constexpr int kOfProcess = 1;  // IOPRIO_WHO_PROCESS: of a thread, in fact
  int refused = 0;
  for (const v1::ThreadManners& manners : manifest.manners()) {
    for (pid_t thread : manners.threads()) {
      if (manners.io_priority() != 0 &&
          ::syscall(SYS_ioprio_set, kOfProcess, thread, static_cast<int>(manners.io_priority())) != 0) {
        if (errno != ESRCH) ++refused;
      }
      if (manners.timer_slack_ns() == 0) continue;
      const std::string file = absl::StrCat("/proc/", thread, "/timerslack_ns");
      const std::string text = absl::StrCat(manners.timer_slack_ns());
      auto opened = OpenFile(file, O_WRONLY);
      if (absl::IsNotFound(opened.status())) continue;  // it had ended before the freeze
      if (!opened.ok() || !WriteFully(opened->get(), text.data(), text.size(), file).ok()) ++refused;
    }
  }
  if (refused == 0) return {};
  return {absl::StrCat(refused, refused == 1 ? " thread" : " threads",
                       " of the job had an I/O priority or timer slack that may not be set here; they have "
                       "the usual one now")};
}

}  // namespace rekindle::restore
