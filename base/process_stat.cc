#include "base/process_stat.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/boot_time.h"
#include "base/file.h"
#include "base/proc_text.h"
#include "base/status.h"
#include "base/thread_stat.h"

namespace rekindle {

namespace {

// Whole ticks of what the kernel tells us.
int64_t BoottimeOffsetTicks() {
  static const int64_t ticks = [] {
    const int64_t tick_nanos = 1'000'000'000 / ::sysconf(_SC_CLK_TCK);
    const int64_t offset = BoottimeOffsetNanos(), whole = offset / tick_nanos;
    return offset % tick_nanos < 0 ? whole - 1 : whole;
  }();
  return ticks;
}

absl::StatusOr<ProcessStat> ReadStat(const std::string& path, absl::string_view of) {
  absl::StatusOr<std::string> line = ReadFile(path);
  if (absl::IsNotFound(line.status())) return absl::NotFoundError(absl::StrCat("there is no ", of));
  RK_RETURN_IF_ERROR(line.status());
  // The name in parentheses may hold anything, parentheses too: the fields begin after the last one.
  size_t name_begin = line->find('('), name_end = line->rfind(')');
  auto unknown = [&] {
    return absl::InternalError(absl::StrCat("reading ", path, ": it has another form than expected"));
  };
  if (name_begin == std::string::npos || name_end == std::string::npos || name_end < name_begin)
    return unknown();
  std::vector<absl::string_view> f = absl::StrSplit(absl::string_view(*line).substr(name_end + 1),
                                                    absl::ByAnyChar(" \n"), absl::SkipWhitespace());
  ProcessStat stat;
  uint64_t user_ticks = 0, kernel_ticks = 0;
  if (f.size() < 37 || f[0].size() != 1 || !absl::SimpleAtoi(f[1], &stat.parent) ||
      !absl::SimpleAtoi(f[2], &stat.group) || !absl::SimpleAtoi(f[3], &stat.session) ||
      !absl::SimpleAtoi(f[6], &stat.flags) || !absl::SimpleAtoi(f[17], &stat.threads) ||
      !absl::SimpleAtoi(f[11], &user_ticks) || !absl::SimpleAtoi(f[12], &kernel_ticks) ||
      !absl::SimpleAtoi(f[19], &stat.start_ticks) || !absl::SimpleAtoi(f[28], &stat.pending) ||
      !absl::SimpleAtoi(f[36], &stat.processor)) {
    return unknown();
  }
  // Kernels tell the exit status only to those who may trace the process.
  if (f.size() > 49 && !absl::SimpleAtoi(f[49], &stat.exit_status)) return unknown();
  stat.start_ticks -= static_cast<uint64_t>(BoottimeOffsetTicks());
  stat.state = f[0][0];
  stat.cpu_ticks = user_ticks + kernel_ticks;
  stat.name = line->substr(name_begin + 1, name_end - name_begin - 1);
  return stat;
}

}  // namespace

absl::StatusOr<ProcessStat> ReadProcessStat(pid_t pid) {
  const std::string of = absl::StrCat("process ", pid);
  if (pid <= 0) return absl::NotFoundError(absl::StrCat("there is no ", of));
  return ReadStat(absl::StrCat("/proc/", pid, "/stat"), of);
}

absl::StatusOr<ProcessStat> ReadThreadStat(pid_t pid, pid_t thread) {
  return ReadStat(absl::StrCat("/proc/", pid, "/task/", thread, "/stat"), absl::StrCat("thread ", thread));
}

std::vector<pid_t> ListProcesses() {
  std::vector<pid_t> pids;
  absl::StatusOr<std::vector<std::string>> names = ListDirectory("/proc");
  if (!names.ok()) return pids;
  for (const std::string& name : *names) {
    pid_t pid;
    if (absl::SimpleAtoi(name, &pid)) pids.push_back(pid);
  }
  return pids;
}

std::string StatusField(absl::string_view status, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (absl::StartsWith(line, key) && line.size() > key.size() && line[key.size()] == ':') {
      return std::string(absl::StripAsciiWhitespace(line.substr(key.size() + 1)));
    }
  }
  return "";
}

std::vector<pid_t> NamespaceNumbers(const std::string& task) {
  std::vector<pid_t> numbers;
  auto status = ReadFile(absl::StrCat("/proc/", task, "/status"));
  if (!status.ok()) return numbers;
  const std::string words = StatusField(*status, "NSpid");
  for (absl::string_view word : absl::StrSplit(words, absl::ByAnyChar("\t "), absl::SkipEmpty())) {
    pid_t number = 0;
    if (absl::SimpleAtoi(word, &number)) numbers.push_back(number);
  }
  return numbers;
}

pid_t TracerOf(const std::string& task) {
  const auto status = ReadFile(absl::StrCat("/proc/", task, "/status"));
  pid_t tracer = 0;
  return status.ok() && absl::SimpleAtoi(StatusField(*status, "TracerPid"), &tracer) ? tracer : 0;
}

absl::StatusOr<std::vector<pid_t>> ThreadsOf(pid_t pid) {
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      ListDirectory(absl::StrCat("/proc/", pid, "/task")));
  std::vector<pid_t> threads;
  for (const std::string& name : names) {
    if (pid_t thread = 0; absl::SimpleAtoi(name, &thread)) threads.push_back(thread);
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

ProcessChildren::ProcessChildren(Zombies zombies) {
  for (pid_t pid : ListProcesses()) {
    absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (!stat.ok() || (stat->ended() && zombies == Zombies::kLeftOut)) continue;
    children_.emplace(stat->parent, pid);
    known_.insert(pid);
  }
}

absl::StatusOr<std::vector<pid_t>> ChildrenOfThread(pid_t pid, pid_t thread) {
  RK_ASSIGN_OR_RETURN(const std::string list,
                      ReadFile(absl::StrCat("/proc/", pid, "/task/", thread, "/children")));
  std::vector<pid_t> children;
  for (const absl::string_view word : absl::StrSplit(list, ' ', absl::SkipWhitespace())) {
    if (pid_t child = 0; absl::SimpleAtoi(word, &child)) children.push_back(child);
  }
  return children;
}

std::vector<pid_t> ProcessChildren::Tree(pid_t root) const {
  std::vector<pid_t> tree;
  if (known_.contains(root)) tree.push_back(root);
  for (size_t i = 0; i < tree.size(); ++i) {
    auto [first, last] = children_.equal_range(tree[i]);
    for (auto child = first; child != last; ++child) tree.push_back(child->second);
  }
  return tree;
}

namespace {

// One way down the kernel's lists of children.
struct Descent {
  enum class End { kWhole, kChangedMeanwhile, kTooMuch };
  End end = End::kChangedMeanwhile;
  std::vector<pid_t> found;                                // as of ProcessChildren::Tree
  std::vector<std::pair<pid_t, std::vector<pid_t>>> seen;  // threads with their children
  struct Member {
    pid_t pid, parent;
    // Its number may be another's otherwise, or it has got another parent.
    bool IsThere(const absl::StatusOr<ProcessStat>& stat) const {
      return stat.ok() && (parent == 0 || stat->parent == parent);
    }
  };
  std::vector<Member> members;  // of the lists, zombies among them
};

Descent Descend(pid_t root, Zombies zombies, size_t most_threads) {
  Descent descent;
  descent.members = {{root, 0}};
  for (size_t i = 0; i < descent.members.size(); ++i) {
    const Descent::Member member = descent.members[i];
    const pid_t pid = member.pid;
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (!member.IsThere(stat)) return descent;
    if (!stat->ended() || zombies == Zombies::kToo) descent.found.push_back(pid);
    if (stat->ended()) continue;
    const absl::StatusOr<std::vector<pid_t>> threads = ThreadsOf(pid);
    if (!threads.ok()) return descent;
    if (descent.seen.size() + threads->size() > most_threads) {
      descent.end = Descent::End::kTooMuch;
      return descent;
    }
    for (const pid_t thread : *threads) {
      absl::StatusOr<std::vector<pid_t>> children = ChildrenOfThread(pid, thread);
      if (!children.ok()) return descent;
      for (const pid_t child : *children) descent.members.push_back({child, pid});
      descent.seen.emplace_back(thread, *std::move(children));
    }
  }
  descent.end = Descent::End::kWhole;
  return descent;
}

// /proc has about a link for each process.
size_t AboutHowManyProcesses() {
  struct stat info = {};
  return ::stat("/proc", &info) == 0 ? info.st_nlink : 0;
}

}  // namespace

std::vector<pid_t> ProcessTree(pid_t root, Zombies zombies) {
  static const bool lists_children = PathExists("/proc/thread-self/children");
  if (!lists_children) return ProcessChildren(zombies).Tree(root);
  const absl::StatusOr<std::string> status = ReadFile(absl::StrCat("/proc/", root, "/status"));
  // What has the number may be a thread.
  if (absl::IsNotFound(status.status()) ||
      (status.ok() && StatusField(*status, "Tgid") != absl::StrCat(root)))
    return {};
  // A list from which a child is taken while it is read may lack another one, and when a process or thread
  // ends its children may go from a list that is still to be read to one that was read. Both show: what went
  // is not in the next descent any more, or not there after it. So two that are equal, of which all are there
  // still, lack nothing that was there all the time.
  constexpr int kDescents = 4;
  const size_t most_threads = AboutHowManyProcesses() / kDescents;
  Descent last;
  for (int i = 0; i < kDescents; ++i) {
    Descent next = Descend(root, zombies, most_threads);
    if (next.end == Descent::End::kTooMuch) break;
    if (next.end == Descent::End::kWhole && last.end == Descent::End::kWhole && next.seen == last.seen &&
        std::all_of(next.members.begin(), next.members.end(),
                    [](const auto& member) { return member.IsThere(ReadProcessStat(member.pid)); })) {
      return std::move(next.found);
    }
    last = std::move(next);
  }
  // Here one whose parent ends between the looks at the two belongs to nobody: but not twice.
  const std::vector<pid_t> before = ProcessChildren(zombies).Tree(root);
  std::vector<pid_t> tree = ProcessChildren(zombies).Tree(root);
  for (const pid_t pid : before) {
    if (std::find(tree.begin(), tree.end(), pid) != tree.end()) continue;
    if (const auto stat = ReadProcessStat(pid); stat.ok() && (!stat->ended() || zombies == Zombies::kToo))
      tree.push_back(pid);
  }
  return tree;
}

std::string CommandLineOf(pid_t pid) {
  // Its owner may make it as long as he likes.
  constexpr size_t kMostBytes = 4096;
  std::string command = BeginningOfFile(absl::StrCat("/proc/", pid, "/cmdline"), kMostBytes);
  command.resize(command.find_last_not_of('\0') + 1);
  std::replace(command.begin(), command.end(), '\0', ' ');
  if (!command.empty()) return command;
  absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
  return stat.ok() ? absl::StrCat("[", stat->name, "]") : "";
}

}  // namespace rekindle
