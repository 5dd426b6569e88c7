#include "ckpt/uninterruptible_waits.h"

#include <linux/limits.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/process_stat.h"

namespace rekindle::ckpt {
namespace {

struct SystemCall {
  long number;
  const char* name;
  bool of_descriptor;  // its first argument is one
};

// Those in which threads wait for a file server or a disk, or for a vfork() child.
constexpr SystemCall kCalls[] = {
#ifdef SYS_vfork
    {SYS_vfork, "vfork", false},
#endif
#ifdef SYS_open
    {SYS_open, "open", false},
#endif
#ifdef SYS_stat
    {SYS_stat, "stat", false},
#endif
#ifdef SYS_access
    {SYS_access, "access", false},
#endif
#ifdef SYS_rename
    {SYS_rename, "rename", false},
#endif
#ifdef SYS_unlink
    {SYS_unlink, "unlink", false},
#endif
#ifdef SYS_getdents64
    {SYS_getdents64, "getdents64", true},
#endif
    {SYS_clone, "clone", false},
#ifdef SYS_clone3
    {SYS_clone3, "clone3", false},
#endif
    {SYS_read, "read", true},
    {SYS_write, "write", true},
    {SYS_pread64, "pread64", true},
    {SYS_pwrite64, "pwrite64", true},
    {SYS_readv, "readv", true},
    {SYS_writev, "writev", true},
    {SYS_fsync, "fsync", true},
    {SYS_fdatasync, "fdatasync", true},
    {SYS_ftruncate, "ftruncate", true},
    {SYS_fallocate, "fallocate", true},
    {SYS_fstat, "fstat", true},
    {SYS_ioctl, "ioctl", true},
    {SYS_close, "close", true},
    {SYS_openat, "openat", false},
    {SYS_newfstatat, "newfstatat", false},
    {SYS_statx, "statx", false},
    {SYS_execve, "execve", false},
};

struct Wait {
  pid_t process = 0, thread = 0;
  uint64_t start_ticks = 0;  // of the thread
  std::string switches;      // how often it has given up its processor: another number, another wait

  std::string File(absl::string_view name) const {
    return absl::StrCat("/proc/", process, "/task/", thread, "/", name);
  }
};

std::string SwitchesOf(const Wait& wait) {
  const std::string status = ReadFile(wait.File("status")).value_or("");
  const size_t at = status.find("\nvoluntary_ctxt_switches:");
  return at == std::string::npos ? "" : status.substr(at);
}

// Nothing: it is not in such a wait, or gone.
std::optional<Wait> WaitOf(pid_t process, pid_t thread) {
  const absl::StatusOr<ProcessStat> stat = ReadProcessStat(thread);
  if (!stat.ok() || stat->state != 'D' || stat->ending()) return std::nullopt;
  Wait wait{process, thread, stat->start_ticks, ""};
  wait.switches = SwitchesOf(wait);
  return wait;
}

std::vector<Wait> WaitsOf(pid_t root) {
  std::vector<Wait> waits;
  for (const pid_t process : ProcessTree(root)) {
    for (const pid_t thread : ThreadsOf(process).value_or(std::vector<pid_t>())) {
      if (std::optional<Wait> wait = WaitOf(process, thread)) waits.push_back(*std::move(wait));
    }
  }
  return waits;
}

bool Goes(const Wait& wait) {
  const std::optional<Wait> now = WaitOf(wait.process, wait.thread);
  return now && now->start_ticks == wait.start_ticks && now->switches == wait.switches;
}

std::string FileOf(pid_t process, absl::string_view descriptor) {
  uint64_t number = 0;
  if (!absl::SimpleHexAtoi(descriptor, &number)) return "";
  char path[PATH_MAX];
  const ssize_t n = ::readlink(absl::StrCat("/proc/", process, "/fd/", number).c_str(), path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "";
}

// ", in read() of /mnt/x"; what the kernel does not tell is left out.
std::string CallOf(const Wait& wait) {
  const std::string text = ReadFile(wait.File("syscall")).value_or("");
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  long number = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[0], &number)) return "";
  if (number < 0) return " on a page of its memory";
  for (const SystemCall& call : kCalls) {
    if (call.number != number) continue;
    const std::string file = call.of_descriptor ? FileOf(wait.process, words[1]) : "";
    return absl::StrCat(" in ", call.name, "()", file.empty() ? "" : " of ", file);
  }
  return absl::StrCat(" in system call ", number);
}

bool IsOfVfork(const Wait& wait) {
  const std::string call = CallOf(wait);
  return absl::StrContains(call, "vfork") || absl::StrContains(call, "clone");
}

std::string Describe(const Wait& wait) {
  const absl::StatusOr<ProcessStat> stat = ReadProcessStat(wait.thread);
  std::string text = absl::StrCat(
      "thread ", wait.thread, stat.ok() ? absl::StrCat(" (", stat->name, ")") : "",
      wait.thread == wait.process ? "" : absl::StrCat(" of process ", wait.process), " waits", CallOf(wait));
  const std::string content = ReadFile(wait.File("wchan")).value_or("");
  const absl::string_view place = absl::StripAsciiWhitespace(content);
  if (!place.empty() && place != "0") absl::StrAppend(&text, " (in the kernel: ", place, ")");
  return text;
}

}  // namespace

absl::Status AwaitInterruptible(pid_t root, absl::Duration patience, const std::atomic<bool>* cancel) {
  constexpr absl::Duration kLookAgain = absl::Milliseconds(5);
  const Deadline deadline(patience);
  std::vector<Wait> waits = WaitsOf(root);
  for (;;) {
    std::erase_if(waits, [](const Wait& wait) { return !Goes(wait); });
    if (waits.empty()) return absl::OkStatus();
    if (cancel != nullptr && cancel->load())
      return absl::CancelledError("the capture was cancelled; the job runs on");
    if (deadline.passed()) break;
    absl::SleepFor(kLookAgain);
  }
  const Wait& wait = waits.front();
  return absl::FailedPreconditionError(absl::StrCat(
      "capturing process ", root, ": ", Describe(wait), " for ", absl::FormatDuration(patience),
      " in a way that nothing can interrupt (state D), so it can't be stopped for an image; the job runs "
      "on. ",
      IsOfVfork(wait)
          ? "It goes on when the child that it has made with vfork() begins its program or ends: see what "
            "that waits for, then try again"
          : "See whether the file server or disk that it waits for answers, then try again"));
}

std::string DescribeUninterruptibleWait(pid_t root) {
  const std::vector<Wait> waits = WaitsOf(root);
  return waits.empty() ? "" : Describe(waits.front());
}

}  // namespace rekindle::ckpt
