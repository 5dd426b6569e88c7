#include "ckpt/capture_session.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/held_lock.h"
#include "base/kept_logs.h"
#include "base/log.h"
#include "base/number_claim.h"
#include "base/parallel.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/standstill.h"
#include "base/status.h"
#include "base/uuid.h"
#include "ckpt/capture.h"
#include "ckpt/death_watch.h"
#include "ckpt/lost_names.h"
#include "criu/connection_lock.h"

namespace rekindle::ckpt {
namespace {

constexpr char kWorkPrefix[] = "capture-";
constexpr char kBeginningLock[] = "captures.lock";
constexpr char kClaims[] = "captures.claims";
constexpr char kLogsPrefix[] = "failed-capture-";
constexpr char kJournal[] = "journal";
constexpr char kJournalTitle[] = "rekindle capture journal 1";
constexpr char kRunLine[] = "run ";
// A killed process gives its memory back before it is gone: a second for some ten GiB.
constexpr absl::Duration kDyingMayTake = absl::Seconds(60);
// It waits for a thread in a call of the GPU's driver, but not for ever.
constexpr absl::Duration kLettingGoMayTake = absl::Seconds(45);
constexpr absl::Duration kTellAfter = absl::Seconds(1);
constexpr absl::Duration kLookAgainEvery = absl::Milliseconds(5);

std::string BeginningLock(const std::string& runtime_directory) {
  return absl::StrCat(runtime_directory, "/", kBeginningLock);
}

// The name of CRIU's run, and one line a process: PID, start time, and whether it was stopped before the
// capture came.
std::string SerializeJournal(const std::string& run, const std::vector<ProcessInfo>& processes) {
  std::string text = absl::StrCat(kJournalTitle, "\n", kRunLine, run, "\n");
  for (const ProcessInfo& process : processes) {
    absl::StrAppend(&text, process.pid, " ", process.start_ticks, " ", process.state == 'T' ? 1 : 0, "\n");
  }
  return text;
}

std::vector<ProcessInfo> ParseJournal(const std::string& text) {
  std::vector<ProcessInfo> processes;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    std::vector<absl::string_view> f = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    ProcessInfo process;
    int was_stopped = 0;
    if (f.size() != 3 || !absl::SimpleAtoi(f[0], &process.pid) ||
        !absl::SimpleAtoi(f[1], &process.start_ticks) || !absl::SimpleAtoi(f[2], &was_stopped)) {
      continue;
    }
    process.state = was_stopped ? 'T' : 'S';
    processes.push_back(process);
  }
  return processes;
}

// A lock that the kernel frees when its holder dies, on a file of the process itself: nobody can take it who
// could not open what only the process's user and root may (a name that everybody can take would do for them
// to keep a job from being captured). One file for all who have the same /proc, whichever runtime folder they
// use.
absl::StatusOr<UniqueFd> OpenClaimOf(pid_t root) {
  auto fd = OpenFile(absl::StrCat("/proc/", root, "/personality"), O_RDONLY);
  return fd.ok() ? std::move(fd)
                 : absl::StatusOr<UniqueFd>(
                       Annotate(fd.status(), absl::StrCat("claiming process ", root, " for a capture")));
}

bool LockProcess(const UniqueFd& process) { return ::flock(process.get(), LOCK_EX | LOCK_NB) == 0; }

absl::Status Claim(pid_t root, const UniqueFd& process, const UniqueFd& number) {
  const Deadline deadline(kForkMayTake);
  // The number for those who share the runtime folder and have mounted a /proc of their own.
  while (!LockProcess(process) || !ClaimNumber(number, root)) {
    if (errno != EWOULDBLOCK && errno != EACCES && errno != EINTR) {
      return ErrnoStatus(errno, absl::StrCat("claiming process ", root, " for a capture"));
    }
    if (deadline.passed()) {
      return absl::AbortedError(
          absl::StrCat("capturing process ", root,
                       ": another checkpoint of it is under way; try again when that has ended"));
    }
    absl::SleepFor(kForkMayTake / 50);
  }
  return absl::OkStatus();
}

std::string RunInJournal(const std::string& text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, kRunLine)) return std::string(line);
  }
  return "";
}

absl::Status CheckJournal(const std::string& text) {
  if (!absl::StartsWith(text, absl::StrCat(kJournalTitle, "\n"))) {
    return absl::FailedPreconditionError(
        "another version of Rekindle has written it: start that one's daemon");
  }
  return ParseJournal(text).empty() ? absl::DataLossError("it names no processes") : absl::OkStatus();
}

// No descriptor of it is kept: a job may have more processes than we may have descriptors.
struct TreeMember {
  pid_t pid;
  uint64_t start_ticks;
  char state;
  bool was_stopped;  // when it was recorded
};

// NotFound: it has ended; its number may be another's.
absl::StatusOr<UniqueFd> Open(const TreeMember& member) {
  RK_ASSIGN_OR_RETURN(UniqueFd pidfd, OpenProcess(member.pid));
  RK_ASSIGN_OR_RETURN(const ProcessStat stat, ReadProcessStat(member.pid));
  if (stat.start_ticks == member.start_ticks) return pidfd;
  return absl::NotFoundError(absl::StrCat("process ", member.pid, " has ended"));
}

// No error where it has ended.
absl::Status Signal(const TreeMember& member, int signal) {
  const absl::StatusOr<UniqueFd> pidfd = Open(member);
  if (absl::IsNotFound(pidfd.status())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(pidfd.status());
  if (SendSignal(pidfd->get(), signal) || errno == ESRCH) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("sending signal ", signal, " to process ", member.pid));
}

absl::StatusOr<std::vector<TreeMember>> TreeNow(const std::vector<ProcessInfo>& recorded) {
  std::map<pid_t, const ProcessInfo*> known;
  for (const ProcessInfo& process : recorded) known[process.pid] = &process;
  std::map<pid_t, TreeMember> now;
  std::multimap<pid_t, pid_t> children;
  std::vector<pid_t> reached;
  const std::vector<pid_t> pids = ListProcesses();
  if (pids.empty()) return absl::UnavailableError("looking for the job's processes: /proc can't be read now");
  for (pid_t pid : pids) {
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    // Without it a part of the tree would be missed.
    if (absl::IsResourceExhausted(stat.status())) return stat.status();
    if (!stat.ok()) continue;
    children.emplace(stat->parent, pid);
    auto it = known.find(pid);
    bool same = it != known.end() && it->second->start_ticks == stat->start_ticks;
    if (same) reached.push_back(pid);
    now.emplace(pid, TreeMember{pid, stat->start_ticks, stat->state, same && it->second->state == 'T'});
  }
  std::vector<TreeMember> members;
  for (size_t i = 0; i < reached.size(); ++i) {
    auto [first, last] = children.equal_range(reached[i]);
    for (auto child = first; child != last; ++child) reached.push_back(child->second);
    if (auto node = now.extract(reached[i])) members.push_back(node.mapped());
  }
  return members;
}

std::vector<pid_t> PidsOf(const std::vector<TreeMember>& members) {
  std::vector<pid_t> pids;
  for (const TreeMember& member : members) pids.push_back(member.pid);
  return pids;
}

}  // namespace

absl::StatusOr<CaptureSession> CaptureSession::Begin(const std::string& runtime_directory,
                                                     const JobInspection& job) {
  RK_RETURN_IF_ERROR(MakeDirectories(runtime_directory));
  const pid_t root = job.processes[0].pid;
  RK_ASSIGN_OR_RETURN(UniqueFd process, OpenClaimOf(root));
  RK_ASSIGN_OR_RETURN(UniqueFd number,
                      OpenFile(absl::StrCat(runtime_directory, "/", kClaims), O_RDWR | O_CREAT, 0600));
  RK_RETURN_IF_ERROR(Claim(root, process, number));
  RK_ASSIGN_OR_RETURN(UniqueFd beginning, LockFile(BeginningLock(runtime_directory), LOCK_SH));
  RK_ASSIGN_OR_RETURN(TemporaryDirectory directory, TemporaryDirectory::Make(runtime_directory, kWorkPrefix));
  std::string run = NewUuid();
  RK_ASSIGN_OR_RETURN(UniqueFd journal, MakeLockedFile(absl::StrCat(directory.path(), "/", kJournal),
                                                       SerializeJournal(run, job.processes)));
  return CaptureSession(std::move(run), std::move(directory), std::move(process), std::move(number),
                        std::move(journal));
}

std::string CaptureSession::KeepLogs() {
  std::string work = work_directory_.path();
  std::string parent = work.substr(0, work.rfind('/'));
  auto beginning =
      LockFile(BeginningLock(parent), LOCK_SH);  // a folder without its journal is not yet that of a dead one
  std::string kept = PlaceForLogs(parent, kLogsPrefix, work);
  ::unlink(absl::StrCat(work, "/", kJournal).c_str());
  if (::rename(work.c_str(), kept.c_str()) != 0) return work;
  work_directory_.Release();
  return kept;
}

absl::Status UnlockConnectionsOfTree(const std::string& run, const std::vector<ProcessInfo>& recorded) {
  RK_ASSIGN_OR_RETURN(const std::vector<TreeMember> members, TreeNow(recorded));
  return criu::UnlockConnections(run, PidsOf(members));
}

absl::StatusOr<std::vector<pid_t>> ResumeTree(const std::vector<ProcessInfo>& recorded, BeforeResume before) {
  std::vector<pid_t> resumed;
  RK_ASSIGN_OR_RETURN(const std::vector<TreeMember> members, TreeNow(recorded));
  before(PidsOf(members));
  absl::Status status;
  for (const TreeMember& member : members) {
    if (member.was_stopped) continue;
    // Also one that still runs: it may have been told to stop and not have come to it.
    status.Update(Signal(member, SIGCONT));
    if (member.state == 'T') resumed.push_back(member.pid);
  }
  RK_RETURN_IF_ERROR(Annotate(status, "letting the job go on"));
  return resumed;
}

absl::Status StopTree(const std::vector<ProcessInfo>& recorded) {
  RK_ASSIGN_OR_RETURN(const std::vector<TreeMember> members, TreeNow(recorded));
  absl::Status status;
  for (const TreeMember& member : members) status.Update(Signal(member, SIGSTOP));
  return Annotate(status, "stopping the job");
}

absl::Status KillTree(const std::vector<ProcessInfo>& recorded) {
  std::map<pid_t, TreeMember> members;
  absl::Status status;
  StopWhileNewOnesCome([&] {
    std::vector<pid_t> fresh;
    const absl::StatusOr<std::vector<TreeMember>> now = TreeNow(recorded);
    status.Update(now.status());
    if (!now.ok()) return fresh;
    for (const TreeMember& member : *now) {
      if (!members.try_emplace(member.pid, member).second) continue;
      status.Update(Signal(member, SIGSTOP));
      fresh.push_back(member.pid);
    }
    return fresh;
  });
  for (const auto& [pid, member] : members) status.Update(Signal(member, SIGKILL));
  const Deadline deadline(kDyingMayTake);
  std::vector<pid_t> left;
  for (const auto& [pid, member] : members) {
    const absl::StatusOr<UniqueFd> pidfd = Open(member);
    if (absl::IsNotFound(pidfd.status())) continue;
    if (!pidfd.ok() || !AwaitExit(pidfd->get(), deadline.left())) left.push_back(pid);
  }
  RK_RETURN_IF_ERROR(status);
  if (left.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(left.size(), " of its ", members.size(), " processes (PID ", left.front(),
                   left.size() == 1 ? "" : ", …", ") were killed and have not gone within ",
                   absl::FormatDuration(kDyingMayTake),
                   "; they go when the file server, disk or driver that they wait for answers"));
}

namespace {

// Of a process or thread; 0: it has none.
pid_t CriuAt(pid_t pid) {
  const pid_t tracer = TracerOf(absl::StrCat(pid));
  return tracer != 0 && IsCriuDump(tracer) ? tracer : 0;
}

// The CRIU of a dead capture ends by itself, unless it waits for one that was killed (death_watch.h). False:
// it does not.
bool AwaitEndOfCriu(const std::vector<ProcessInfo>& recorded, const std::function<bool()>& gives_up) {
  const Deadline deadline(kLettingGoMayTake), patience(DeathWatch::kMayGoOn), silence(kTellAfter);
  const absl::StatusOr<std::vector<TreeMember>> members = TreeNow(recorded);
  if (!members.ok()) {
    Log(LogLevel::kError, members.status().message());
    return false;
  }
  for (bool told = false;;) {
    pid_t criu = 0, criu_of_dead = 0;
    for (const TreeMember& member : *members) {
      const pid_t tracer = CriuAt(member.pid);
      if (tracer == 0) continue;
      criu = tracer;
      if (auto stat = ReadProcessStat(member.pid); stat.ok() && stat->ending()) criu_of_dead = tracer;
    }
    if (criu == 0) return true;
    if (deadline.passed() || (gives_up && gives_up())) return false;
    if (!told && silence.passed()) {
      Log(LogLevel::kWarning, absl::StrCat("the CRIU (PID ", criu, ") of an interrupted capture of process ",
                                           recorded.front().pid, " has not ended yet: that is waited for, ",
                                           absl::FormatDuration(kLettingGoMayTake), " at most"));
      told = true;
    }
    if (criu_of_dead != 0 && patience.passed()) {
      const auto process = OpenProcess(criu_of_dead);
      if (process.ok() && IsCriuDump(criu_of_dead)) KillAndAwaitExit(process->get());
    }
    absl::SleepFor(kLookAgainEvery);
  }
}

// Of a capture that is over though nothing of its own has ended it.
struct DeadCapture {
  std::string directory;
  UniqueFd journal;  // locked: nobody else looks after it
  std::string text;
};

std::vector<DeadCapture> FindDeadCaptures(const std::string& runtime_directory,
                                          const std::vector<std::string>& names, bool nobody_begins) {
  std::vector<DeadCapture> dead;
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kWorkPrefix)) continue;
    const std::string directory = absl::StrCat(runtime_directory, "/", name);
    auto journal = OpenFile(absl::StrCat(directory, "/", kJournal), O_RDWR);
    if (!journal.ok() && !nobody_begins) continue;
    if (journal.ok() && ::flock(journal->get(), LOCK_EX | LOCK_NB) != 0) continue;  // its capture lives
    const auto text = journal.ok() ? ReadFile(absl::StrCat(directory, "/", kJournal))
                                   : absl::StatusOr<std::string>(journal.status());
    if (absl::IsNotFound(text.status())) {
      RemoveTree(directory).IgnoreError();
    } else if (const absl::Status usable = text.ok() ? CheckJournal(*text) : text.status(); usable.ok()) {
      dead.push_back({directory, *std::move(journal), *text});
    } else {
      // Without it nobody can tell whom the capture left stopped: it stays, for who can read it.
      Log(LogLevel::kError,
          absl::StrCat("an earlier capture was interrupted, and what it has stopped is not "
                       "known here: ",
                       directory, "/", kJournal, ": ", usable.message(), "; it is left there"));
    }
  }
  return dead;
}

}  // namespace

absl::StatusOr<std::vector<pid_t>> RecoverInterruptedCaptures(
    const std::string& runtime_directory, const std::function<void(const std::vector<pid_t>& tree)>& before,
    const std::function<bool()>& gives_up, std::vector<pid_t>* left_to_others) {
  std::vector<pid_t> freed;
  std::vector<DeadCapture> dead;
  {
    // Nobody has this lock while a capture begins: a folder without a journal is one of the dead then.
    auto nobody_begins = LockFile(BeginningLock(runtime_directory), LOCK_EX | LOCK_NB);
    auto names = ListDirectory(runtime_directory);
    if (!names.ok()) {
      if (absl::IsNotFound(names.status())) return freed;
      return names.status();
    }
    dead = FindDeadCaptures(runtime_directory, *names, nobody_begins.ok());
  }
  absl::Mutex one_at_a_time;
  // Whose CRIU takes its time keeps no other job waiting.
  InParallel(dead.size(), [&](size_t i) {
    const DeadCapture& capture = dead[i];
    const std::vector<ProcessInfo> processes = ParseJournal(capture.text);
    const bool over = AwaitEndOfCriu(processes, gives_up);
    absl::MutexLock lock(&one_at_a_time);
    if (!over) {
      if (left_to_others != nullptr)
        absl::c_transform(processes, std::back_inserter(*left_to_others),
                          [](const auto& one) { return one.pid; });
      return;  // for who comes next
    }
    const std::string run = RunInJournal(capture.text);
    const absl::StatusOr<std::vector<TreeMember>> left = TreeNow(processes);
    RemoveLeftExtraNames(capture.directory, run, !left.ok() || left->empty() ? 0 : left->front().pid);
    const absl::Status unlocked = UnlockConnectionsOfTree(run, processes);
    if (!unlocked.ok()) Log(LogLevel::kError, unlocked.message());
    const auto resumed = ResumeTree(processes, [&before](const std::vector<pid_t>& tree) {
      if (before) before(tree);
    });
    if (!resumed.ok()) {
      Log(LogLevel::kError, resumed.status().message());
      return;
    }
    freed.insert(freed.end(), resumed->begin(), resumed->end());
    RemoveTree(capture.directory).IgnoreError();
  });
  if (!freed.empty()) {
    Log(LogLevel::kWarning, absl::StrCat("an earlier capture was interrupted: ", freed.size(),
                                         " processes that it had stopped run again"));
  }
  return freed;
}

}  // namespace rekindle::ckpt
