// What a daemon takes over of leases and pins. Their effect on real moves: tests/integration/test_gpu.py.
#include "daemon/gpu_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/test_child.h"
#include "gpu_state/pid_namespace.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GpuJobsTest : public ::testing::Test {
 protected:
  static GpuJobId IdOf(const TestChild& child) {
    return {child.pid(), ReadProcessStat(child.pid())->start_ticks};
  }
  // A daemon that starts with this record. Gives what it logs.
  std::string Start(const std::vector<GpuJobLeases>& record) {
    EXPECT_TRUE(GpuLeaseRecord(path_).Write(record).ok());
    return Start();
  }
  std::string Start() {
    gpu::MoverOptions options;
    options.context_bytes = 0;  // the simulated driver takes none
    options.ledger_directory = folder_.path() + "/gpu";
    jobs_.reset();
    mover_.emplace(options);
    jobs_.emplace(&*mover_, UINT64_MAX, path_);
    testing::internal::CaptureStderr();
    jobs_->InheritLeases();
    return testing::internal::GetCapturedStderr();
  }
  // As a daemon of today writes it here.
  static GpuJobLeases Written(GpuJobLeases job) {
    job.pid_namespace = gpu::OwnPidNamespace();
    return job;
  }
  std::vector<GpuJobLeases> Known() const {
    std::vector<GpuJobLeases> known;
    for (const auto& [pid, job] : jobs_->Known()) known.push_back({job.id, job.leases, job.pinned, job.ids});
    return known;
  }

  const TemporaryDirectory folder_ =
      TemporaryDirectory::Make(testing::TempDir(), "rekindle_gpu_jobs_test.").value();
  const std::string path_ = folder_.path() + "/gpu/leases.json";
  std::optional<gpu::JobMover> mover_;
  std::optional<GpuJobs> jobs_;
};

TEST_F(GpuJobsTest, LeasesAndPinsOfTheLivingAreTakenOver) {
  TestChild leased, pinned, dead, another;
  const GpuJobLeases of_leased{IdOf(leased), 2, false}, of_pinned{IdOf(pinned), 0, true},
      of_dead{IdOf(dead), 1, true};
  // One that had this PID before.
  GpuJobLeases of_earlier{IdOf(another), 1, true};
  of_earlier.job.start_ticks -= 2;  // no tick of rounding
  dead.Kill();
  dead.Reap();
  Start({of_leased, of_pinned, of_dead, of_earlier});
  EXPECT_THAT(Known(), testing::UnorderedElementsAre(of_leased, of_pinned));
  // And on: the record goes with what happens now.
  EXPECT_EQ(jobs_->Release(leased.pid(), LeaseKind::kLasting).value_or(-1), 1);
  Start();
  EXPECT_THAT(Known(), testing::UnorderedElementsAre(GpuJobLeases{of_leased.job, 1, false}, of_pinned));
  EXPECT_EQ(jobs_->Release(leased.pid(), LeaseKind::kLasting).value_or(-1), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(jobs_->Release(leased.pid(), LeaseKind::kLasting).status()));
  Start();
  EXPECT_THAT(Known(), ElementsAre(of_pinned));
}

TEST_F(GpuJobsTest, IdsOfLeasesAreTakenOver) {
  TestChild leased;
  const GpuJobLeases of_leased{IdOf(leased), 2, false, {"a"}};
  Start({of_leased});
  EXPECT_THAT(Known(), ElementsAre(of_leased));
  EXPECT_EQ(jobs_->Release(leased.pid(), LeaseKind::kLasting, "a").value_or(-1), 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(jobs_->Release(leased.pid(), LeaseKind::kLasting, "a").status()));
  Start();
  EXPECT_THAT(Known(), ElementsAre(GpuJobLeases{of_leased.job, 1, false}));
  EXPECT_TRUE(absl::IsFailedPrecondition(jobs_->Release(leased.pid(), LeaseKind::kLasting, "a").status()));
  EXPECT_EQ(jobs_->Release(leased.pid(), LeaseKind::kLasting).value_or(-1), 0);
}

TEST_F(GpuJobsTest, AnEndedPinIsNotTakenOver) {
  TestChild pinned;
  Start({{IdOf(pinned), 1, true}});
  EXPECT_EQ(jobs_->Unpin(pinned.pid()).value_or(-1), 1);
  EXPECT_EQ(jobs_->Unpin(pinned.pid()).value_or(-1), 1);
  Start();
  EXPECT_THAT(Known(), ElementsAre(GpuJobLeases{IdOf(pinned), 1, false}));
  EXPECT_TRUE(absl::IsNotFound(jobs_->Unpin(1).status()));
}

TEST_F(GpuJobsTest, ADamagedRecordIsNamedAndGoneOnWithout) {
  TestChild leased;
  Start({{IdOf(leased), 1, false}});
  const std::string whole = *ReadFile(path_);
  ASSERT_TRUE(ReplaceFile(path_, whole.substr(0, whole.size() / 2)).ok());
  EXPECT_THAT(Start(), HasSubstr(path_));
  EXPECT_THAT(Known(), IsEmpty());
  // Another start does not depend on it.
  Start({{IdOf(leased), 1, false}});
  EXPECT_THAT(Known(), ElementsAre(GpuJobLeases{IdOf(leased), 1, false}));
}

TEST_F(GpuJobsTest, AReleaseNeedsNoRecord) {
  TestChild leased;
  Start({{IdOf(leased), 2, false}});
  ASSERT_TRUE(RemoveTree(path_).ok());
  ASSERT_TRUE(MakeDirectories(path_ + "/in-the-way").ok());
  testing::internal::CaptureStderr();
  EXPECT_EQ(jobs_->Release(leased.pid(), LeaseKind::kLasting).value_or(-1), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(path_));
  // The next change tells what this one could not.
  ASSERT_TRUE(RemoveTree(path_).ok());
  EXPECT_EQ(jobs_->Release(leased.pid(), LeaseKind::kLasting).value_or(-1), 0);
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), ElementsAre(Written({IdOf(leased), 0, false})));
}

// A process with a PID namespace of its own, as a container's.
class Container {
 public:
  Container() : outer_(fork()) {
    if (outer_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::unshare(CLONE_NEWPID) == 0 && fork() == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  ~Container() {
    ::kill(outer_, SIGKILL);
    ::waitpid(outer_, nullptr, 0);
  }
  // Of its inner process, once there is one; 0: it may have none.
  ino_t pid_namespace() const {
    for (int look = 0; look < 500; ++look) {
      for (const pid_t pid : ProcessTree(outer_)) {
        struct stat theirs;
        if (pid != outer_ && ::stat(absl::StrCat("/proc/", pid, "/ns/pid").c_str(), &theirs) == 0)
          return theirs.st_ino;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    return 0;
  }

 private:
  const pid_t outer_;
};

TEST_F(GpuJobsTest, LeasesOfJobsInOtherContainersAreKept) {
  const Container container;
  GpuJobLeases elsewhere{{1, 12345}, 2, true, {"a"}};
  elsewhere.pid_namespace = container.pid_namespace();
  if (elsewhere.pid_namespace == 0) GTEST_SKIP() << "no PID namespace can be made here";
  TestChild leased;
  Start({elsewhere, {IdOf(leased), 2, false}});
  EXPECT_THAT(Known(), ElementsAre(GpuJobLeases{IdOf(leased), 2, false}));
  ASSERT_TRUE(jobs_->Release(leased.pid(), LeaseKind::kLasting).ok());
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), ElementsAre(elsewhere, Written({IdOf(leased), 1, false})));
  // So they are for the next one.
  Start();
  ASSERT_TRUE(jobs_->Release(leased.pid(), LeaseKind::kLasting).ok());
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), ElementsAre(elsewhere, Written({IdOf(leased), 0, false})));
}

TEST_F(GpuJobsTest, WhileAnotherDaemonHasTheRecordItsLeasesAreItsOwn) {
  TestChild leased;
  const GpuJobLeases of_leased{IdOf(leased), 1, true};
  Start({of_leased});
  EXPECT_THAT(Known(), ElementsAre(of_leased));
  std::optional<GpuJobs> second(std::in_place, &*mover_, UINT64_MAX, path_);
  testing::internal::CaptureStderr();
  second->InheritLeases();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("another daemon"));
  EXPECT_THAT(second->Known(), IsEmpty());
  LeaseOptions at_once;
  at_once.timeout = absl::ZeroDuration();
  for (const absl::Status& refused :
       {second->Lease(leased.pid(), at_once).status(),
        second->Release(leased.pid(), LeaseKind::kLasting).status(), second->Unpin(leased.pid()).status()}) {
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("another daemon"));
  }
  const absl::Status parked = second->Park(leased.pid(), absl::Seconds(1), "why").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(parked)) << parked;
  EXPECT_THAT(std::string(parked.message()), HasSubstr("pinned"));
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), ElementsAre(of_leased));
  // It ends, and the second one has what it has left.
  ASSERT_TRUE(jobs_->Unpin(leased.pid()).ok());
  jobs_.reset();
  const absl::StatusOr<int> left = second->Release(leased.pid(), LeaseKind::kLasting);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(*left, 0);
  second.reset();
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), ElementsAre(Written({of_leased.job, 0, false})));
}

TEST_F(GpuJobsTest, ALeaseWaitsForADaemonThatIsEnding) {
  TestChild job;
  Start(std::vector<GpuJobLeases>());
  GpuJobs second(&*mover_, UINT64_MAX, path_);
  absl::Notification refused;
  std::thread ending([&] {
    EXPECT_TRUE(refused.WaitForNotificationWithTimeout(absl::Seconds(60)));
    jobs_.reset();
  });
  LeaseOptions soon;
  soon.timeout = absl::Seconds(60);
  // Asked each time that the other one has the record.
  soon.cancelled = [&] {
    if (!refused.HasBeenNotified()) refused.Notify();
    return false;
  };
  const absl::Status leased = second.Lease(job.pid(), soon).status();
  ending.join();
  // That it has nothing on a GPU is said by who has the record.
  EXPECT_FALSE(leased.ok());
  EXPECT_FALSE(absl::IsUnavailable(leased)) << leased;
}

}  // namespace
}  // namespace rekindle::daemon
