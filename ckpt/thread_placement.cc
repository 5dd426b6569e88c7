#include "ckpt/thread_placement.h"

#include <linux/ioprio.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/processors.h"

namespace rekindle::ckpt {
namespace {

constexpr int kOfProcess = 1;  // IOPRIO_WHO_PROCESS: of a thread, in fact
constexpr uint64_t kUsualTimerSlackNs = 50'000;

void ForEachThread(const std::vector<pid_t>& pids, const std::function<void(pid_t thread)>& use) {
  for (pid_t pid : pids) {
    for (const pid_t thread : ThreadsOf(pid).value_or(std::vector<pid_t>())) use(thread);
  }
}

// 0: the usual one, or one that real-time threads have by their policy.
uint64_t TimerSlackOf(pid_t thread) {
  const int policy = ::sched_getscheduler(thread) & ~SCHED_RESET_ON_FORK;
  if (policy == SCHED_FIFO || policy == SCHED_RR) return 0;
  const auto text = ReadFile(absl::StrCat("/proc/", thread, "/timerslack_ns"));
  uint64_t ns = 0;
  if (!text.ok() || !absl::SimpleAtoi(*text, &ns) || ns == kUsualTimerSlackNs) return 0;
  return ns;
}

}  // namespace

std::vector<v1::ThreadPlacement> LookAtPlacements(const std::vector<pid_t>& pids,
                                                  const std::function<pid_t(pid_t)>& number) {
  std::vector<v1::ThreadPlacement> placements;
  const auto online = OnlineProcessors();
  if (!online.ok()) return placements;
  std::map<Processors, v1::ThreadPlacement> by_processors;
  ForEachThread(pids, [&](pid_t thread) {
    const auto processors = AffinityOf(thread);
    if (!processors.ok() || *processors == *online) return;
    by_processors[*processors].add_threads(number(thread));
  });
  for (auto& [processors, placement] : by_processors) {
    placement.set_processors(FormatProcessors(processors));
    placements.push_back(std::move(placement));
  }
  return placements;
}

std::vector<v1::ThreadManners> LookAtManners(const std::vector<pid_t>& pids,
                                             const std::function<pid_t(pid_t)>& number) {
  std::map<std::pair<uint32_t, uint64_t>, v1::ThreadManners> by_manners;
  ForEachThread(pids, [&](pid_t thread) {
    const long io_priority = ::syscall(SYS_ioprio_get, kOfProcess, thread);
    // Where no class was set, the kernel tells what follows from the nice value.
    const bool set = io_priority > 0 && IOPRIO_PRIO_CLASS(io_priority) != IOPRIO_CLASS_NONE;
    const std::pair<uint32_t, uint64_t> manners(set ? static_cast<uint32_t>(io_priority) : 0,
                                                TimerSlackOf(thread));
    if (manners != std::pair<uint32_t, uint64_t>()) by_manners[manners].add_threads(number(thread));
  });
  std::vector<v1::ThreadManners> all;
  for (auto& [manners, threads] : by_manners) {
    threads.set_io_priority(manners.first);
    threads.set_timer_slack_ns(manners.second);
    all.push_back(std::move(threads));
  }
  return all;
}

}  // namespace rekindle::ckpt
