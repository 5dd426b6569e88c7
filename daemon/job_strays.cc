#include "daemon/job_strays.h"

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/process_stat.h"
#include "base/utf8.h"

namespace rekindle::daemon {

Strays FindStrays(const JobTraits& job, pid_t root, const ProcessTable& processes) {
  Strays strays;
  const std::vector<pid_t> members = processes.Members(job);
  // After them: a process that was begun meanwhile is in the tree, and not among the members.
  const std::vector<pid_t> living = ProcessTree(root);
  const std::set<pid_t> tree(living.begin(), living.end());
  if (tree.empty()) return strays;  // it has ended: nothing is in it
  for (const pid_t pid : members) {
    if (tree.contains(pid)) continue;
    const auto stat = ReadProcessStat(pid);
    if (stat.ok() && !stat->ending() && processes.Has(pid, *stat))
      strays[pid] = {stat->start_ticks, CommandLineOf(pid)};
  }
  return strays;
}

Strays InBoth(const Strays& before, const Strays& after) {
  Strays both;
  for (const auto& [pid, process] : after) {
    const auto known = before.find(pid);
    if (known != before.end() && known->second.first == process.first) both[pid] = process;
  }
  return both;
}

std::string DescribeStrays(const Strays& strays, bool are_ended_with_it) {
  constexpr size_t kMostNamed = 3, kMostShown = 100;
  std::vector<std::string> named;
  for (const auto& [pid, process] : strays) {
    if (named.size() == kMostNamed) break;
    named.push_back(absl::StrCat("process ", pid, " (", ToUtf8(process.second, kMostShown), ")"));
  }
  if (strays.size() > named.size()) named.push_back(absl::StrCat(strays.size() - named.size(), " more"));
  return absl::StrCat(
      "not in the image, although of the job: ", absl::StrJoin(named, ", "),
      strays.size() == 1
          ? ". Its parent has ended, and an image is of the processes below the job's first one"
          : ". Their parents have ended, and an image is of the processes below the job's first one",
      are_ended_with_it ? "; when the job dies they are ended, and do not come back with it" : "",
      ". Start such a program in the foreground (with '&', without its option to become a daemon), or as a "
      "job of "
      "its own");
}

}  // namespace rekindle::daemon
