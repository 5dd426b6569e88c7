#include "ckpt/thread_placement.h"

#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/processors.h"

namespace rekindle::ckpt {

std::vector<v1::ThreadPlacement> LookAtPlacements(const std::vector<pid_t>& pids,
                                                  const std::function<pid_t(pid_t)>& number) {
  std::vector<v1::ThreadPlacement> placements;
  const auto online = OnlineProcessors();
  if (!online.ok()) return placements;
  std::map<Processors, v1::ThreadPlacement> by_processors;
  for (pid_t pid : pids) {
    const auto names = ListDirectory(absl::StrCat("/proc/", pid, "/task"));
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      pid_t thread = 0;
      if (!absl::SimpleAtoi(name, &thread)) continue;
      const auto processors = AffinityOf(thread);
      if (!processors.ok() || *processors == *online) continue;
      by_processors[*processors].add_threads(number(thread));
    }
  }
  for (auto& [processors, placement] : by_processors) {
    placement.set_processors(FormatProcessors(processors));
    placements.push_back(std::move(placement));
  }
  return placements;
}

}  // namespace rekindle::ckpt
