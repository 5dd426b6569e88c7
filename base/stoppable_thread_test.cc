#include "base/stoppable_thread.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "absl/synchronization/notification.h"
#include "base/process_stat.h"
#include "base/test_descriptors.h"
#include "base/unique_fd.h"

namespace rekindle {
namespace {

using Woken = StoppableThread::Woken;

TEST(StoppableThreadTest, ItWaitsForADescriptorUntilItIsStopped) {
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  absl::Notification seen;
  std::atomic<bool> stopped{false};
  StoppableThread thread;
  ASSERT_TRUE(thread
                  .Start([&] {
                    for (auto woken = thread.Await(event.get()); woken.ok();
                         woken = thread.Await(event.get())) {
                      if (*woken == Woken::kStopped) {
                        stopped = true;
                        return;
                      }
                      eventfd_t value;
                      ::eventfd_read(event.get(), &value);
                      seen.Notify();
                    }
                  })
                  .ok());
  ::eventfd_write(event.get(), 1);
  seen.WaitForNotification();
  EXPECT_FALSE(stopped);
  thread.Stop();
  EXPECT_TRUE(stopped);
  EXPECT_FALSE(thread.running());
}

TEST(StoppableThreadTest, TimeEndsAWaitAndWhatWasStoppedPausesNoMore) {
  StoppableThread thread;
  std::atomic<bool> paused{false}, went_on{false};
  absl::StatusOr<Woken> woken = Woken::kReady;
  absl::Notification late;
  ASSERT_TRUE(thread
                  .Start([&] {
                    paused = thread.Pause(absl::Milliseconds(1));
                    woken = thread.Await(-1, absl::Milliseconds(1));
                    late.Notify();
                    went_on = thread.Pause(absl::InfiniteDuration());
                  })
                  .ok());
  late.WaitForNotification();
  thread.Stop();
  EXPECT_TRUE(paused);
  EXPECT_EQ(woken.value(), Woken::kTimeIsUp);
  EXPECT_FALSE(went_on);
}

std::atomic<int> signals_taken{0};

TEST(StoppableThreadTest, ASignalEndsNoWait) {
  struct sigaction counted = {}, before;
  counted.sa_handler = [](int) { ++signals_taken; };
  ASSERT_EQ(::sigaction(SIGUSR1, &counted, &before), 0);
  std::atomic<pid_t> waiter{0};
  absl::StatusOr<Woken> woken = Woken::kTimeIsUp;
  StoppableThread thread;
  ASSERT_TRUE(thread
                  .Start([&] {
                    waiter = ::gettid();
                    woken = thread.Await(-1);
                  })
                  .ok());
  while (waiter == 0) ::sched_yield();
  while (ReadProcessStat(waiter).value().state != 'S') ::sched_yield();
  ASSERT_EQ(::syscall(SYS_tgkill, ::getpid(), waiter.load(), SIGUSR1), 0);
  while (signals_taken == 0) ::sched_yield();
  thread.Stop();
  ASSERT_TRUE(woken.ok()) << woken.status();
  EXPECT_EQ(*woken, Woken::kStopped);
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST(StoppableThreadTest, WithoutADescriptorLeftNoneIsStarted) {
  StoppableThread thread;
  absl::Status started;
  {
    const FewDescriptorsLeft none;
    started = thread.Start([] {});
  }
  EXPECT_TRUE(absl::IsResourceExhausted(started)) << started;
  EXPECT_FALSE(thread.running());
  thread.Stop();
}

}  // namespace
}  // namespace rekindle
