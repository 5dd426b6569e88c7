#include "daemon/process_settings.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/descriptor_limit.h"
#include "base/file.h"
#include "base/limit_names.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/processors.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

static_assert(std::size(kKnownLimits) + 3 <= kMostRefused);

constexpr int kDeadlinePolicy = 6;
constexpr int kResetOnFork = 0x40000000;

bool ParseLimit(absl::string_view text, rlim_t* limit) {
  *limit = RLIM_INFINITY;
  return text == "unlimited" || absl::SimpleAtoi(text, limit);
}

// "Max open files            1024                 4096                 files"
bool ParseLimitLine(absl::string_view line, std::pair<int, rlimit>* limit) {
  if (!absl::ConsumePrefix(&line, "Max ")) return false;
  for (const KnownLimit& known : kKnownLimits) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, known.name) || !absl::StartsWith(rest, "  ")) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(rest, ' ', absl::SkipEmpty());
    limit->first = known.number;
    return words.size() >= 2 && ParseLimit(words[0], &limit->second.rlim_cur) &&
           ParseLimit(words[1], &limit->second.rlim_max);
  }
  return false;
}

absl::StatusOr<mode_t> ReadFileModeMask(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/status");
  RK_ASSIGN_OR_RETURN(const std::string status, ReadFile(path));
  const std::string digits = StatusField(status, "Umask");
  if (digits.empty()) return absl::UnimplementedError(absl::StrCat(path, " does not tell the umask"));
  mode_t mask = 0;
  for (const char digit : digits) mask = mask * 8 + static_cast<mode_t>(digit - '0');
  return mask & 0777;
}

// The call itself: the C library's reports -1 in the same way as an error.
absl::StatusOr<int> NiceOf(pid_t pid) {
  const long answer = ::syscall(SYS_getpriority, PRIO_PROCESS, pid);
  if (answer < 0) return ErrnoStatus(errno, absl::StrCat("asking for the priority of process ", pid));
  return 20 - static_cast<int>(answer);
}

// Neither has to be given.
int ExchangeLimit(int number, const rlimit* wanted, rlimit* before) {
  static_assert(sizeof(rlimit) == 16);
  return static_cast<int>(::syscall(SYS_prlimit64, 0, number, wanted, before));
}

}  // namespace

absl::StatusOr<ProcessSettings> ReadProcessSettings(pid_t pid) {
  ProcessSettings settings;
  RK_ASSIGN_OR_RETURN(settings.file_mode_mask, ReadFileModeMask(pid));
  // To all that may see it; prlimit(2) wants CAP_SYS_RESOURCE to read those of another user's.
  RK_ASSIGN_OR_RETURN(const std::string limits, ReadFile(absl::StrCat("/proc/", pid, "/limits")));
  for (absl::string_view line : absl::StrSplit(limits, '\n')) {
    std::pair<int, rlimit> limit;
    if (ParseLimitLine(line, &limit)) settings.limits.push_back(limit);
  }
  RK_ASSIGN_OR_RETURN(settings.nice, NiceOf(pid));
  const long policy = ::syscall(SYS_sched_getscheduler, pid);
  sched_param parameters{};
  if (policy < 0 || ::syscall(SYS_sched_getparam, pid, &parameters) != 0)
    return ErrnoStatus(errno, absl::StrCat("asking how process ", pid, " is scheduled"));
  settings.policy = static_cast<int>(policy) & ~kResetOnFork;
  settings.priority = parameters.sched_priority;
  const bool is_realtime = settings.policy == SCHED_FIFO || settings.policy == SCHED_RR;
  // A child would not have them either.
  if (settings.policy == kDeadlinePolicy || ((policy & kResetOnFork) != 0 && is_realtime)) {
    settings.policy = SCHED_OTHER;
    settings.priority = 0;
  }
  if ((policy & kResetOnFork) != 0) settings.nice = std::max(settings.nice, 0);
  settings.affinity_mask.resize(8192);
  const long size =
      ::syscall(SYS_sched_getaffinity, pid, settings.affinity_mask.size(), settings.affinity_mask.data());
  if (size < 0) return ErrnoStatus(errno, absl::StrCat("asking where process ", pid, " may run"));
  settings.affinity_mask.resize(static_cast<size_t>(size));
  int score = 0;
  if (absl::SimpleAtoi(ReadFile(absl::StrCat("/proc/", pid, "/oom_score_adj")).value_or(""), &score))
    settings.oom_score_adj = score;
  return settings;
}

absl::StatusOr<std::optional<ProcessSettings>> SettingsOfCaller(const Caller& caller, std::string* why) {
  if (caller.kind == Caller::Kind::kSelf) {
    RK_ASSIGN_OR_RETURN(ProcessSettings own, ReadProcessSettings(::getpid()));
    for (auto& [number, limit] : own.limits) {
      if (number == RLIMIT_NOFILE)
        limit.rlim_cur = std::min<rlim_t>(OriginalDescriptorLimit(), limit.rlim_max);
    }
    return own;
  }
  if (caller.kind == Caller::Kind::kRemote) return std::nullopt;  // and so has nothing to give here
  if (caller.pid <= 0 || !caller.pidfd) {
    *why = "the caller's umask, limits and priority can't be seen from here: it is in another PID namespace";
    return std::nullopt;
  }
  absl::StatusOr<ProcessSettings> settings = ReadProcessSettings(caller.pid);
  // Now it is certain that they were the caller's, and not those of who has its number by now.
  if (!SendSignal(caller.pidfd->get(), 0) && errno == ESRCH)
    return absl::CancelledError("the caller has gone");
  RK_RETURN_IF_ERROR(Annotate(settings.status(), "taking on the caller's umask, limits and priority"));
  return *std::move(settings);
}

v1::ProcessSettings ToProto(const ProcessSettings& settings) {
  v1::ProcessSettings out;
  out.set_file_mode_mask(settings.file_mode_mask);
  for (const auto& [number, limit] : settings.limits) {
    for (const KnownLimit& known : kKnownLimits) {
      if (known.number != number) continue;
      v1::ResourceLimit* one = out.add_limits();
      one->set_name(known.name);
      one->set_soft(limit.rlim_cur);
      one->set_hard(limit.rlim_max);
    }
  }
  out.set_nice(settings.nice);
  out.set_policy(settings.policy);
  out.set_priority(settings.priority);
  out.set_affinity_mask(settings.affinity_mask.data(), settings.affinity_mask.size());
  if (settings.oom_score_adj) out.set_oom_score_adj(*settings.oom_score_adj);
  return out;
}

ProcessSettings FromProto(const v1::ProcessSettings& settings) {
  ProcessSettings out;
  out.file_mode_mask = settings.file_mode_mask();
  for (const v1::ResourceLimit& limit : settings.limits()) {
    for (const KnownLimit& known : kKnownLimits) {
      if (known.name == limit.name())
        out.limits.emplace_back(known.number, rlimit{limit.soft(), limit.hard()});
    }
  }
  out.nice = settings.nice();
  out.policy = settings.policy();
  out.priority = settings.priority();
  out.affinity_mask.assign(settings.affinity_mask().begin(), settings.affinity_mask().end());
  if (settings.has_oom_score_adj()) out.oom_score_adj = settings.oom_score_adj();
  return out;
}

size_t TakeOnSettings(const ProcessSettings& settings, std::array<RefusedSetting, kMostRefused>* refused) {
  size_t count = 0;
  const auto refuse = [&](RefusedSetting::What what, int limit = 0) {
    if (count < kMostRefused) (*refused)[count++] = {what, limit, errno};
  };
  if (::syscall(SYS_getpriority, PRIO_PROCESS, 0) != 20 - settings.nice &&
      ::syscall(SYS_setpriority, PRIO_PROCESS, 0, settings.nice) != 0)
    refuse(RefusedSetting::What::kNice);
  sched_param own_priority{};
  ::syscall(SYS_sched_getparam, 0, &own_priority);
  if (::syscall(SYS_sched_getscheduler, 0) != settings.policy ||
      own_priority.sched_priority != settings.priority) {
    sched_param priority{};
    priority.sched_priority = settings.priority;
    if (::syscall(SYS_sched_setscheduler, 0, settings.policy, &priority) != 0)
      refuse(RefusedSetting::What::kPolicy);
  }
  // Who is set to what it has anyway is kept from processors that come later.
  char mask[8192];
  const long size = ::syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
  const std::vector<char>& affinity = settings.affinity_mask;
  const bool has_it =
      size == static_cast<long>(affinity.size()) && std::memcmp(mask, affinity.data(), affinity.size()) == 0;
  if (!affinity.empty() && !has_it &&
      ::syscall(SYS_sched_setaffinity, 0, affinity.size(), affinity.data()) != 0)
    refuse(RefusedSetting::What::kAffinity);
  // Last: a small one of the stack is for the program.
  for (const auto& [number, wanted] : settings.limits) {
    rlimit own{};
    ExchangeLimit(number, nullptr, &own);
    if (own.rlim_cur == wanted.rlim_cur && own.rlim_max == wanted.rlim_max) continue;
    if (ExchangeLimit(number, &wanted, nullptr) == 0) continue;
    refuse(RefusedSetting::What::kLimit, number);
    const rlimit best = {std::min(wanted.rlim_cur, own.rlim_max), std::min(wanted.rlim_max, own.rlim_max)};
    ExchangeLimit(number, &best, nullptr);
  }
  return count;
}

std::string DescribeRefused(const RefusedSetting& refused, const ProcessSettings& settings) {
  const std::string why = std::strerror(refused.error);
  switch (refused.what) {
    case RefusedSetting::What::kLimit:
      break;
    case RefusedSetting::What::kNice:
      return absl::StrCat("the job does not have the caller's nice value ", settings.nice, ": ", why,
                          ": rekindled needs CAP_SYS_NICE for it");
    case RefusedSetting::What::kPolicy:
      return absl::StrCat("the job does not have the caller's scheduling policy ", settings.policy,
                          ", priority ", settings.priority, ": ", why,
                          ": rekindled needs CAP_SYS_NICE for it");
    case RefusedSetting::What::kAffinity:
      return absl::StrCat("the job is not kept to the processors that the caller may use: ", why,
                          ": its control group has none of them");
  }
  std::string what, option;
  rlimit wanted{};
  for (const KnownLimit& known : kKnownLimits) {
    if (known.number != refused.limit) continue;
    what = known.name;
    option = absl::StrCat(" (ulimit ", known.option, ")");
  }
  for (const auto& [number, limit] : settings.limits) {
    if (number == refused.limit) wanted = limit;
  }
  rlimit own{};
  ExchangeLimit(refused.limit, nullptr, &own);
  return absl::StrCat(
      "the job's limit of ", what, option, " is ", LimitText(std::min(wanted.rlim_cur, own.rlim_max)),
      ", at most ", LimitText(std::min(wanted.rlim_max, own.rlim_max)), ", where the caller's is ",
      LimitText(wanted.rlim_cur), ", at most ", LimitText(wanted.rlim_max), ": ", why,
      ": rekindled has no CAP_SYS_RESOURCE, or the machine allows no more; start rekindled with a "
      "higher limit");
}

}  // namespace rekindle::daemon
