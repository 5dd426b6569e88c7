#include "daemon/process_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "base/oom_score.h"
#include "base/pidfd.h"

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;

// A child that has done `first` and waits.
class WaitingChild {
 public:
  explicit WaitingChild(const std::function<bool()>& first) {
    int ready[2];
    if (::pipe(ready) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const char answer = first() ? 'y' : 'n';
      if (::write(ready[1], &answer, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char answer = 'n';
    done_ = ::read(ready[0], &answer, 1) == 1 && answer == 'y';
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~WaitingChild() { End(); }
  void End() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }
  bool done() const { return done_; }

 private:
  pid_t pid_ = 0;
  bool done_ = false;
};

bool SetUnusual() {
  const rlimit cores = {0, 4096};
  cpu_set_t own, one;
  if (::sched_getaffinity(0, sizeof own, &own) != 0) return false;
  CPU_ZERO(&one);
  for (int i = CPU_SETSIZE - 1; i >= 0; --i) {
    if (!CPU_ISSET(i, &own)) continue;
    CPU_SET(i, &one);
    break;
  }
  ::umask(027);
  sched_param batch{};
  return ::setrlimit(RLIMIT_CORE, &cores) == 0 && ::setpriority(PRIO_PROCESS, 0, 7) == 0 &&
         ::sched_setaffinity(0, sizeof one, &one) == 0 && ::sched_setscheduler(0, SCHED_BATCH, &batch) == 0 &&
         TakeOnOomScore(987);
}

rlimit LimitOf(const ProcessSettings& settings, int number) {
  for (const auto& [known, limit] : settings.limits) {
    if (known == number) return limit;
  }
  return {1, 2};
}

void ExpectSame(const ProcessSettings& a, const ProcessSettings& b) {
  EXPECT_EQ(a.file_mode_mask, b.file_mode_mask);
  EXPECT_EQ(a.nice, b.nice);
  EXPECT_EQ(a.policy, b.policy);
  EXPECT_EQ(a.priority, b.priority);
  EXPECT_EQ(a.affinity_mask, b.affinity_mask);
  EXPECT_EQ(a.limits.size(), b.limits.size());
  for (const auto& [number, limit] : a.limits) {
    EXPECT_EQ(limit.rlim_cur, LimitOf(b, number).rlim_cur) << number;
    EXPECT_EQ(limit.rlim_max, LimitOf(b, number).rlim_max) << number;
  }
}

TEST(ProcessSettings, WhatOneProcessHasAnotherTakesOn) {
  const WaitingChild from(&SetUnusual);
  ASSERT_TRUE(from.done());
  const auto wanted = ReadProcessSettings(from.pid());
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  EXPECT_EQ(wanted->file_mode_mask, 027u);
  EXPECT_EQ(wanted->nice, 7);
  EXPECT_EQ(wanted->policy, SCHED_BATCH);
  EXPECT_EQ(wanted->oom_score_adj, 987);
  EXPECT_EQ(wanted->limits.size(), 16u);
  EXPECT_EQ(LimitOf(*wanted, RLIMIT_CORE).rlim_cur, 0u);
  EXPECT_EQ(LimitOf(*wanted, RLIMIT_CORE).rlim_max, 4096u);
  rlimit own;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &own), 0);
  EXPECT_EQ(LimitOf(*wanted, RLIMIT_NOFILE).rlim_cur, own.rlim_cur);

  const ProcessSettings recorded = FromProto(ToProto(*wanted));
  ExpectSame(recorded, *wanted);
  EXPECT_EQ(recorded.oom_score_adj, 987);
  const WaitingChild to([&recorded] {
    std::array<RefusedSetting, kMostRefused> refused;
    ::umask(recorded.file_mode_mask);
    return TakeOnSettings(recorded, &refused) == 0;
  });
  ASSERT_TRUE(to.done());
  const auto has = ReadProcessSettings(to.pid());
  ASSERT_TRUE(has.ok()) << has.status();
  ExpectSame(*has, *wanted);
}

TEST(ProcessSettings, ALimitThatIsRefusedIsAsHighAsItCanBe) {
  // All else as it is: what is run by `nice` may not take on a lower value.
  auto own = ReadProcessSettings(::getpid());
  ASSERT_TRUE(own.ok()) << own.status();
  ProcessSettings wanted = *std::move(own);
  wanted.limits = {{RLIMIT_CORE, {300, 400}}};
  const WaitingChild child([&wanted] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
    const rlimit lower = {100, 350};
    if (::setrlimit(RLIMIT_CORE, &lower) != 0 || ::syscall(SYS_capset, &header, none) != 0) return false;
    std::array<RefusedSetting, kMostRefused> refused;
    return TakeOnSettings(wanted, &refused) == 1 && refused[0].what == RefusedSetting::What::kLimit &&
           refused[0].limit == RLIMIT_CORE && refused[0].error == EPERM;
  });
  ASSERT_TRUE(child.done());
  const auto has = ReadProcessSettings(child.pid());
  ASSERT_TRUE(has.ok()) << has.status();
  EXPECT_EQ(LimitOf(*has, RLIMIT_CORE).rlim_cur, 300u);
  EXPECT_EQ(LimitOf(*has, RLIMIT_CORE).rlim_max, 350u);

  const std::string told = DescribeRefused({RefusedSetting::What::kLimit, RLIMIT_CORE, EPERM}, wanted);
  EXPECT_THAT(told, HasSubstr("core file size (ulimit -c)"));
  EXPECT_THAT(told, HasSubstr("300, at most 400"));
  EXPECT_THAT(told, HasSubstr("CAP_SYS_RESOURCE"));
}

TEST(ProcessSettings, OfCallersThatCanBeSeen) {
  WaitingChild child(&SetUnusual);
  ASSERT_TRUE(child.done());
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = ::geteuid();
  std::string why;
  auto settings = SettingsOfCaller(caller, &why);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_FALSE(settings->has_value());
  EXPECT_THAT(why, HasSubstr("PID namespace"));

  caller.pid = child.pid();
  auto pidfd = OpenProcess(child.pid());
  ASSERT_TRUE(pidfd.ok()) << pidfd.status();
  caller.pidfd = std::make_shared<const UniqueFd>(*std::move(pidfd));
  why.clear();
  settings = SettingsOfCaller(caller, &why);
  ASSERT_TRUE(settings.ok() && settings->has_value()) << settings.status();
  EXPECT_EQ((*settings)->nice, 7);
  EXPECT_EQ(why, "");

  child.End();
  EXPECT_TRUE(absl::IsCancelled(SettingsOfCaller(caller, &why).status()));
  // Its number may be another's by now.
  caller.pid = ::getpid();
  EXPECT_TRUE(absl::IsCancelled(SettingsOfCaller(caller, &why).status()));
}

}  // namespace
}  // namespace rekindle::daemon
