// With the real keeper program, on real threads.
#include "gpu_state/keeper_client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "gpu_state/thread_watch.h"

namespace rekindle::gpu {
namespace {

constexpr size_t kThreads = 3;
constexpr size_t kPage = 4096, kHugePage = 2 << 20;
constexpr absl::Duration kPatience = absl::Seconds(30);

bool Until(const std::function<bool()>& there) {
  const absl::Time end = absl::Now() + kPatience;
  while (!there()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

bool Ended(pid_t pid) {
  const auto stat = ReadProcessStat(pid);
  return !stat.ok() || stat->ending();
}

// What the threads of the process do and have done.
struct Shared {
  struct Of {
    std::atomic<pid_t> id;
    std::atomic<uint64_t> rounds;
    std::atomic<bool> touches, polls, maps, leaves;  // what it is to do in its next round
    std::atomic<char*> mapped;
  };
  Of threads[kThreads];
  std::atomic<int> signals;
  std::atomic<char*> forbidden;  // of a device
  std::atomic<char*> safepoint;  // the program's own
  std::atomic<bool> allow;
  std::atomic<bool> take_out, leave_hole;  // the device's memory
};
Shared* shared = nullptr;

void* Rounds(void* of) {
  auto& mine = *static_cast<Shared::Of*>(of);
  mine.id = static_cast<pid_t>(::syscall(SYS_gettid));
  for (;;) {
    ++mine.rounds;
    if (mine.touches.exchange(false)) *static_cast<volatile char*>(shared->forbidden) = 1;
    if (mine.polls.exchange(false)) *static_cast<volatile char*>(shared->safepoint) = 1;
    if (mine.maps.exchange(false)) {
      mine.mapped = static_cast<char*>(::mmap(nullptr, 8 * kHugePage, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    }
    if (mine.leaves.exchange(false)) ::syscall(SYS_exit, 0);
    if (shared->allow.exchange(false)) {
      ::mmap(shared->forbidden, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
             0);
    }
    if (shared->take_out.exchange(false)) {
      ::mmap(shared->forbidden, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
    if (shared->leave_hole.exchange(false)) ::munmap(shared->forbidden, kPage);
    ::sched_yield();
  }
}

class KeeperClientTest : public testing::Test {
 protected:
  void SetUp() override {
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared = new (memory) Shared();
    ASSERT_TRUE(MakeDirectories(folder_.path() + "/dev").ok());
    ASSERT_TRUE(WriteFileAtomically(device_, std::string(kPage, '\0')).ok());
    pid_ = ::fork();
    ASSERT_GE(pid_, 0);
    if (pid_ == 0) Live();
    for (Shared::Of& thread : shared->threads) {
      ASSERT_TRUE(Until([&] { return thread.rounds > 0; }));
    }
  }

  void TearDown() override {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::munmap(shared, sizeof(Shared));
  }

  [[noreturn]] void Live() const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!huge_pages_) ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    ::signal(SIGUSR2, [](int) { ++shared->signals; });
    // A runtime that stops its threads by a page that can't be touched.
    struct sigaction action = {};
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      if (info->si_addr != shared->safepoint) ::_exit(1);
      ::mprotect(shared->safepoint, kPage, PROT_READ | PROT_WRITE);
      ++shared->signals;
    };
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, nullptr);
    shared->safepoint =
        static_cast<char*>(::mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const UniqueFd device = OpenFile(device_, O_RDWR).value();
    shared->forbidden = static_cast<char*>(::mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE, device.get(), 0));
    for (size_t i = 1; i < kThreads; ++i) {
      pthread_t thread;
      if (::pthread_create(&thread, nullptr, Rounds, &shared->threads[i]) != 0) ::_exit(1);
    }
    Rounds(&shared->threads[0]);
    ::_exit(0);
  }

  static pid_t Thread(size_t i) { return shared->threads[i].id; }

  std::string Status(size_t i) const {
    return ReadFile(absl::StrCat("/proc/", pid_, "/task/", Thread(i), "/status")).value_or("");
  }
  pid_t Tracer(size_t i) const {
    pid_t tracer = -1;
    return absl::SimpleAtoi(StatusField(Status(i), "TracerPid"), &tracer) ? tracer : -1;
  }
  bool Stands(size_t i) const { return absl::StartsWith(StatusField(Status(i), "State"), "t"); }
  bool AllStand() const {
    for (size_t i = 0; i < kThreads; ++i) {
      if (!Stands(i)) return false;
    }
    return true;
  }
  static bool GoesOn(size_t i) {
    const uint64_t rounds = shared->threads[i].rounds;
    return Until([&] { return shared->threads[i].rounds > rounds; });
  }
  // All of them, and nobody traces them.
  bool AreFree() const {
    for (size_t i = 0; i < kThreads; ++i) {
      if (!GoesOn(i) || Tracer(i) != 0) return false;
    }
    return true;
  }

  std::unique_ptr<ThreadKeeper> Held() const {
    auto keeper = ThreadKeeper::Hold({pid_});
    EXPECT_TRUE(keeper.ok()) << keeper.status();
    return keeper.ok() ? *std::move(keeper) : nullptr;
  }
  // The thread that runs maps 8 huge pages.
  static char* Maps(size_t i) {
    shared->threads[i].mapped = nullptr;
    shared->threads[i].maps = true;
    EXPECT_TRUE(Until([i] { return shared->threads[i].mapped != nullptr; }));
    return shared->threads[i].mapped;
  }
  bool IsToBeOfHugePages(const char* address) const {
    const std::string maps = ReadFile(absl::StrCat("/proc/", pid_, "/smaps")).value();
    bool inside = false;
    for (const absl::string_view line : absl::StrSplit(maps, '\n')) {
      uint64_t start = 0, end = 0;
      const std::pair<absl::string_view, absl::string_view> range =
          absl::StrSplit(line.substr(0, line.find(' ')), absl::MaxSplits('-', 1));
      if (absl::SimpleHexAtoi(range.first, &start) && absl::SimpleHexAtoi(range.second, &end)) {
        const auto wanted = reinterpret_cast<uintptr_t>(address);
        inside = wanted >= start && wanted < end;
      } else if (inside && absl::StartsWith(line, "VmFlags:")) {
        return absl::StrContains(line, " hg");
      }
    }
    ADD_FAILURE() << "nothing is mapped there";
    return false;
  }

  // The process that watches it from now on.
  pid_t Watched() const {
    EXPECT_TRUE(Held()->Watch().ok());
    EXPECT_TRUE(Until([&] { return ThreadKeeper::IsWatched(pid_); }));
    return Tracer(0);
  }

  // A watch of an older Rekindle over the process, until it lets go. `by_one`: its numbers from kKeeperRun on
  // are greater by that.
  class OldWatch {
   public:
    OldWatch(KeeperClientTest& test, uint32_t by_one) : threads_{Thread(0), Thread(1), Thread(2)} {
      int ready[2];
      EXPECT_EQ(::pipe(ready), 0);
      pid_ = ::fork();
      if (pid_ == 0) Live(by_one, ready[1]);
      ::close(ready[1]);
      char any;
      EXPECT_EQ(::read(ready[0], &any, 1), 1);
      ::close(ready[0]);
      EXPECT_EQ(test.Tracer(0), pid_);
      EXPECT_TRUE(ThreadKeeper::IsWatched(test.pid_));
    }
    ~OldWatch() {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    pid_t pid() const { return pid_; }

   private:
    [[noreturn]] void Live(uint32_t by_one, int ready) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      sigset_t let_go;
      sigemptyset(&let_go);
      sigaddset(&let_go, SIGUSR1);
      sigprocmask(SIG_BLOCK, &let_go, nullptr);
      for (pid_t thread : threads_) ::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr);
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) ::_exit(1);
      ::dup2(ends[1], WATCH_PEER);
      ::close(ends[1]);
      ::prctl(PR_SET_NAME, WATCH_NAME);
      if (::write(ready, "", 1) != 1) ::_exit(1);
      bool stopped = false;
      KeeperMessage message;
      while (::recv(ends[0], &message, sizeof message, 0) == sizeof message) {
        ::close(WATCH_PEER);
        if (message.what == kKeeperHold) {
          ::prctl(PR_SET_NAME, KEEPER_PROGRAM);
          if (!std::exchange(stopped, true)) Stop();
          message = {kKeeperStands + by_one, 0, 0, 0};
          ::send(ends[0], &message, sizeof message, 0);
        } else if (message.what == kKeeperEnd + by_one) {
          Go(PTRACE_DETACH);
          ::_exit(0);
        } else {
          break;
        }
      }
      ::prctl(PR_SET_NAME, WATCH_NAME);
      Go(PTRACE_CONT);
      ::close(ends[0]);
      int number = 0;
      sigwait(&let_go, &number);
      Stop();
      Go(PTRACE_DETACH);
      ::_exit(0);
    }
    void Stop() {
      for (pid_t thread : threads_) {
        if (::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0) ::waitpid(thread, nullptr, __WALL);
      }
    }
    template <typename Request>
    void Go(Request request) {
      for (pid_t thread : threads_) ::ptrace(request, thread, nullptr, nullptr);
    }

    const pid_t threads_[kThreads];
    pid_t pid_ = 0;
  };

  // Another process in the place of the fixture's, which stays `first`, until this goes.
  struct Second {
    explicit Second(KeeperClientTest& in) : test(in) { test.SetUp(); }
    ~Second() {
      test.TearDown();
      test.pid_ = first;
      shared = of_first;
    }
    KeeperClientTest& test;
    const pid_t first = test.pid_;
    Shared* const of_first = shared;
  };

  TemporaryDirectory folder_ = *TemporaryDirectory::Make("/tmp", "keeper-test-");
  const std::string device_ = folder_.path() + "/dev/nvidia0";
  bool huge_pages_ = true;  // may the process have any?
  pid_t pid_ = 0;
};

TEST_F(KeeperClientTest, AllThreadsStandStillUntilItGoes) {
  {
    auto keeper = Held();
    EXPECT_TRUE(AllStand());
    EXPECT_FALSE(ThreadKeeper::IsWatched(pid_));
  }
  EXPECT_TRUE(AreFree());
}

TEST_F(KeeperClientTest, ANamedThreadRunsAlone) {
  auto keeper = Held();
  ASSERT_TRUE(keeper->Run({{pid_, Thread(1)}}, false).ok());
  EXPECT_TRUE(GoesOn(1));
  EXPECT_TRUE(Stands(0));
  EXPECT_TRUE(Stands(2));
  ASSERT_TRUE(keeper->Pause().ok());
  EXPECT_TRUE(AllStand());
  // Once more, and it need not be paused before the end.
  ASSERT_TRUE(keeper->Run({{pid_, Thread(1)}}, false).ok());
  EXPECT_TRUE(GoesOn(1));
  keeper.reset();
  EXPECT_TRUE(AreFree());
}

TEST_F(KeeperClientTest, AThreadThatIsNotHeldIsNotRun) {
  auto keeper = Held();
  const absl::Status status = keeper->Run({{::getpid(), ::getpid()}}, false);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  // That harms nobody.
  ASSERT_TRUE(keeper->Run({{pid_, Thread(1)}}, false).ok());
  ASSERT_TRUE(keeper->Pause().ok());
}

TEST_F(KeeperClientTest, SignalsAreHeldBackAndNotLost) {
  {
    auto keeper = Held();
    ::syscall(SYS_tgkill, pid_, Thread(1), SIGUSR2);
    ASSERT_TRUE(keeper->Run({{pid_, Thread(1)}}, false).ok());
    EXPECT_TRUE(GoesOn(1));
    EXPECT_EQ(shared->signals, 0);
    ASSERT_TRUE(keeper->Pause().ok());
  }
  EXPECT_TRUE(Until([] { return shared->signals == 1; }));
}

TEST_F(KeeperClientTest, MemoryForDeviceStateIsOfHugePages) {
  auto keeper = Held();
  ASSERT_TRUE(keeper->Run({{pid_, Thread(1)}}, true).ok());
  for (int times = 0; times < 3; ++times) EXPECT_TRUE(IsToBeOfHugePages(Maps(1)));
  ASSERT_TRUE(keeper->Pause().ok());
}

TEST_F(KeeperClientTest, BeyondWhatIsOnTheDeviceNothingIsLookedFor) {
#ifdef __SANITIZE_THREAD__
  constexpr bool kChecked = true;
#elif defined(__has_feature)
  constexpr bool kChecked = __has_feature(thread_sanitizer);
#else
  constexpr bool kChecked = false;
#endif
  if (kChecked) GTEST_SKIP() << "ThreadSanitizer maps memory of its own with each mapping, which counts, too";
  auto keeper = Held();
  for (int times = 0; times < 2; ++times) {
    ASSERT_TRUE(keeper->Run({{pid_, Thread(1), 16 * kHugePage}}, true).ok());
    EXPECT_TRUE(IsToBeOfHugePages(Maps(1)));
    EXPECT_TRUE(IsToBeOfHugePages(Maps(1)));
    // Its system calls are its own again: that costs it nothing, and it can be paused all the same.
    EXPECT_FALSE(IsToBeOfHugePages(Maps(1)));
    EXPECT_TRUE(GoesOn(1));
    ASSERT_TRUE(keeper->Pause().ok());
    EXPECT_TRUE(AllStand());
  }
  keeper.reset();
  EXPECT_TRUE(AreFree());
}

TEST_F(KeeperClientTest, HugePagesCanBeSwitchedOff) {
  ASSERT_EQ(::setenv("REKINDLE_GPU_HUGE_PAGES", "0", 1), 0);
  auto keeper = Held();
  const absl::Status runs = keeper->Run({{pid_, Thread(1)}}, true);
  ::unsetenv("REKINDLE_GPU_HUGE_PAGES");
  ASSERT_TRUE(runs.ok()) << runs;
  EXPECT_FALSE(IsToBeOfHugePages(Maps(1)));
  ASSERT_TRUE(keeper->Pause().ok());
}

// Advice is taken there too, and then one page of each 512 would have been made.
TEST_F(KeeperClientTest, WhereAProcessCanHaveNoHugePagesTheDriversRequestStays) {
  huge_pages_ = false;
  Second second(*this);
  auto keeper = Held();
  ASSERT_TRUE(keeper->Run({{pid_, Thread(1)}}, true).ok());
  EXPECT_FALSE(IsToBeOfHugePages(Maps(1)));
  ASSERT_TRUE(keeper->Pause().ok());
}

TEST_F(KeeperClientTest, WhoWatchesHoldsAgainWithoutLettingGo) {
  const pid_t watch = Watched();
  for (size_t i = 0; i < kThreads; ++i) EXPECT_TRUE(GoesOn(i));
  for (int times = 0; times < 3; ++times) {
    auto keeper = Held();
    EXPECT_TRUE(AllStand());
    EXPECT_EQ(Tracer(0), watch);
    EXPECT_FALSE(ThreadKeeper::IsWatched(pid_));
    ASSERT_TRUE(keeper->Run({{pid_, Thread(1)}}, false).ok());
    EXPECT_TRUE(GoesOn(1));
    ASSERT_TRUE(keeper->Pause().ok());
    ASSERT_TRUE(keeper->Watch().ok());
    keeper.reset();
    EXPECT_TRUE(ThreadKeeper::IsWatched(pid_));
    for (size_t i = 0; i < kThreads; ++i) EXPECT_TRUE(GoesOn(i));
  }
  Held();
  EXPECT_TRUE(AreFree());
  EXPECT_TRUE(Until([&] { return Ended(watch); }));
}

TEST_F(KeeperClientTest, AWatchKeepsANoteUntilItsEnd) {
  EXPECT_EQ(ThreadKeeper::NoteOver(pid_), "");
  EXPECT_TRUE(Held()->Watch("a longer note").ok());
  EXPECT_EQ(ThreadKeeper::NoteOver(pid_), "a longer note");
  {
    auto keeper = Held();
    EXPECT_EQ(ThreadKeeper::NoteOver(pid_), "") << "it is not watched just now";
    EXPECT_TRUE(keeper->Watch("a note").ok());
  }
  EXPECT_EQ(ThreadKeeper::NoteOver(pid_), "a note");
  const std::vector<pid_t> watchers = ThreadKeeper::Watchers();
  EXPECT_TRUE(absl::c_any_of(watchers, [](pid_t pid) { return ThreadKeeper::NoteOf(pid) == "a note"; }));
  Held()->End(/*well=*/true);
  EXPECT_EQ(ThreadKeeper::NoteOver(pid_), "");
  EXPECT_EQ(ThreadKeeper::NoteOf(::getpid()), "") << "it watches nobody";
}

TEST_F(KeeperClientTest, OfTwoWatchedProcessesOneCanBeLetGo) {
  Second second(*this);
  EXPECT_TRUE((*ThreadKeeper::Hold({second.first, pid_}))->Watch().ok());
  EXPECT_TRUE(ThreadKeeper::IsWatched(second.first));
  EXPECT_TRUE(ThreadKeeper::IsWatched(pid_));
  Held();
  EXPECT_TRUE(AreFree());
  EXPECT_TRUE(ThreadKeeper::IsWatched(second.first));
  const uint64_t rounds = second.of_first->threads[0].rounds;
  EXPECT_TRUE(Until([&] { return second.of_first->threads[0].rounds > rounds; }));
}

TEST_F(KeeperClientTest, AnOlderWatchThatKnowsOurWordsHolds) {
  const DeviceAreas areas = {{pid_, DeviceAreasOf(pid_)}};
  shared->take_out = true;
  ASSERT_TRUE(Until([&] { return DeviceAreasOf(pid_).empty(); }));
  const OldWatch watch(*this, 0);
  auto keeper = ThreadKeeper::Hold({pid_}, areas);
  ASSERT_TRUE(keeper.ok()) << keeper.status();
  EXPECT_TRUE(AllStand());
  EXPECT_EQ(Tracer(0), watch.pid());
  (*keeper)->End(/*well=*/true);
  keeper->reset();
  EXPECT_TRUE(AreFree());
}

TEST_F(KeeperClientTest, AWatchWhoseWordsAreOthersIsLetGoAndAnotherTakesItsPlace) {
  const OldWatch watch(*this, 1);
  auto keeper = ThreadKeeper::Hold({pid_});
  ASSERT_TRUE(keeper.ok()) << keeper.status();
  EXPECT_TRUE(AllStand());
  EXPECT_NE(Tracer(0), watch.pid());
  ASSERT_TRUE((*keeper)->Run({{pid_, Thread(1)}}, false).ok());
  EXPECT_TRUE(GoesOn(1));
  ASSERT_TRUE((*keeper)->Pause().ok());
  keeper->reset();
  EXPECT_TRUE(AreFree());
}

TEST_F(KeeperClientTest, AThreadThatNeedsMissingMemoryStandsUntilItIsThere) {
  Watched();
  shared->threads[1].touches = true;
  ASSERT_TRUE(Until([&] { return Stands(1); }));
  EXPECT_TRUE(GoesOn(0));
  // Held and watched again: it stands all the time.
  EXPECT_TRUE(Held()->Watch().ok());
  EXPECT_TRUE(Stands(1));
  // Let go, with the others.
  Held();
  EXPECT_TRUE(ThreadKeeper::WaitsForMemory(pid_));
  EXPECT_TRUE(Stands(1));
  EXPECT_TRUE(GoesOn(0));
  EXPECT_EQ(Tracer(0), 0);
  // Held again, by whoever has that one.
  Held();
  EXPECT_TRUE(Stands(1));
  EXPECT_TRUE(GoesOn(2));
  shared->allow = true;
  EXPECT_TRUE(AreFree());
}

// As after an image of a parked job: nothing in the process tells any more where device memory was.
TEST_F(KeeperClientTest, ANewWatchIsToldWhereDeviceMemoryWas) {
  const DeviceAreas areas = {{pid_, DeviceAreasOf(pid_)}};
  ASSERT_EQ(areas.at(pid_).size(), 1u);
  EXPECT_EQ(areas.at(pid_)[0].address, reinterpret_cast<uintptr_t>(shared->forbidden.load()));
  shared->take_out = true;
  ASSERT_TRUE(Until([&] { return DeviceAreasOf(pid_).empty(); }));
  auto keeper = ThreadKeeper::Hold({pid_}, areas);
  ASSERT_TRUE(keeper.ok()) << keeper.status();
  EXPECT_TRUE((*keeper)->Watch().ok());
  EXPECT_TRUE(GoesOn(1));  // from here on it stands for its memory only
  shared->threads[1].touches = true;
  ASSERT_TRUE(Until([&] { return Stands(1); }));
  EXPECT_TRUE(GoesOn(0));
  shared->allow = true;
  EXPECT_TRUE(GoesOn(1));
}

TEST_F(KeeperClientTest, MemoryOfADeviceMayLeaveAHole) {
  Watched();
  shared->leave_hole = true;
  ASSERT_TRUE(Until([&] { return DeviceAreasOf(pid_).empty(); }));
  EXPECT_TRUE(GoesOn(1));
  shared->threads[1].touches = true;
  ASSERT_TRUE(Until([&] { return Stands(1); }));
  EXPECT_TRUE(Held()->Watch().ok());
  EXPECT_TRUE(Stands(1));
  EXPECT_TRUE(GoesOn(0));
  shared->allow = true;
  EXPECT_TRUE(GoesOn(1));
}

TEST_F(KeeperClientTest, WithTheMemoryBackAThreadGetsTheSignalOfWhatIsMissingStill) {
  Watched();
  shared->threads[1].touches = true;
  ASSERT_TRUE(Until([&] { return Stands(1); }));
  Held()->End(/*well=*/true);
  EXPECT_TRUE(Until([&] { return Ended(pid_); }));
}

TEST_F(KeeperClientTest, ARuntimesOwnPagesAreItsOwnBusiness) {
  Watched();
  shared->threads[1].polls = true;
  EXPECT_TRUE(Until([] { return shared->signals == 1; }));
  EXPECT_TRUE(GoesOn(1));
}

TEST_F(KeeperClientTest, SegmentationFaultsOfAnotherKindEndIt) {
  shared->forbidden = nullptr;
  Watched();
  shared->threads[1].touches = true;
  EXPECT_TRUE(Until([&] { return Ended(pid_); }));
}

TEST_F(KeeperClientTest, AStoppedProcessStaysSo) {
  Second second(*this);
  EXPECT_TRUE((*ThreadKeeper::Hold({second.first, pid_}))->Watch().ok());
  ASSERT_EQ(::kill(pid_, SIGSTOP), 0);
  ASSERT_TRUE(Until([&] { return Stands(0) && Stands(1) && Stands(2); }));
  const uint64_t rounds = shared->threads[0].rounds;
  // The other one is held, and let go.
  EXPECT_TRUE(ThreadKeeper::Hold({second.first}).ok());
  const uint64_t of_other = second.of_first->threads[0].rounds;
  EXPECT_TRUE(Until([&] { return second.of_first->threads[0].rounds > of_other + 100; }));
  EXPECT_EQ(shared->threads[0].rounds, rounds);
  ASSERT_EQ(::kill(pid_, SIGCONT), 0);
  EXPECT_TRUE(GoesOn(0));
}

TEST_F(KeeperClientTest, ADeadProcessKeepsNobodyFromRunning) {
  const pid_t thread = Thread(1);
  Second second(*this);
  auto keeper = ThreadKeeper::Hold({second.first, pid_});
  ASSERT_TRUE(keeper.ok()) << keeper.status();
  ASSERT_EQ(::kill(second.first, SIGKILL), 0);
  ASSERT_TRUE(Until([&] { return Ended(second.first); }));
  EXPECT_TRUE((*keeper)->Run({{second.first, thread}, {pid_, Thread(1)}}, false).ok());
  EXPECT_TRUE(GoesOn(1));
  keeper->reset();
}

TEST_F(KeeperClientTest, AProcessWhoseFirstThreadHasEnded) {
  Watched();
  shared->threads[0].leaves = true;
  ASSERT_TRUE(Until([&] { return absl::StartsWith(StatusField(Status(0), "State"), "Z"); }));
  {
    auto keeper = Held();
    ASSERT_NE(keeper, nullptr);
    EXPECT_TRUE(Stands(1));
    EXPECT_TRUE(Stands(2));
  }
  EXPECT_TRUE(GoesOn(1));
  EXPECT_EQ(Tracer(1), 0);
}

TEST_F(KeeperClientTest, WithoutWhoHoldsThemTheyAreWatched) {
  const pid_t holder = ::fork();
  if (holder == 0) {
    auto keeper = ThreadKeeper::Hold({pid_});
    ::_exit(keeper.ok() ? 0 : 1);  // as if it were killed
  }
  int status = 0;
  ASSERT_EQ(::waitpid(holder, &status, 0), holder);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(Until([&] { return ThreadKeeper::IsWatched(pid_); }));
  for (size_t i = 0; i < kThreads; ++i) EXPECT_TRUE(GoesOn(i));
  Held();
  EXPECT_TRUE(AreFree());
}

TEST_F(KeeperClientTest, WhomSomebodyElseTracesIsRefused) {
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, pid_, nullptr, nullptr), 0);
  auto keeper = ThreadKeeper::Hold({pid_});
  EXPECT_TRUE(absl::IsFailedPrecondition(keeper.status())) << keeper.status();
  EXPECT_THAT(std::string(keeper.status().message()), testing::HasSubstr("debugger"));
  EXPECT_TRUE(GoesOn(1));
}

// The other end of a keeper's socket.
class OtherEnd {
 public:
  explicit OtherEnd(UniqueFd socket) : socket_(std::move(socket)) {}
  void Say(KeeperWord what, int32_t id, uint64_t bytes = 0, uint64_t address = 0) const {
    const KeeperMessage message = {what, id, address, bytes};
    EXPECT_EQ(::send(socket_.get(), &message, sizeof message, 0), static_cast<ssize_t>(sizeof message));
  }
  // The thread that may go on next; 0: none.
  pid_t NextToGoOn() const {
    constexpr int kMayTakeMs = 30000;
    pollfd entry = {socket_.get(), POLLIN, 0};
    KeeperMessage message = {};
    do {
      if (::poll(&entry, 1, kMayTakeMs) <= 0) return 0;
      if (::recv(socket_.get(), &message, sizeof message, 0) != sizeof message) return 0;
    } while (message.what != kKeeperGoOn);
    return message.id;
  }
  // The next word; kKeeperStands: none.
  KeeperWord NextWord() const {
    KeeperMessage message = {};
    if (::recv(socket_.get(), &message, sizeof message, 0) != sizeof message) return kKeeperStands;
    return static_cast<KeeperWord>(message.what);
  }

 private:
  UniqueFd socket_;
};

// Memory whose pages nobody makes until we do, a keeper that is told of it, and its other end.
class KeeperMappingsTest : public testing::Test {
 protected:
  static constexpr uint64_t kAreaBytes = 2 * kHugePage;
  static constexpr pid_t kFirst = 1 << 29, kSecond = kFirst + 1;

  void SetUp() override {
    faults_ = UniqueFd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC)));
    uffdio_api api = {UFFD_API, 0, 0};
    if (!faults_.valid() || ::ioctl(faults_.get(), UFFDIO_API, &api) != 0)
      GTEST_SKIP() << "no userfaultfd that sees the kernel's faults";
    memory_ = ::mmap(nullptr, kHugePage + 2 * kAreaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                     -1, 0);
    ASSERT_NE(memory_, MAP_FAILED);
    address_ = (reinterpret_cast<uint64_t>(memory_) + kHugePage - 1) / kHugePage * kHugePage;
    uffdio_register missing = {{address_, kAreaBytes}, UFFDIO_REGISTER_MODE_MISSING, 0};
    ASSERT_EQ(::ioctl(faults_.get(), UFFDIO_REGISTER, &missing), 0);
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    keeper_ = std::make_unique<ThreadKeeper>(UniqueFd(ends[0]));
    other_.emplace(UniqueFd(ends[1]));
  }
  void TearDown() override {
    faults_.Reset();
    other_.reset();
    keeper_.reset();
    if (memory_ != nullptr) ::munmap(memory_, kHugePage + 2 * kAreaBytes);
  }
  // The thread has mapped this and waits for it.
  void HasMapped(pid_t thread, uint64_t address) {
    other_->Say(kKeeperRuns, 0);
    ASSERT_TRUE(keeper_->Run({{::getpid(), thread}}, /*for_device_memory=*/false).ok());
    other_->Say(kKeeperMapped, thread, kAreaBytes, address);
  }
  // A write waits there.
  void AwaitFault() {
    uffd_msg fault = {};
    ASSERT_EQ(::read(faults_.get(), &fault, sizeof fault), static_cast<ssize_t>(sizeof fault));
    EXPECT_EQ(fault.arg.pagefault.address / kHugePage, address_ / kHugePage);
  }
  void MakePages(uint64_t bytes) {
    uffdio_zeropage zeros = {{address_, bytes}, 0, 0};
    EXPECT_EQ(::ioctl(faults_.get(), UFFDIO_ZEROPAGE, &zeros), 0);
  }

  UniqueFd faults_;
  void* memory_ = nullptr;
  uint64_t address_ = 0;
  std::unique_ptr<ThreadKeeper> keeper_;
  std::optional<OtherEnd> other_;
};

TEST_F(KeeperMappingsTest, WhileOneThreadsMemoryIsMadeAnotherGoesOn) {
  ASSERT_NO_FATAL_FAILURE(HasMapped(kFirst, address_));
  ASSERT_NO_FATAL_FAILURE(HasMapped(kSecond, address_ + kAreaBytes));
  EXPECT_EQ(other_->NextToGoOn(), kSecond);
  MakePages(kAreaBytes);
  EXPECT_EQ(other_->NextToGoOn(), kFirst);
}

TEST_F(KeeperMappingsTest, NoThreadGoesOnWhileItsMemoryIsMade) {
  ASSERT_NO_FATAL_FAILURE(HasMapped(kFirst, address_));
  ASSERT_NO_FATAL_FAILURE(AwaitFault());
  std::atomic<pid_t> pausing{0};
  std::thread pause([&] {
    pausing = static_cast<pid_t>(::syscall(SYS_gettid));
    EXPECT_TRUE(keeper_->Pause().ok());
  });
  // It waits, for the memory or for an answer.
  EXPECT_TRUE(Until([&] {
    const auto stat = ReadFile(absl::StrCat("/proc/self/task/", pausing.load(), "/stat"));
    return stat.ok() && absl::StrContains(*stat, ") S");
  }));
  MakePages(kHugePage);
  EXPECT_EQ(other_->NextWord(), kKeeperRun);
  EXPECT_EQ(other_->NextWord(), kKeeperGoOn);
  EXPECT_EQ(other_->NextWord(), kKeeperPause);
  other_->Say(kKeeperPaused, 0);
  pause.join();
  unsigned char is_there = 1;
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(address_ + kHugePage), kPage, &is_there), 0);
  EXPECT_EQ(is_there & 1, 0) << "it was made while the thread that has it might write";
}

}  // namespace
}  // namespace rekindle::gpu
