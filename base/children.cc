#include "base/children.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "base/timed_await.h"

namespace rekindle {
namespace {

constexpr uint64_t kAnyStart = 0;  // it could not be found out
constexpr size_t kFewNotes = 256;
constexpr absl::Duration kLook = absl::Milliseconds(200);

struct Children {
  absl::Mutex mutex;
  uint64_t next_making ABSL_GUARDED_BY(mutex) = 1;
  std::set<uint64_t> making ABSL_GUARDED_BY(mutex);
  ProcessStarts noted ABSL_GUARDED_BY(mutex);
  size_t most_notes ABSL_GUARDED_BY(mutex) = kFewNotes;  // then those of children that are no more go
  // That the reaper waits for, each with the first making that can't have made it.
  std::map<std::pair<pid_t, uint64_t>, uint64_t> strays ABSL_GUARDED_BY(mutex);
  bool has_reaper ABSL_GUARDED_BY(mutex) = false;

  bool Noted(const std::pair<pid_t, uint64_t>& child) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return noted.count(child) > 0 || noted.count({child.first, kAnyStart}) > 0;
  }
  bool AllAreMadeBefore(uint64_t number) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return making.empty() || *making.begin() >= number;
  }
};

Children& All() {
  static auto& children = *new Children();  // threads outlive main
  return children;
}

bool IsOurs(const std::pair<pid_t, uint64_t>& child) {
  absl::StatusOr<ProcessStat> facts = ReadProcessStat(child.first);
  // What can't be looked at may be.
  if (!facts.ok()) return !absl::IsNotFound(facts.status());
  return facts->parent == ::getpid() && (child.second == kAnyStart || child.second == facts->start_ticks);
}

using Stray = std::pair<const std::pair<pid_t, uint64_t>, uint64_t>;

// Has it been taken, or is it none? Else it lives, or somebody is making a child still that may be this one.
bool IsSettled(const Stray& stray) {
  Children& all = All();
  const pid_t pid = stray.first.first;
  {
    absl::MutexLock lock(&all.mutex);
    if (!all.AllAreMadeBefore(stray.second)) return false;
  }
  if (IsOurs(stray.first) && !IsNotedChild(pid) && ::waitpid(pid, nullptr, WNOHANG) == 0) return false;
  absl::MutexLock lock(&all.mutex);
  all.strays.erase(stray.first);
  return true;
}

bool HasEnded(pid_t pid) {
  siginfo_t info = {};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

// Of those of all strays that have ended, or that are this process.
bool AnyIsSettled(std::optional<pid_t> that_one) {
  Children& all = All();
  std::vector<Stray> strays;
  {
    absl::MutexLock lock(&all.mutex);
    const auto from = that_one ? all.strays.lower_bound({*that_one, 0}) : all.strays.begin();
    for (auto stray = from; stray != all.strays.end(); ++stray) {
      if (that_one && stray->first.first != *that_one) break;
      strays.push_back(*stray);
    }
  }
  bool any = false;
  for (const Stray& stray : strays) {
    if (that_one || HasEnded(stray.first.first)) any = IsSettled(stray) || any;
  }
  return any;
}

// Until there are no strays. As long as they live they cost nothing: no descriptor and no thread of their
// own.
void ReapAll() {
  Children& all = All();
  for (;;) {
    siginfo_t info = {};
    // Tells of one again until somebody has taken it.
    (void)::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);
    const bool settled = AnyIsSettled(info.si_pid) || AnyIsSettled(std::nullopt);
    absl::MutexLock lock(&all.mutex);
    if (all.strays.empty()) {
      all.has_reaper = false;
      return;
    }
    if (settled) continue;
    // Another's child that he has not taken yet hides those that end now.
    const uint64_t making = all.making.empty() ? 0 : *all.making.begin() + 1;
    auto one_is_made = [&all, making]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(all.mutex) {
      return making > 0 && all.AllAreMadeBefore(making);
    };
    AwaitUntil(all.mutex, absl::Condition(&one_is_made), Deadline(kLook));
  }
}

}  // namespace

MakingChild::MakingChild() {
  Children& all = All();
  absl::MutexLock lock(&all.mutex);
  number_ = all.next_making++;
  all.making.insert(number_);
}

MakingChild::~MakingChild() {
  Children& all = All();
  absl::MutexLock lock(&all.mutex);
  all.making.erase(number_);
}

void NoteChild(pid_t pid) {
  absl::StatusOr<ProcessStat> facts = ReadProcessStat(pid);
  Children& all = All();
  absl::MutexLock lock(&all.mutex);
  all.noted.emplace(pid, facts.ok() ? facts->start_ticks : kAnyStart);
  if (all.noted.size() <= all.most_notes) return;
  std::erase_if(all.noted, [](const auto& child) { return !IsOurs(child); });
  all.most_notes = std::max(kFewNotes, 2 * all.noted.size());
}

bool IsNotedChild(pid_t pid) {
  absl::StatusOr<ProcessStat> facts = ReadProcessStat(pid);
  Children& all = All();
  absl::MutexLock lock(&all.mutex);
  return all.Noted({pid, facts.ok() ? facts->start_ticks : kAnyStart});
}

ProcessStarts ListChildren() {
  ProcessStarts children;
  for (pid_t pid : ListProcesses()) {
    absl::StatusOr<ProcessStat> facts = ReadProcessStat(pid);
    if (facts.ok() && facts->parent == ::getpid()) children.emplace(pid, facts->start_ticks);
  }
  return children;
}

bool MayHaveStrays() {
  // Orphans come to a process's first thread. Without CONFIG_PROC_CHILDREN there is no such file.
  const std::string text = ReadFile(absl::StrCat("/proc/self/task/", ::getpid(), "/children")).value_or("");
  Children& all = All();
  absl::MutexLock lock(&all.mutex);
  const auto noted = [&all](pid_t pid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(all.mutex) {
    const auto found = all.noted.lower_bound({pid, 0});
    return found != all.noted.end() && found->first == pid;
  };
  const auto stray = [&all](pid_t pid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(all.mutex) {
    const auto found = all.strays.lower_bound({pid, 0});
    return found != all.strays.end() && found->first.first == pid;
  };
  for (absl::string_view number : absl::StrSplit(text, ' ', absl::SkipWhitespace())) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(number, &pid) && !noted(pid) && !stray(pid)) return true;
  }
  return false;
}

void ReapStrays(const ProcessStarts& before) {
  Children& all = All();
  const ProcessStarts children = ListChildren();
  {
    absl::MutexLock lock(&all.mutex);
    for (const auto& child : children) {
      if (before.count(child) == 0 && !all.Noted(child)) all.strays.emplace(child, all.next_making);
    }
    if (all.strays.empty() || std::exchange(all.has_reaper, true)) return;
  }
  try {
    std::thread(ReapAll).detach();
  } catch (const std::system_error& e) {
    absl::MutexLock lock(&all.mutex);
    all.has_reaper = false;
    all.strays.clear();
    Log(LogLevel::kWarning, absl::StrCat("orphans of jobs stay as zombies: ", e.what()));
  }
}

}  // namespace rekindle
