// Real processes whose memory comes through a userfaultfd.
#include "restore/lazy_task.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/packet_socket.h"
#include "base/process_stat.h"
#include "base/test_descriptors.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;

constexpr uint64_t kMemoryPages = 64;
constexpr uint64_t kRoomPages = 2 * kMemoryPages;  // that the job may use
constexpr uint64_t kFeatures =
    UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP;

// What the job's statuses mean.
constexpr int kRight = 0, kWrong = 3, kBroken = 4;

// Where the kernel found room for it: not every address will do under a sanitizer.
uint64_t memory_address = 0;

uint64_t* At(uint64_t page) { return reinterpret_cast<uint64_t*>(memory_address + page * kPageSize); }

// Is each of these pages what the image has of page `image`?
bool Hold(uint64_t first, uint64_t pages, uint64_t image) {
  for (uint64_t i = 0; i < pages; ++i) {
    if (*At(first + i) != image + i + 1) return false;
  }
  return true;
}

bool AreZeros(uint64_t first, uint64_t pages) {
  for (uint64_t i = 0; i < pages; ++i) {
    if (*At(first + i) != 0) return false;
  }
  return true;
}

// What `child` returns, of a forked child.
int InChild(const std::function<int()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child());
  int status = 0;
  if (pid < 0 || ::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return kBroken;
  return WEXITSTATUS(status);
}

class LazyTaskTest : public testing::Test {
 protected:
  void SetUp() override {
    const UniqueFd asked(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
    uffdio_api api{UFFD_API, kFeatures, 0};
    if (!asked.valid() || ::ioctl(asked.get(), UFFDIO_API, &api) != 0) {
      GTEST_SKIP() << "no userfaultfd that tells of forks: " << std::strerror(errno);
    }
    void* room = ::mmap(nullptr, kRoomPages * kPageSize, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(room, MAP_FAILED);
    memory_address = reinterpret_cast<uintptr_t>(room);
  }
  void TearDown() override {
    if (memory_address != 0) ::munmap(At(0), kRoomPages * kPageSize);
    memory_address = 0;
  }

  // Runs `job` in a process of its own, with `kMemoryPages` pages at At(0) that the image has; returns its
  // status.
  int Run(const std::function<int()>& job) {
    auto sockets = PacketSocketPair();
    EXPECT_TRUE(sockets.ok()) << sockets.status();
    const pid_t pid = ::fork();
    if (pid == 0) {
      sockets->first.Reset();
      ::_exit(SendUserfaultfd(sockets->second.get()) && ReceivePacket(sockets->second.get()).ok() ? job()
                                                                                                  : kBroken);
    }
    sockets->second.Reset();
    auto packet = ReceivePacket(sockets->first.get());
    EXPECT_TRUE(packet.ok() && packet->has_value() && (*packet)->descriptors.size() == 1);
    store::StoredRun run;
    run.address = memory_address;
    run.pages = kMemoryPages;
    auto pages = std::make_shared<const TaskPages>(
        std::vector<store::StoredRun>{run},
        std::vector<AddressRange>{{memory_address, memory_address + kMemoryPages * kPageSize}});
    tasks_.push_back(
        std::make_unique<LazyTask>(pid, std::move((*packet)->descriptors.front()), std::move(pages)));
    for (uint64_t i = 0; i < kMemoryPages; ++i) content_[i * kPageSize / sizeof(uint64_t)] = i + 1;
    EXPECT_TRUE(SendPacket(sockets->first.get(), "go").ok());
    if (before_serving_) before_serving_(pid);
    return Serve(pid);
  }

  // Takes the task's events where there are no descriptors.
  void ReadWithoutDescriptors(LazyTask& task) {
    FewDescriptorsLeft none(0);
    auto events = task.ReadEvents();
    ASSERT_TRUE(events.ok()) << events.status();
    EXPECT_TRUE(events->faults.empty() && events->children.empty() && events->lost_children.empty());
  }

  void AwaitEvent(const LazyTask& task) {
    pollfd readable{task.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&readable, 1, 30'000), 1);
  }

  // Takes its events, and gives it what it waits for.
  void Answer(LazyTask& task) {
    std::vector<uint64_t> faults;
    auto take_events = [&] {
      auto events = Read(task);
      ASSERT_TRUE(events.ok()) << events.status();
      for (auto& child : events->children) {
        child->DropUnforked();
        tasks_.push_back(std::move(child));
      }
      faults.insert(faults.end(), events->faults.begin(), events->faults.end());
      if (events->lost_children.empty()) return;
      for (UniqueFd& child : events->lost_children) lost_children_.push_back(std::move(child));
      // The child ends when its descriptor is closed.
      ASSERT_EQ(::kill(task.pid(), SIGKILL), 0);
    };
    take_events();
    for (size_t i = 0; i < faults.size(); ++i) {
      for (int attempt = 0;; ++attempt) {
        const LazyTask::Wanted wanted = task.WhatBelongsAt(faults[i]);
        auto outcome =
            wanted.missing
                ? task.Put(wanted.page, 1,
                           reinterpret_cast<const std::byte*>(content_.data()) + wanted.page * kPageSize)
                : task.PutZero(faults[i]);
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        if (*outcome != LazyTask::Outcome::kChanging) break;
        take_events();
        task.WaitForChange(attempt);
      }
    }
  }

  bool scarce_ = false;  // there are no descriptors until a fork has found none
  std::function<void(pid_t)> before_serving_;
  std::vector<std::unique_ptr<LazyTask>> tasks_;
  std::vector<UniqueFd> lost_children_;

 private:
  static bool SendUserfaultfd(int socket) {
    const UniqueFd userfaultfd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
    uffdio_api api{UFFD_API, kFeatures, 0};
    uffdio_register memory{};
    memory.range = {memory_address, kMemoryPages * kPageSize};
    memory.mode = UFFDIO_REGISTER_MODE_MISSING;
    const int fd = userfaultfd.get();
    return ::mmap(At(0), kMemoryPages * kPageSize, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == At(0) &&
           ::munmap(At(kMemoryPages), (kRoomPages - kMemoryPages) * kPageSize) == 0 &&
           ::ioctl(fd, UFFDIO_API, &api) == 0 && ::ioctl(fd, UFFDIO_REGISTER, &memory) == 0 &&
           SendPacket(socket, "userfaultfd", {&fd, 1}).ok();
  }

  // As the pager does, until the process has ended.
  int Serve(pid_t pid) {
    const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    for (;;) {
      std::vector<pollfd> entries{{ended.get(), POLLIN, 0}};
      for (const auto& task : tasks_) entries.push_back({task->fd(), POLLIN, 0});
      EXPECT_GT(::poll(entries.data(), entries.size(), -1), 0);
      if (entries[0].revents != 0) break;
      for (size_t i = 1; i < entries.size(); ++i) {
        if (entries[i].revents != 0) Answer(*tasks_[i - 1]);
      }
    }
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : kBroken;
  }

  absl::StatusOr<LazyTask::Events> Read(LazyTask& task) {
    if (!scarce_) return task.ReadEvents();
    FewDescriptorsLeft none(0);
    auto events = task.ReadEvents();
    if (task.starved() > absl::ZeroDuration()) scarce_ = false;
    return events;
  }

  std::vector<uint64_t> content_ = std::vector<uint64_t>(kMemoryPages * kPageSize / sizeof(uint64_t));
};

TEST_F(LazyTaskTest, ChildrenHaveWhatIsMissing) {
  EXPECT_EQ(Run([] {
              return InChild([] {
                if (!Hold(3, 1, 3)) return kWrong;
                return InChild([] { return Hold(0, kMemoryPages, 0) ? kRight : kWrong; });
              });
            }),
            kRight);
}

// One area has become several, and some of it lies elsewhere.
TEST_F(LazyTaskTest, ChildrenHaveWhatIsMissingInPiecesAndMoved) {
  EXPECT_EQ(Run([] {
              if (!Hold(7, 1, 7) || ::mprotect(At(20), 3 * kPageSize, PROT_READ) != 0 ||
                  ::munmap(At(30), 2 * kPageSize) != 0 ||
                  ::mremap(At(40), 8 * kPageSize, 8 * kPageSize, MREMAP_MAYMOVE | MREMAP_FIXED,
                           At(kMemoryPages + 5)) == MAP_FAILED) {
                return kBroken;
              }
              return InChild([] {
                return Hold(0, 30, 0) && Hold(32, 8, 32) && Hold(48, kMemoryPages - 48, 48) &&
                               Hold(kMemoryPages + 5, 8, 40)
                           ? kRight
                           : kWrong;
              });
            }),
            kRight);
}

TEST_F(LazyTaskTest, ARunThatHasComeIsNotMissing) {
  EXPECT_EQ(Run([] { return Hold(0, kMemoryPages - 1, 0) ? kRight : kWrong; }), kRight);
  EXPECT_TRUE(tasks_.front()->AnyMissing(0)) << "its last page is";
  tasks_.clear();
  EXPECT_EQ(Run([] { return Hold(0, kMemoryPages, 0) ? kRight : kWrong; }), kRight);
  EXPECT_FALSE(tasks_.front()->AnyMissing(0));
}

TEST_F(LazyTaskTest, AForkWithoutADescriptorWaits) {
  scarce_ = true;
  EXPECT_EQ(LazyTask::count(), 0u);
  EXPECT_EQ(Run([] { return InChild([] { return Hold(0, kMemoryPages, 0) ? kRight : kWrong; }); }), kRight);
  EXPECT_FALSE(scarce_);
  ASSERT_EQ(tasks_.size(), 2u);
  EXPECT_EQ(LazyTask::count(), 2u);
  for (const auto& task : tasks_) EXPECT_EQ(task->starved(), absl::ZeroDuration());
}

TEST_F(LazyTaskTest, OneWhoseForkWasReadIsServedWithoutDescriptors) {
  before_serving_ = [this](pid_t) {
    AwaitEvent(*tasks_.front());
    ReadWithoutDescriptors(*tasks_.front());
    Answer(*tasks_.front());
    ASSERT_EQ(tasks_.size(), 2u) << "its child";
    AwaitEvent(*tasks_.front());
    FewDescriptorsLeft none(0);
    Answer(*tasks_.front());
    EXPECT_EQ(tasks_.front()->missing(), kMemoryPages - 1);
    EXPECT_EQ(tasks_.front()->starved(), absl::ZeroDuration());
  };
  EXPECT_EQ(Run([] {
              const pid_t child = ::fork();
              if (child == 0) ::_exit(kRight);
              return child > 0 && Hold(0, 1, 0) && ::waitpid(child, nullptr, 0) == child ? kRight : kWrong;
            }),
            kRight);
}

// A job that forks in one thread and discards memory in others, each at its turn.
class ForkWithoutADescriptorTest : public LazyTaskTest {
 protected:
  static constexpr uint64_t kFirstDiscarded = 10, kDiscarded = 5, kDiscardedBefore = 30;

  void SetUp() override {
    LazyTaskTest::SetUp();
    for (Turn* turn : {&before_, &fork_, &after_}) ASSERT_TRUE(turn->Make());
  }

  int RunIt() {
    return Run([this] {
      std::thread discards_before([this] {
        if (before_.Await()) ::madvise(At(kDiscardedBefore), kDiscarded * kPageSize, MADV_DONTNEED);
      });
      std::thread discards_after([this] {
        if (after_.Await()) ::madvise(At(kFirstDiscarded), kDiscarded * kPageSize, MADV_DONTNEED);
      });
      if (!fork_.Await()) return kBroken;
      const int child = InChild([] {
        return Hold(0, kDiscardedBefore, 0) &&
                       Hold(kDiscardedBefore + kDiscarded, 20, kDiscardedBefore + kDiscarded)
                   ? kRight
                   : kWrong;
      });
      before_.Skip();
      discards_before.join();
      discards_after.join();
      return child == kRight && !AreZeros(kFirstDiscarded, kDiscarded) ? kWrong : child;
    });
  }

  // A thread of the job goes on when it is told, and then waits for its event to be read.
  class Turn {
   public:
    bool Make() {
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC) != 0) return false;
      from_.Reset(ends[0]);
      to_.Reset(ends[1]);
      return true;
    }
    bool Await() const {
      char byte = 0;
      return ::read(from_.get(), &byte, 1) == 1 && byte == 'g';
    }
    void Give() const { EXPECT_EQ(::write(to_.get(), "g", 1), 1); }
    void Skip() const { EXPECT_EQ(::write(to_.get(), "s", 1), 1); }

   private:
    UniqueFd from_, to_;
  };

  // Until so many threads of the job wait in the kernel where no signal but one that kills reaches them.
  static void AwaitWaiting(pid_t pid, int threads) {
    const Deadline deadline(absl::Seconds(60));
    for (int waiting = -1; waiting != threads; absl::SleepFor(absl::Milliseconds(1))) {
      ASSERT_FALSE(deadline.passed());
      waiting = 0;
      for (const auto& thread : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
        const auto stat = ReadProcessStat(std::stoi(thread.path().filename()));
        ASSERT_TRUE(stat.ok()) << stat.status();
        waiting += stat->state == 'D' ? 1 : 0;
      }
    }
  }

  Turn before_, fork_, after_;
};

// The kernel tells of the fork behind the other event then.
TEST_F(ForkWithoutADescriptorTest, WhatIsDiscardedRightAfterItLosesTheChild) {
  before_serving_ = [this](pid_t pid) {
    fork_.Give();
    AwaitWaiting(pid, 1);
    AwaitEvent(*tasks_.front());  // it may have waited for something else
    after_.Give();
    AwaitWaiting(pid, 2);
    ReadWithoutDescriptors(*tasks_.front());
    EXPECT_GT(tasks_.front()->starved(), absl::ZeroDuration());
  };
  EXPECT_EQ(RunIt(), kBroken) << "killed";
  EXPECT_EQ(lost_children_.size(), 1u);
}

// Nor does it go unnoticed behind an event that was there before it.
TEST_F(ForkWithoutADescriptorTest, BehindAnotherEventItIsNotedToo) {
  before_serving_ = [this](pid_t pid) {
    before_.Give();
    AwaitWaiting(pid, 1);
    AwaitEvent(*tasks_.front());  // it may have waited for something else
    fork_.Give();
    AwaitWaiting(pid, 2);
    after_.Give();
    AwaitWaiting(pid, 3);
    ReadWithoutDescriptors(*tasks_.front());
    EXPECT_GT(tasks_.front()->starved(), absl::ZeroDuration());
  };
  EXPECT_EQ(RunIt(), kBroken) << "killed";
  EXPECT_EQ(lost_children_.size(), 1u);
}

TEST_F(ForkWithoutADescriptorTest, WhatIsDiscardedWhileItWaitsComesAfterIt) {
  before_serving_ = [this](pid_t pid) {
    fork_.Give();
    AwaitWaiting(pid, 1);
    AwaitEvent(*tasks_.front());  // it may have waited for something else
    ReadWithoutDescriptors(*tasks_.front());
    EXPECT_GT(tasks_.front()->starved(), absl::ZeroDuration());
    after_.Give();
    AwaitWaiting(pid, 2);
    ReadWithoutDescriptors(*tasks_.front());
    EXPECT_GT(tasks_.front()->starved(), absl::ZeroDuration());
  };
  EXPECT_EQ(RunIt(), kRight);
  EXPECT_TRUE(lost_children_.empty());
}

// No event tells of memory that grows where it is, or of memory that children do not get.
TEST_F(LazyTaskTest, WhatGrowsIntoMemoryThatTheChildDidNotGetIsZeros) {
  EXPECT_EQ(Run([] {
              if (::madvise(At(17), 30 * kPageSize, MADV_DONTFORK) != 0) return kBroken;
              const int child = InChild([] {
                // Answered once the fork was dealt with: a child that is faster than that is not told apart.
                if (!Hold(0, 1, 0)) return kWrong;
                if (::mremap(At(16), kPageSize, 31 * kPageSize, 0) != At(16)) return kBroken;
                return AreZeros(17, 30) && Hold(0, 17, 0) && Hold(47, kMemoryPages - 47, 47) ? kRight
                                                                                             : kWrong;
              });
              return child == kRight && !Hold(0, kMemoryPages, 0) ? kWrong : child;
            }),
            kRight);
}

}  // namespace
}  // namespace rekindle::restore
