#include "base/children.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "base/unique_fd.h"

namespace rekindle {
namespace {

constexpr uint64_t kAnyStart = 0;  // it could not be found out
constexpr size_t kFewNotes = 256;

struct Children {
  absl::Mutex mutex;
  uint64_t next_making ABSL_GUARDED_BY(mutex) = 1;
  std::set<uint64_t> making ABSL_GUARDED_BY(mutex);
  ProcessStarts noted ABSL_GUARDED_BY(mutex);
  size_t most_notes ABSL_GUARDED_BY(mutex) = kFewNotes;  // then those of children that are no more go
  ProcessStarts strays ABSL_GUARDED_BY(mutex);           // that a thread waits for

  bool Noted(const std::pair<pid_t, uint64_t>& child) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return noted.count(child) > 0 || noted.count({child.first, kAnyStart}) > 0;
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

struct Stray {
  std::pair<pid_t, uint64_t> process;
  UniqueFd pidfd;
};

void LetGoOf(const Stray& stray) {
  Children& all = All();
  absl::MutexLock lock(&all.mutex);
  all.strays.erase(stray.process);
}

// `making`: the first that can't have made any of them.
void ReapAll(std::vector<Stray> suspects, uint64_t making) {
  Children& all = All();
  {
    auto all_are_made = [&all, making]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(all.mutex) {
      return all.making.empty() || *all.making.begin() >= making;
    };
    absl::MutexLock lock(&all.mutex);
    all.mutex.Await(absl::Condition(&all_are_made));
  }
  while (!suspects.empty()) {
    std::erase_if(suspects, [](const Stray& suspect) {
      if (IsOurs(suspect.process) && !IsNotedChild(suspect.process.first) &&
          ::waitpid(suspect.process.first, nullptr, WNOHANG) == 0) {
        return false;
      }
      LetGoOf(suspect);
      return true;
    });
    std::vector<pollfd> entries;
    for (const Stray& stray : suspects) entries.push_back({stray.pidfd.get(), POLLIN, 0});
    if (!entries.empty()) ::poll(entries.data(), entries.size(), -1);
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
  const auto knows = [](const ProcessStarts& processes, pid_t pid) {
    const auto found = processes.lower_bound({pid, 0});
    return found != processes.end() && found->first == pid;
  };
  for (absl::string_view number : absl::StrSplit(text, ' ', absl::SkipWhitespace())) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(number, &pid) && !knows(all.noted, pid) && !knows(all.strays, pid)) return true;
  }
  return false;
}

void ReapStrays(const ProcessStarts& before) {
  Children& all = All();
  std::vector<Stray> suspects;
  const ProcessStarts children = ListChildren();
  uint64_t making;
  {
    absl::MutexLock lock(&all.mutex);
    making = all.next_making;
    for (const auto& child : children) {
      if (before.count(child) > 0 || all.Noted(child)) continue;
      if (all.strays.insert(child).second) suspects.push_back({child, UniqueFd()});
    }
  }
  std::erase_if(suspects, [](Stray& suspect) {
    suspect.pidfd.Reset(static_cast<int>(::syscall(SYS_pidfd_open, suspect.process.first, 0)));
    if (!suspect.pidfd.valid()) LetGoOf(suspect);
    return !suspect.pidfd.valid();
  });
  if (suspects.empty()) return;
  auto shared = std::make_shared<std::vector<Stray>>(std::move(suspects));
  try {
    std::thread([shared, making] { ReapAll(std::move(*shared), making); }).detach();
  } catch (const std::system_error& e) {
    for (const Stray& suspect : *shared) LetGoOf(suspect);
    Log(LogLevel::kWarning, absl::StrCat("orphans of jobs stay as zombies: ", e.what()));
  }
}

}  // namespace rekindle
