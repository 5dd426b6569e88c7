// Real CRIU, a real process: what stands in its memory is what the store has in the end.
#include "ckpt/frozen_dump.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/subprocess.h"
#include "ckpt/job_inspection.h"
#include "criu/test_support.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using store::StatusOf;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;

constexpr uint64_t kPage = store::kPageSize;
constexpr uint64_t kRoom = 64u << 20;
// The size of the pattern in the memory of criu/test_job.cc.
constexpr uint64_t kPatternBytes = 8u << 20;

class FrozenDumpTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    auto criu = criu::FindCriu();
    ASSERT_TRUE(criu.ok()) << criu.status();
    criu_ = *criu;
    children_before_ = criu::OwnChildren();
  }
  void TearDown() override { EXPECT_EQ(criu::OwnChildren(), children_before_); }

  absl::StatusOr<FrozenDump> Dump(const criu::TestJob& job, StagingArena* arena,
                                  const std::atomic<bool>* cancel = nullptr,
                                  const std::function<void(uint64_t)>& progress = {},
                                  const std::string& folder = "", CaptureGate* say = nullptr) {
    return DumpProcess(job.pid(), folder.empty() ? job.folder() : folder, arena, cancel, progress, say);
  }
  absl::StatusOr<FrozenDump> DumpProcess(pid_t pid, const std::string& folder, StagingArena* arena,
                                         const std::atomic<bool>* cancel = nullptr,
                                         const std::function<void(uint64_t)>& progress = {},
                                         CaptureGate* say = nullptr) {
    criu::DumpOptions options;
    options.pid = pid;
    options.images_directory = options.work_directory = folder;
    options.after = criu::AfterDump::kLeaveRunning;
    auto gate = FindDumpGate();
    if (!gate.ok()) return gate.status();
    options.action_script = *gate;
    return RunFrozenDump(criu_, options, criu::JobNamespaces(), arena, cancel, progress, {}, say,
                         /*ask_first=*/say != nullptr);
  }

  // The pattern never changes, so the living process still has what was dumped.
  void ExpectPatternInStore(const criu::TestJob& job, StagedImage staged) {
    const std::string pid = std::to_string(job.pid());
    auto writer = store_->NewImage(store::Named("job:1"));
    RK_ASSERT_OK(writer);
    v1::JobManifest manifest;
    RK_ASSERT_OK(AddToImage(staged, **writer, &manifest));
    RK_ASSERT_OK((*writer)->Commit());
    auto image = store_->OpenImage("job:1");
    RK_ASSERT_OK(image);

    auto areas = criu::ParseMm(staged.files["mm-" + pid + ".img"]);
    RK_ASSERT_OK(areas);
    std::string expected(kPatternBytes, '?'), stored(kPatternBytes, '!');
    int compared = 0;
    for (const criu::Vma& area : *areas) {
      if (!area.plain_anonymous() || area.end - area.start != kPatternBytes) continue;
      auto memory = OpenFile("/proc/" + pid + "/mem", O_RDONLY);
      RK_ASSERT_OK(memory);
      ASSERT_EQ(::pread(memory->get(), expected.data(), expected.size(), static_cast<off_t>(area.start)),
                static_cast<ssize_t>(kPatternBytes));
      RK_ASSERT_OK((*image)->ReadPages("mem/" + pid, area.start,
                                       {reinterpret_cast<std::byte*>(stored.data()), stored.size()}));
      EXPECT_TRUE(stored == expected);
      ++compared;
    }
    EXPECT_EQ(compared, 1);
    EXPECT_EQ(kPatternBytes % kPage, 0u);
  }

  criu::Installation criu_;
  std::set<pid_t> children_before_;
};

// How CRIU finds the pages: PAGEMAP_SCAN where the kernel has it, or /proc/PID/pagemap, as before Linux 6.7.
class PagesFoundTest : public FrozenDumpTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Ways, PagesFoundTest, ::testing::Values(true, false),
                         [](const auto& way) { return way.param ? "AsTheKernelCan" : "ByEntries"; });

TEST_P(PagesFoundTest, MemoryOfTheJobReachesTheStoreAtItsAddresses) {
  if (!GetParam()) ::setenv("CRIU_FAULT", "135", 1);  // FI_DONT_USE_PAGEMAP_SCAN
  absl::Cleanup unset = [] { ::unsetenv("CRIU_FAULT"); };
  criu::TestJob job;
  ASSERT_TRUE(job.GoesOn());
  // Part of it through the spill file.
  auto arena = StagingArena::Create(kRoom, 2 * StagingArena::kBlockBytes, folder_->path());
  RK_ASSERT_OK(arena);
  uint64_t seen = 0;
  auto dump = Dump(job, arena->get(), nullptr, [&](uint64_t bytes) { seen = std::max(seen, bytes); });
  ASSERT_TRUE(dump.ok()) << dump.status();
  EXPECT_TRUE(job.GoesOn());
  EXPECT_GT((*arena)->spilled_bytes(), 0u);
  EXPECT_LE(seen, dump->image.bytes());
  EXPECT_GT(dump->stats.frozen_us, 0u);
  EXPECT_GE(dump->bytes_past_criu, kPatternBytes);
  // All of it, and nothing for which CRIU had no question.
  EXPECT_EQ(dump->bytes_ahead, dump->bytes_past_criu);
  EXPECT_LT(dump->stats.pages_written * kPage, kPatternBytes);
  EXPECT_THAT(dump->command_line, AllOf(HasSubstr("dump"), HasSubstr(std::to_string(job.pid()))));
  std::string pid = std::to_string(job.pid());
  for (const std::string& name : {std::string("inventory.img"), std::string("pstree.img"),
                                  "core-" + pid + ".img", "mm-" + pid + ".img", "pagemap-" + pid + ".img"}) {
    EXPECT_THAT(dump->image.files, Contains(Key(name)));
  }
  auto owner = criu::ParseOwner(dump->image.files.at("core-" + pid + ".img"));
  RK_ASSERT_OK(owner);
  EXPECT_EQ(owner->uid, ::getuid());
  EXPECT_EQ(owner->gid, ::getgid());
  std::vector<gid_t> groups(64);
  groups.resize(static_cast<size_t>(::getgroups(64, groups.data())));
  EXPECT_EQ(owner->groups, groups);
  ExpectPatternInStore(job, std::move(dump->image));
}

// Of the calling thread and what it starts, as under the seccomp profile of a container.
bool ForbidReadingOthersMemory() {
  sock_filter instructions[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(instructions), instructions};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

TEST_F(FrozenDumpTest, MemoryThatCannotBeReadPastCriuIsCopiedByIt) {
  criu::TestJob job;
  ASSERT_TRUE(job.GoesOn());
  auto arena = StagingArena::Create(kRoom, kRoom, folder_->path());
  RK_ASSERT_OK(arena);
  absl::StatusOr<FrozenDump> dump = absl::InternalError("it was not tried");
  testing::internal::CaptureStderr();
  std::thread([&] {
    ASSERT_TRUE(ForbidReadingOthersMemory());
    dump = Dump(job, arena->get());
  }).join();
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(dump.ok()) << dump.status();
  EXPECT_THAT(log, AllOf(HasSubstr("so CRIU copies it"), HasSubstr("Operation not permitted")));
  EXPECT_TRUE(job.GoesOn());
  EXPECT_EQ(dump->bytes_past_criu, 0u);
  EXPECT_GE(dump->stats.pages_written * kPage, kPatternBytes);
  ExpectPatternInStore(job, std::move(dump->image));
}

TEST_F(FrozenDumpTest, JobGoesOnWhenStagingFindsNoRoom) {
  criu::TestJob job;
  ASSERT_TRUE(job.GoesOn());
  auto arena = StagingArena::Create(0, StagingArena::kBlockBytes, folder_->path() + "/absent");
  RK_ASSERT_OK(arena);
  auto dump = Dump(job, arena->get());
  EXPECT_EQ(dump.status().code(), absl::StatusCode::kNotFound) << dump.status();
  EXPECT_THAT(std::string(dump.status().message()), HasSubstr(folder_->path() + "/absent"));
  EXPECT_TRUE(job.GoesOn());
}

TEST_F(FrozenDumpTest, JobGoesOnWhenTheCaptureIsCancelled) {
  criu::TestJob job;
  ASSERT_TRUE(job.GoesOn());
  auto arena = StagingArena::Create(kRoom, kRoom, folder_->path());
  RK_ASSERT_OK(arena);
  std::atomic<bool> cancel{true};
  auto dump = Dump(job, arena->get(), &cancel);
  EXPECT_EQ(dump.status().code(), absl::StatusCode::kCancelled) << dump.status();
  EXPECT_TRUE(job.GoesOn());
}

// Asked whether the job may be frozen.
class AskedGate : public CaptureGate {
 public:
  AskedGate(criu::TestJob& job, absl::Status answer) : job_(job), answer_(std::move(answer)) {}
  absl::Status BeforeFreeze() override {
    ++asked;
    for (const pid_t child : criu::OwnChildren()) criu_is_there = criu_is_there || IsCriuDump(child);
    job_ran = job_.GoesOn();
    return answer_;
  }
  absl::Status OnFrozen() override {
    ++frozen;
    return absl::OkStatus();
  }
  absl::Status BeforeCommit() override { return absl::OkStatus(); }

  int asked = 0, frozen = 0;
  bool criu_is_there = false, job_ran = false;

 private:
  criu::TestJob& job_;
  const absl::Status answer_;
};

TEST_F(FrozenDumpTest, JobIsFrozenWhenCriuIsReadyAndItMayBe) {
  criu::TestJob job;
  ASSERT_TRUE(job.GoesOn());
  auto arena = StagingArena::Create(kRoom, kRoom, folder_->path());
  RK_ASSERT_OK(arena);
  AskedGate gate(job, absl::OkStatus());
  auto dump = Dump(job, arena->get(), nullptr, {}, "", &gate);
  ASSERT_TRUE(dump.ok()) << dump.status();
  EXPECT_EQ(gate.asked, 1);
  EXPECT_TRUE(gate.criu_is_there);
  EXPECT_TRUE(gate.job_ran);
  EXPECT_EQ(gate.frozen, 1);
  EXPECT_TRUE(job.GoesOn());
  ExpectPatternInStore(job, std::move(dump->image));
}

TEST_F(FrozenDumpTest, JobThatMayNotBeFrozenRunsOn) {
  criu::TestJob job;
  ASSERT_TRUE(job.GoesOn());
  auto arena = StagingArena::Create(kRoom, kRoom, folder_->path());
  RK_ASSERT_OK(arena);
  AskedGate gate(job, absl::AbortedError("the others gave up"));
  auto dump = Dump(job, arena->get(), nullptr, {}, "", &gate);
  EXPECT_EQ(dump.status(), absl::AbortedError("the others gave up"));
  EXPECT_EQ(gate.asked, 1);
  EXPECT_EQ(gate.frozen, 0);
  EXPECT_TRUE(job.GoesOn());
}

// This process in a cgroup of its own, for as long as it exists.
class LimitedProcesses {
 public:
  LimitedProcesses() {
    if (::mkdir(folder_.c_str(), 0755) == 0) made_ = Write("cgroup.procs", ::getpid());
  }
  ~LimitedProcesses() {
    if (!made_) return;
    std::ofstream(std::string(kGroups) + "/cgroup.procs") << ::getpid() << std::flush;
    ::rmdir(folder_.c_str());
  }
  bool made() const { return made_; }

  // How many processes and threads may still be made.
  void Allow(int more) {
    int now = 0;
    std::ifstream(folder_ + "/pids.current") >> now;
    EXPECT_TRUE(Write("pids.max", now + more));
  }
  void AllowAll() { EXPECT_TRUE(Write("pids.max", "max")); }

 private:
  template <typename Value>
  bool Write(const char* name, const Value& value) {
    return (std::ofstream(folder_ + "/" + name) << value << std::flush).good();
  }

  static constexpr char kGroups[] = "/sys/fs/cgroup/pids";
  const std::string folder_ = absl::StrCat(kGroups, "/rekindle-frozen-dump.", ::getpid());
  bool made_ = false;
};

// Each time another one is the one too many.
TEST_F(FrozenDumpTest, JobGoesOnWhereThereCanBeNoMoreThreads) {
  LimitedProcesses limit;
  if (!limit.made()) GTEST_SKIP() << "this machine has no cgroup v1 for the number of processes";
  criu::TestJob job;
  int refused = 0;
  for (bool done = false; !done; ++refused) {
    ASSERT_LT(refused, 64);
    auto arena = StagingArena::Create(kRoom, kRoom, folder_->path());
    RK_ASSERT_OK(arena);
    const std::string folder = absl::StrCat(folder_->path(), "/", refused);
    ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
    limit.Allow(refused);
    auto dump = Dump(job, arena->get(), nullptr, {}, folder);
    limit.AllowAll();
    done = dump.ok();
    ASSERT_TRUE(job.GoesOn()) << refused << " " << dump.status();
  }
  EXPECT_GT(refused, 4);
}

// Of an io_uring that no descriptor tells of. The argument is that of
// tests/integration/workloads/ring_threads.c.
class KernelWorkerTest : public FrozenDumpTest {
 protected:
  static constexpr int kNoIoUring = 77;

  void SetUp() override {
    FrozenDumpTest::SetUp();
    numbers_ = folder_->path() + "/numbers";
  }
  void Begin(const std::string& way) {
    SubprocessOptions start;
    start.argv = {REKINDLE_RING_THREADS, way, numbers_};
    start.new_session = true;
    auto started = Subprocess::Start(start);
    RK_ASSERT_OK(started);
    job_ = *std::move(started);
    if (CountsOn()) return;
    auto ended = job_.Wait();
    RK_ASSERT_OK(ended);
    ASSERT_EQ(ended->code, kNoIoUring) << ended->ToString();
    GTEST_SKIP() << "no io_uring of this kind here (kernel.io_uring_disabled, or before Linux 6.5)";
  }

  // The CRIU that waits for what its code in the job's memory is to do in the kernel's thread.
  pid_t AwaitCriuThatWaits() const {
    const auto threads = ThreadsOf(job_.pid());
    for (const Deadline deadline(absl::Minutes(1)); !deadline.passed();) {
      const pid_t criu = TracerOf(std::to_string(job_.pid()));
      const std::string call = ReadFile(absl::StrCat("/proc/", criu, "/syscall")).value_or("");
      for (const pid_t thread : threads.value_or(std::vector<pid_t>())) {
        const std::string waits = absl::StrCat(SYS_wait4, " 0x", absl::Hex(thread), " ");
        if (thread == job_.pid() || !absl::StartsWith(call, waits)) continue;
        const std::string maps = ReadFile(absl::StrCat("/proc/", job_.pid(), "/maps")).value_or("");
        if (absl::StrContains(maps, "CRIUMFD")) return criu;
      }
    }
    ADD_FAILURE() << "CRIU does not wait for a thread of the kernel's";
    return 0;
  }

  void ExpectIsFree() {
    EXPECT_TRUE(CountsOn());
    EXPECT_EQ(TracerOf(std::to_string(job_.pid())), 0);
    RK_ASSERT_OK(job_.Signal(SIGKILL));
    RK_ASSERT_OK(job_.Wait());
  }

  // Until the job has counted on. False: it has ended.
  bool CountsOn() {
    const size_t before = Numbers().size();
    while (Numbers().size() == before) {
      if (AwaitExit(job_.pidfd(), absl::Milliseconds(20))) return false;
    }
    return true;
  }
  std::string Numbers() const { return ReadFile(numbers_).value_or(""); }

  std::string numbers_;
  Subprocess job_;
};

// As tests/integration/workloads/ring_threads.c has them.
class KernelWorkersTest : public KernelWorkerTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Threads, KernelWorkersTest, ::testing::Values("lone-sqpoll", "lone-worker"),
                         [](const auto& way) {
                           return way.param == std::string("lone-sqpoll") ? "Polls" : "Works";
                         });

TEST_P(KernelWorkersTest, CriuGivesUpAndTheJobGoesOn) {
  Begin(GetParam());
  if (IsSkipped() || HasFatalFailure()) return;
  auto arena = StagingArena::Create(kRoom, kRoom, folder_->path());
  RK_ASSERT_OK(arena);
  const absl::Status status = DumpProcess(job_.pid(), folder_->path(), arena->get()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("(iou-"), HasSubstr("UV_USE_IO_URING=0")));
  ExpectIsFree();
}

TEST_F(KernelWorkerTest, AlsoWhenTheCaptureIsCancelled) {
  Begin("lone-sqpoll");
  if (IsSkipped() || HasFatalFailure()) return;
  auto arena = StagingArena::Create(kRoom, kRoom, folder_->path());
  RK_ASSERT_OK(arena);
  std::atomic<bool> cancel{false};
  const auto once_it_waits = [&](uint64_t) {
    AwaitCriuThatWaits();
    cancel = true;
  };
  const absl::Status status =
      DumpProcess(job_.pid(), folder_->path(), arena->get(), &cancel, once_it_waits).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  ExpectIsFree();
}

TEST_F(KernelWorkerTest, AlsoWhenWhoWantedTheImageHasBeenKilled) {
  Begin("lone-sqpoll");
  if (IsSkipped() || HasFatalFailure()) return;
  const std::string folder = folder_->path();
  const pid_t dumping = ::fork();
  if (dumping == 0) {
    auto arena = StagingArena::Create(kRoom, kRoom, folder);
    if (arena.ok()) DumpProcess(job_.pid(), folder, arena->get()).status().IgnoreError();
    ::_exit(1);
  }
  const pid_t criu = AwaitCriuThatWaits();
  const auto criu_pidfd = OpenProcess(criu);
  RK_ASSERT_OK(criu_pidfd);
  ASSERT_EQ(::kill(dumping, SIGKILL), 0);
  ASSERT_EQ(::waitpid(dumping, nullptr, 0), dumping);
  EXPECT_TRUE(AwaitExit(criu_pidfd->get(), absl::Minutes(2)));
  ExpectIsFree();
}

TEST_F(FrozenDumpTest, ProcessThatIsNotThereIsSaid) {
  criu::TestJob job;
  ASSERT_TRUE(job.GoesOn());
  auto arena = StagingArena::Create(0, kRoom, folder_->path());
  RK_ASSERT_OK(arena);
  job.Kill();
  auto dump = Dump(job, arena->get());
  EXPECT_EQ(dump.status().code(), absl::StatusCode::kNotFound) << dump.status();
  EXPECT_THAT(std::string(dump.status().message()), HasSubstr(std::to_string(job.pid())));
}

}  // namespace
}  // namespace rekindle::ckpt
