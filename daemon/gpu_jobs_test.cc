// What a daemon takes over of leases and pins. Their effect on real moves: tests/integration/test_gpu.py.
#include "daemon/gpu_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/test_child.h"

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
  --of_earlier.job.start_ticks;
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
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), ElementsAre(GpuJobLeases{IdOf(leased), 0, false}));
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
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), ElementsAre(GpuJobLeases{of_leased.job, 0, false}));
}

TEST_F(GpuJobsTest, ALeaseWaitsForADaemonThatIsEnding) {
  TestChild job;
  Start(std::vector<GpuJobLeases>());
  GpuJobs second(&*mover_, UINT64_MAX, path_);
  std::thread ending([this] {
    absl::SleepFor(absl::Milliseconds(200));
    jobs_.reset();
  });
  LeaseOptions soon;
  soon.timeout = absl::Seconds(60);
  const absl::Status leased = second.Lease(job.pid(), soon).status();
  ending.join();
  // That it has nothing on a GPU is said by who has the record.
  EXPECT_FALSE(leased.ok());
  EXPECT_FALSE(absl::IsUnavailable(leased)) << leased;
}

}  // namespace
}  // namespace rekindle::daemon
