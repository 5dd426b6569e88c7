#include "daemon/gpu_arbiter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "daemon/test_gpu_machine.h"

namespace rekindle::daemon {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kGiB = 1ull << 30;

// Where a call stands still until the test lets it go on.
class Gate {
 public:
  void Pass() {
    absl::MutexLock lock(&mutex_);
    reached_ = true;
    mutex_.Await(absl::Condition(&open_));
  }
  void AwaitReached() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&reached_));
  }
  void Open() {
    absl::MutexLock lock(&mutex_);
    open_ = true;
  }

 private:
  absl::Mutex mutex_;
  bool reached_ ABSL_GUARDED_BY(mutex_) = false, open_ ABSL_GUARDED_BY(mutex_) = false;
};

class GpuArbiterTest : public ::testing::Test {
 protected:
  using Call = TestMachine::Call;

  void Make(DeviceBytes totals, uint64_t budget_gib = 1000, absl::Duration reread = absl::Hours(1)) {
    for (auto& [uuid, gib] : totals) gib *= kGiB;
    machine_.emplace(totals, budget_gib * kGiB);
    GpuArbiterOptions options;
    options.host_budget = budget_gib * kGiB;
    options.device_totals = std::move(totals);
    options.reread_interval = reread;
    options.cancel_interval = absl::Hours(1);
    arbiter_.emplace(&*machine_, std::move(options));
  }
  void TearDown() override {
    if (!machine_) return;
    EXPECT_THAT(machine_->wrongs(), IsEmpty());
    for (const GpuJobId& job : machine_->Jobs()) EXPECT_TRUE(machine_->IsIntact(job)) << job.pid;
  }

  static GpuJobId Id(pid_t pid) { return {pid, 1000 + static_cast<uint64_t>(pid)}; }
  void Add(pid_t pid, DeviceBytes gib, GpuJobState state) {
    for (auto& [uuid, bytes] : gib) bytes *= kGiB;
    ASSERT_TRUE(machine_->Start(Id(pid), gib, state == GpuJobState::kResident));
    arbiter_->Add(Id(pid), gib, state);
  }
  void AddResident(pid_t pid, DeviceBytes gib) { Add(pid, std::move(gib), GpuJobState::kResident); }
  void AddParked(pid_t pid, DeviceBytes gib) { Add(pid, std::move(gib), GpuJobState::kParked); }

  absl::Status Lease(pid_t pid, LeaseOptions options = {}) { return arbiter_->Lease(pid, options).status(); }
  static LeaseOptions Within(absl::Duration timeout) {
    LeaseOptions options;
    options.timeout = timeout;
    return options;
  }
  absl::Status LeaseAtOnce(pid_t pid) { return Lease(pid, Within(absl::ZeroDuration())); }
  GpuJobSnapshot Look(pid_t pid) {
    for (GpuJobSnapshot& job : arbiter_->Snapshot()) {
      if (job.id.pid == pid) return std::move(job);
    }
    ADD_FAILURE() << "job " << pid << " is unknown";
    return {};
  }

  // A lease that is asked for on a thread of its own.
  class Asked {
   public:
    Asked(GpuArbiterTest* test, pid_t pid, LeaseOptions options = {})
        : test_(test), thread_([this, pid, options] { result_ = test_->Lease(pid, options); }) {}
    ~Asked() {
      if (!thread_.joinable()) return;
      test_->arbiter_->Stop();  // where the test has failed
      thread_.join();
    }
    absl::Status Result() {
      thread_.join();
      return result_;
    }

   private:
    GpuArbiterTest* const test_;
    absl::Status result_;
    std::thread thread_;
  };
  // Until so many requests in all have had to wait, and do.
  void AwaitWaits(uint64_t waits) {
    while (arbiter_->counters().waits < waits) std::this_thread::yield();
  }
  // Until the job has so many.
  void AwaitLeases(pid_t pid, int leases) {
    while (Look(pid).leases < leases) std::this_thread::yield();
  }
  void FailNext(Call call, pid_t pid, absl::Status error, int times = 1) {
    machine_->Interfere([=, left = std::make_shared<std::atomic<int>>(times)](Call c, const GpuJobId& id) {
      return c == call && (pid == 0 || id.pid == pid) && (*left)-- > 0 ? error : absl::OkStatus();
    });
  }
  void StopAt(Call call, pid_t pid, Gate* gate, absl::Status then = absl::OkStatus()) {
    machine_->Interfere([=](Call c, const GpuJobId& id) {
      if (c != call || id.pid != pid) return absl::OkStatus();
      gate->Pass();
      return then;
    });
  }

  std::optional<TestMachine> machine_;
  std::optional<GpuArbiter> arbiter_;
};

TEST_F(GpuArbiterTest, AResidentJobIsLeasedAtOnceAndSeveralTimes) {
  Make({{"A", 10}});
  AddResident(1, {{"A", 4}});
  EXPECT_TRUE(LeaseAtOnce(1).ok());
  EXPECT_TRUE(LeaseAtOnce(1).ok());
  EXPECT_EQ(Look(1).leases, 2);
  EXPECT_TRUE(arbiter_->Release(1).ok());
  EXPECT_TRUE(arbiter_->Release(1, Id(1).start_ticks).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(arbiter_->Release(1)));
  EXPECT_THAT(machine_->TakeCalls(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(Lease(2)));
  EXPECT_TRUE(absl::IsNotFound(arbiter_->Release(2)));
  EXPECT_TRUE(absl::IsNotFound(arbiter_->Pin(2, true)));
  EXPECT_TRUE(absl::IsNotFound(arbiter_->Park(2)));
  EXPECT_EQ(arbiter_->counters().leases, 2u);
  EXPECT_EQ(arbiter_->counters().waits, 0u);
}

TEST_F(GpuArbiterTest, AParkedJobIsResumedWithoutParkingAnyoneWhereThereIsRoom) {
  Make({{"A", 10}});
  AddResident(1, {{"A", 4}});
  AddParked(2, {{"A", 6}});
  auto lease = arbiter_->Lease(2, {});
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(lease->resumed);
  EXPECT_THAT(lease->parked, IsEmpty());
  EXPECT_EQ(lease->job, Id(2));
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("resume 2"));
  EXPECT_EQ(arbiter_->host_bytes(), 0u);
}

TEST_F(GpuArbiterTest, TheLeastRecentlyUsedMakeRoomAndNoMoreThanMust) {
  Make({{"A", 12}});
  for (pid_t pid : {1, 2, 3, 4}) AddResident(pid, {{"A", 3}});
  AddParked(5, {{"A", 6}});
  for (pid_t pid : {1, 3}) {  // so that 2 and 4 are the oldest
    ASSERT_TRUE(LeaseAtOnce(pid).ok());
    ASSERT_TRUE(arbiter_->Release(pid).ok());
  }
  auto lease = arbiter_->Lease(5, {});
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_THAT(lease->parked, ElementsAre(2, 4));
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 2", "park 4", "resume 5"));
  EXPECT_EQ(arbiter_->host_bytes(), 6 * kGiB);
  EXPECT_EQ(machine_->host_used(), 6 * kGiB);
  EXPECT_EQ(arbiter_->counters().evictions, 2u);
}

TEST_F(GpuArbiterTest, LeasedAndPinnedJobsAndThoseOnOtherGpusStay) {
  Make({{"A", 12}, {"B", 4}});
  for (pid_t pid : {1, 2, 3}) AddResident(pid, {{"A", 4}});
  AddResident(4, {{"B", 4}});
  AddParked(5, {{"A", 4}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  ASSERT_TRUE(arbiter_->Release(1).ok());
  ASSERT_TRUE(LeaseAtOnce(2).ok());  // leased
  ASSERT_TRUE(arbiter_->Pin(3, true).ok());
  ASSERT_TRUE(Lease(5).ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 1", "resume 5"));

  // The pin of a lease outlives it.
  ASSERT_TRUE(arbiter_->Release(5).ok());
  LeaseOptions pin;
  pin.pin = true;
  ASSERT_TRUE(Lease(5, pin).ok());
  ASSERT_TRUE(arbiter_->Release(5).ok());
  Asked first(this, 1);
  AwaitWaits(1);
  ASSERT_TRUE(arbiter_->Pin(3, false).ok());
  EXPECT_TRUE(first.Result().ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 3", "resume 1"));
}

TEST_F(GpuArbiterTest, SmallJobsAreSparedWhereALargerOneMustGoAnyway) {
  Make({{"A", 12}});
  AddResident(1, {{"A", 2}});
  AddResident(2, {{"A", 10}});
  AddParked(3, {{"A", 9}});
  ASSERT_TRUE(Lease(3).ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 2", "resume 3"));
}

TEST_F(GpuArbiterTest, NobodyIsParkedWhereItWouldNotSuffice) {
  Make({{"A", 12}});
  AddResident(1, {{"A", 4}});
  AddResident(2, {{"A", 8}});
  AddParked(3, {{"A", 9}});
  ASSERT_TRUE(LeaseAtOnce(2).ok());
  Asked asked(this, 3);
  AwaitWaits(1);
  EXPECT_THAT(machine_->TakeCalls(), IsEmpty());
  ASSERT_TRUE(arbiter_->Release(2).ok());
  EXPECT_TRUE(asked.Result().ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 1", "park 2", "resume 3"));
}

TEST_F(GpuArbiterTest, ARequestWaitsForEarlierOnesOnItsGpuAndForNoOthers) {
  Make({{"A", 8}, {"B", 8}});
  AddResident(1, {{"A", 8}});
  AddResident(2, {{"B", 4}});
  AddParked(3, {{"A", 8}});
  AddParked(4, {{"B", 4}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  Asked earlier(this, 3);
  AwaitWaits(1);
  // Its job is there, but it came later.
  absl::Status refused = LeaseAtOnce(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("job 3"));
  Asked later(this, 1);
  AwaitWaits(3);
  EXPECT_TRUE(LeaseAtOnce(2).ok());
  EXPECT_TRUE(Lease(4).ok());
  EXPECT_EQ(Look(3).position, 1);
  EXPECT_EQ(Look(1).position, 2);
  EXPECT_EQ(Look(1).waiters, 1);
  EXPECT_EQ(Look(2).position, 0);

  ASSERT_TRUE(arbiter_->Release(1).ok());
  EXPECT_TRUE(earlier.Result().ok());
  AwaitWaits(3);
  EXPECT_EQ(Look(1).state, GpuJobState::kParked);
  ASSERT_TRUE(arbiter_->Release(3).ok());
  EXPECT_TRUE(later.Result().ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("resume 4", "park 1", "resume 3", "park 3", "resume 1"));
}

TEST_F(GpuArbiterTest, AJobOnTwoGpusWaitsItsTurnOnBothAndHoldsItOnBoth) {
  Make({{"A", 8}, {"B", 8}, {"C", 8}});
  AddResident(1, {{"A", 8}});
  AddResident(2, {{"B", 8}});
  AddResident(3, {{"C", 8}});
  AddParked(4, {{"A", 8}, {"B", 8}});
  AddParked(5, {{"B", 8}, {"C", 8}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  Asked two(this, 4);
  AwaitWaits(1);
  Asked behind(this, 5);
  AwaitWaits(2);
  // Behind the second, which is behind the first.
  EXPECT_TRUE(absl::IsDeadlineExceeded(LeaseAtOnce(3)));
  EXPECT_EQ(Look(5).position, 2);
  ASSERT_TRUE(arbiter_->Release(1).ok());
  EXPECT_TRUE(two.Result().ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 2", "park 1", "resume 4"));
  ASSERT_TRUE(arbiter_->Release(4).ok());
  EXPECT_TRUE(behind.Result().ok());
  EXPECT_THAT(machine_->TakeCalls(), UnorderedElementsAre("park 3", "park 4", "resume 5"));
}

TEST_F(GpuArbiterTest, ATimeOutSaysWhoHasTheMemoryAndIsInNobodysWay) {
  Make({{"A", 12}});
  AddResident(1, {{"A", 4}});
  AddResident(2, {{"A", 6}});
  AddParked(3, {{"A", 10}});
  machine_->SetOutsiders("A", kGiB);
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  absl::Status timed_out = Lease(3, Within(absl::Milliseconds(1)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(timed_out)) << timed_out;
  Asked asked(this, 3, Within(absl::Milliseconds(20)));
  timed_out = asked.Result();
  EXPECT_TRUE(absl::IsDeadlineExceeded(timed_out)) << timed_out;
  EXPECT_THAT(timed_out.message(), AllOf(HasSubstr("A has 1.0 GiB free of the 10.0 GiB"),
                                         HasSubstr("job 1 has 4.0 GiB, leased 1 time"),
                                         HasSubstr("job 2 has 6.0 GiB"), HasSubstr("others have 1.0 GiB")));
  LeaseOptions past;
  past.deadline = absl::Now() - absl::Seconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Lease(3, past)));
  EXPECT_TRUE(LeaseAtOnce(2).ok());
  EXPECT_EQ(arbiter_->counters().timeouts, 3u);
  EXPECT_THAT(machine_->TakeCalls(), IsEmpty());
}

TEST_F(GpuArbiterTest, WhoNeverFitsIsRefusedAtOnce) {
  Make({{"A", 12}});
  AddResident(1, {{"A", 4}});
  AddParked(2, {{"A", 13}});
  AddParked(3, {{"A", 9}});
  absl::Status refused = Lease(2);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("13.0 GiB"), HasSubstr("12.0 GiB")));
  {
    // Also where others wait.
    ASSERT_TRUE(LeaseAtOnce(1).ok());
    Asked earlier(this, 3);
    AwaitWaits(1);
    EXPECT_TRUE(absl::IsResourceExhausted(Lease(2)));
    ASSERT_TRUE(arbiter_->Release(1).ok());
    EXPECT_TRUE(earlier.Result().ok());
    ASSERT_TRUE(arbiter_->Release(3).ok());
    ASSERT_TRUE(Lease(1).ok());
    ASSERT_TRUE(arbiter_->Release(1).ok());
    machine_->TakeCalls();
  }
  // Nor does one fit beside a pinned job that leaves too little.
  ASSERT_TRUE(arbiter_->Pin(1, true).ok());
  refused = Lease(3);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("job 1 has 4.0 GiB, pinned"), HasSubstr("Unpin")));
  AddParked(4, {{"gone", 1}});
  refused = Lease(4);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  arbiter_->SetDeviceTotals({{"A", 8 * kGiB}});
  ASSERT_TRUE(arbiter_->Pin(1, false).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Lease(3)));
  EXPECT_EQ(arbiter_->counters().refused, 5u);
  EXPECT_THAT(machine_->TakeCalls(), IsEmpty());
}

TEST_F(GpuArbiterTest, TheHostBudgetRefusesWhereNothingElseIsUnderWay) {
  Make({{"A", 8}, {"B", 8}}, /*budget_gib=*/10);
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 4}});
  AddParked(3, {{"B", 5}});
  absl::Status refused = Lease(2);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("job 2 has 4.0 GiB"), HasSubstr("job 3 has 5.0 GiB"),
                                       HasSubstr("10.0 GiB of host memory"), HasSubstr("raise the budget")));
  refused = arbiter_->Park(1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(machine_->TakeCalls(), IsEmpty());

  // There is no way round the budget while a lease lasts, and none after it.
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Lease(2)));
  // Once a parked job is gone there is.
  machine_->Kill(Id(3));
  ASSERT_TRUE(arbiter_->Release(1).ok());
  arbiter_->SetBytes(Id(1), {{"A", 8 * kGiB}});
  EXPECT_TRUE(absl::IsResourceExhausted(Lease(2)));  // 4 + 8 are too many still
  machine_->Kill(Id(2));
  arbiter_->Forget(Id(2));
  EXPECT_TRUE(arbiter_->Park(1).ok());
  EXPECT_EQ(arbiter_->host_bytes(), 8 * kGiB);
}

TEST_F(GpuArbiterTest, TheHostBudgetMakesWaitWhileAnotherJobIsOnItsWayBack) {
  Make({{"A", 8}, {"B", 8}}, /*budget_gib=*/12);
  AddResident(1, {{"A", 6}});
  AddParked(2, {{"A", 6}});
  AddParked(3, {{"B", 6}});
  Gate gate;
  StopAt(Call::kResume, 3, &gate);
  Asked elsewhere(this, 3);
  gate.AwaitReached();
  Asked asked(this, 2);
  AwaitWaits(1);
  absl::Status timed_out = Lease(2, Within(absl::ZeroDuration()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(timed_out)) << timed_out;
  gate.Open();
  EXPECT_TRUE(elsewhere.Result().ok());
  EXPECT_TRUE(asked.Result().ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("resume 3", "park 1", "resume 2"));
}

TEST_F(GpuArbiterTest, TheHostBudgetMakesWaitWhileAnotherRequestMayGiveSomeBack) {
  Make({{"A", 6}, {"B", 5}}, /*budget_gib=*/14);
  AddResident(1, {{"A", 6}});
  AddParked(2, {{"A", 6}});
  AddParked(3, {{"B", 4}});
  AddResident(4, {{"B", 2}});
  ASSERT_TRUE(LeaseAtOnce(4).ok());
  Asked elsewhere(this, 3);
  AwaitWaits(1);
  Asked asked(this, 2);
  AwaitWaits(2);
  EXPECT_THAT(machine_->TakeCalls(), IsEmpty());
  ASSERT_TRUE(arbiter_->Release(4).ok());
  EXPECT_TRUE(elsewhere.Result().ok());
  EXPECT_TRUE(asked.Result().ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 4", "resume 3", "park 1", "resume 2"));
}

TEST_F(GpuArbiterTest, OneWhoFitsTheHostBudgetIsParkedInsteadOfAnOlderOneWhoDoesNot) {
  Make({{"A", 8}, {"B", 8}}, /*budget_gib=*/8);
  AddResident(1, {{"A", 4}, {"B", 4}});  // the oldest takes 8
  AddResident(2, {{"A", 4}});
  AddParked(3, {{"A", 4}});
  ASSERT_TRUE(Lease(3).ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 2", "resume 3"));
}

TEST_F(GpuArbiterTest, ACancelledRequestLeavesTheQueue) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 8}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  std::atomic<bool> gone{false};
  LeaseOptions options;
  options.cancelled = [&] { return gone.load(); };
  Asked head(this, 2, options);
  AwaitWaits(1);
  Asked behind(this, 1, options);
  AwaitWaits(2);
  Asked last(this, 1);
  AwaitWaits(3);
  gone = true;
  arbiter_->Wake();
  EXPECT_TRUE(absl::IsCancelled(head.Result()));
  EXPECT_TRUE(absl::IsCancelled(behind.Result()));
  EXPECT_TRUE(last.Result().ok());
  EXPECT_EQ(arbiter_->counters().cancelled, 2u);
}

TEST_F(GpuArbiterTest, NothingIsMovedForARequestThatIsCancelledWhileTheDriverIsAsked) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 8}});
  std::atomic<bool> gone{false};
  LeaseOptions options;
  options.cancelled = [&] { return gone.load(); };
  Gate gate;
  StopAt(Call::kFreeBytes, 0, &gate);
  Asked asked(this, 2, options);
  gate.AwaitReached();
  gone = true;
  gate.Open();
  EXPECT_TRUE(absl::IsCancelled(asked.Result()));
  EXPECT_THAT(machine_->TakeCalls(), IsEmpty());
}

TEST_F(GpuArbiterTest, AJobThatSomebodyWaitsForIsParkedLast) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 4}});
  AddResident(2, {{"A", 4}});
  AddParked(3, {{"A", 4}});
  Gate gate;
  StopAt(Call::kFreeBytes, 0, &gate);
  Asked head(this, 3);
  gate.AwaitReached();
  Asked behind(this, 1);
  AwaitWaits(1);
  gate.Open();
  EXPECT_TRUE(head.Result().ok());
  EXPECT_TRUE(behind.Result().ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 2", "resume 3"));
}

TEST_F(GpuArbiterTest, AfterAFailedParkItIsDecidedAnewWhoGoes) {
  Make({{"A", 16}});
  AddResident(1, {{"A", 4}});
  AddResident(2, {{"A", 4}});
  AddResident(3, {{"A", 8}});
  AddParked(4, {{"A", 8}});
  FailNext(Call::kPark, 1, absl::InternalError("the driver says no"));
  EXPECT_TRUE(Lease(4).ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 1", "park 3", "resume 4"));
}

TEST_F(GpuArbiterTest, ALeaseThatIsCancelledDuringTheMoveIsNotGiven) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 4}});
  AddResident(2, {{"A", 4}});
  AddParked(3, {{"A", 8}});
  std::atomic<bool> gone{false};
  LeaseOptions options;
  options.cancelled = [&] { return gone.load(); };
  Gate parking;
  StopAt(Call::kPark, 1, &parking);
  Asked first(this, 3, options);
  parking.AwaitReached();
  EXPECT_EQ(Look(2).state, GpuJobState::kParking);  // chosen too
  gone = true;
  parking.Open();
  EXPECT_TRUE(absl::IsCancelled(first.Result()));
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 1"));
  EXPECT_EQ(Look(2).state, GpuJobState::kResident);
  EXPECT_EQ(arbiter_->host_bytes(), machine_->host_used());

  gone = false;
  Gate resuming;
  StopAt(Call::kResume, 3, &resuming);
  Asked second(this, 3, options);
  resuming.AwaitReached();
  EXPECT_EQ(Look(3).state, GpuJobState::kResuming);
  gone = true;
  resuming.Open();
  EXPECT_TRUE(absl::IsCancelled(second.Result()));
  EXPECT_EQ(Look(3).state, GpuJobState::kResident);
  EXPECT_EQ(Look(3).leases, 0);
  EXPECT_EQ(arbiter_->host_bytes(), machine_->host_used());
}

TEST_F(GpuArbiterTest, WhileAMoveHangsOthersTimeOutAndOtherGpusGoOn) {
  Make({{"A", 8}, {"B", 8}});
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 8}});
  AddParked(3, {{"B", 8}});
  Gate gate;
  StopAt(Call::kPark, 1, &gate);
  Asked hangs(this, 2);
  gate.AwaitReached();
  Asked behind(this, 1, Within(absl::Milliseconds(20)));
  absl::Status timed_out = behind.Result();
  EXPECT_TRUE(absl::IsDeadlineExceeded(timed_out)) << timed_out;
  EXPECT_TRUE(Lease(3).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(arbiter_->Release(1)));
  gate.Open();
  EXPECT_TRUE(hangs.Result().ok());
}

TEST_F(GpuArbiterTest, WhereOneCannotBeParkedAnotherIs) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 4}});
  AddResident(2, {{"A", 4}});
  AddParked(3, {{"A", 4}});
  FailNext(Call::kPark, 1, absl::InternalError("the driver says no"), 100);
  auto lease = arbiter_->Lease(3, {});
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_THAT(lease->parked, ElementsAre(2));
  EXPECT_EQ(Look(1).state, GpuJobState::kResident);
  EXPECT_EQ(arbiter_->host_bytes(), machine_->host_used());
  EXPECT_EQ(arbiter_->counters().failures, 1u);

  // With nobody else left the time-out says why.
  Asked asked(this, 2, Within(absl::Milliseconds(20)));
  absl::Status timed_out = asked.Result();
  EXPECT_TRUE(absl::IsDeadlineExceeded(timed_out)) << timed_out;
  EXPECT_THAT(timed_out.message(), HasSubstr("job 1 could not be parked: the driver says no"));
}

TEST_F(GpuArbiterTest, AFailedParkIsTriedAgainAfterAWhile) {
  Make({{"A", 8}}, 1000, /*reread=*/absl::Milliseconds(1));
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 8}});
  FailNext(Call::kPark, 1, absl::AbortedError("being captured"), 3);
  EXPECT_TRUE(Lease(2).ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 1", "park 1", "park 1", "park 1", "resume 2"));
}

TEST_F(GpuArbiterTest, AFailedResumeLeavesTheJobParkedAndIsInNobodysWay) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 4}});
  AddParked(2, {{"A", 4}});
  FailNext(Call::kResume, 2, absl::InternalError("the driver says no"));
  absl::Status failed = Lease(2);
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_THAT(failed.message(), AllOf(HasSubstr("job 2"), HasSubstr("still parked"), HasSubstr("says no")));
  EXPECT_EQ(Look(2).state, GpuJobState::kParked);
  EXPECT_EQ(arbiter_->host_bytes(), 4 * kGiB);
  EXPECT_TRUE(LeaseAtOnce(1).ok());
  EXPECT_TRUE(Lease(2).ok());

  ASSERT_TRUE(arbiter_->Release(2).ok());
  ASSERT_TRUE(arbiter_->Park(2).ok());
  FailNext(Call::kFreeBytes, 0, absl::UnavailableError("the helper has died"));
  failed = Lease(2);
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_TRUE(Lease(2).ok());
}

TEST_F(GpuArbiterTest, AResumeThatIsNotPossibleNowIsTriedAgain) {
  Make({{"A", 8}}, 1000, /*reread=*/absl::Milliseconds(1));
  AddParked(1, {{"A", 8}});
  FailNext(Call::kResume, 1, absl::AbortedError("being captured"), 3);
  EXPECT_TRUE(Lease(1).ok());
  EXPECT_EQ(arbiter_->counters().failures, 3u);
}

TEST_F(GpuArbiterTest, WhereRoomWasOnlySeemingAnotherJobMakesRoom) {
  Make({{"A", 12}});
  AddResident(1, {{"A", 4}});
  AddResident(2, {{"A", 4}});
  AddParked(3, {{"A", 4}});
  FailNext(Call::kResume, 3, absl::ResourceExhaustedError("fragmented"));
  auto lease = arbiter_->Lease(3, {});
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_THAT(lease->parked, ElementsAre(1));
}

TEST_F(GpuArbiterTest, RoomThatOthersMakeIsNoticed) {
  Make({{"A", 8}}, 1000, /*reread=*/absl::Milliseconds(1));
  AddParked(1, {{"A", 4}});
  machine_->SetOutsiders("A", 6 * kGiB);
  Asked asked(this, 1);
  AwaitWaits(1);
  machine_->SetOutsiders("A", 4 * kGiB);
  EXPECT_TRUE(asked.Result().ok());
}

TEST_F(GpuArbiterTest, ALeasedJobThatDiesUnseenHoldsNobodyUp) {
  Make({{"A", 8}}, 1000, /*reread=*/absl::Milliseconds(1));
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 8}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  Asked asked(this, 2);
  AwaitWaits(1);
  machine_->Kill(Id(1));
  EXPECT_TRUE(asked.Result().ok());
  EXPECT_TRUE(absl::IsNotFound(arbiter_->Release(1)) || Look(1).leases == 0);
  EXPECT_TRUE(absl::IsNotFound(Lease(1)));
  EXPECT_EQ(arbiter_->counters().deaths, 1u);
}

TEST_F(GpuArbiterTest, WhoWaitsForAJobThatEndsIsToldSo) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 8}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  Asked head(this, 2);
  AwaitWaits(1);
  Asked behind(this, 2);
  AwaitWaits(2);
  machine_->Kill(Id(2));
  arbiter_->Forget(Id(2));
  EXPECT_TRUE(absl::IsNotFound(head.Result()));
  EXPECT_TRUE(absl::IsNotFound(behind.Result()));
  EXPECT_EQ(arbiter_->host_bytes(), 0u);
  EXPECT_TRUE(LeaseAtOnce(1).ok());
}

TEST_F(GpuArbiterTest, AJobThatDiedUnseenWhileItWasWaitedForIsNotLeased) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 4}});
  AddResident(2, {{"A", 4}});
  AddParked(3, {{"A", 8}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  std::atomic<bool> gone{false};
  LeaseOptions options;
  options.cancelled = [&] { return gone.load(); };
  Asked head(this, 3, options);
  AwaitWaits(1);
  Asked behind(this, 2);
  AwaitWaits(2);
  machine_->Kill(Id(2));
  gone = true;
  arbiter_->Wake();
  EXPECT_TRUE(absl::IsCancelled(head.Result()));
  EXPECT_TRUE(absl::IsNotFound(behind.Result()));
}

TEST_F(GpuArbiterTest, AJobThatIsForgottenInTheMiddleOfItsMove) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 8}});
  Gate gate;
  StopAt(Call::kPark, 1, &gate);
  Asked asked(this, 2);
  gate.AwaitReached();
  arbiter_->Forget(Id(1));
  gate.Open();
  EXPECT_TRUE(asked.Result().ok());
  EXPECT_EQ(arbiter_->host_bytes(), 0u);
}

TEST_F(GpuArbiterTest, DeathsInTheMiddleOfAMove) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 8}});
  Gate parking;
  StopAt(Call::kPark, 1, &parking);
  Asked asked(this, 2);
  parking.AwaitReached();
  machine_->Kill(Id(1));
  arbiter_->Forget(Id(1));
  EXPECT_EQ(arbiter_->host_bytes(), 16 * kGiB);  // until its move has ended
  parking.Open();
  EXPECT_TRUE(asked.Result().ok());
  EXPECT_EQ(arbiter_->host_bytes(), 0u);

  AddParked(3, {{"A", 8}});
  ASSERT_TRUE(arbiter_->Release(2).ok());
  Gate resuming;
  StopAt(Call::kResume, 3, &resuming);
  Asked dying(this, 3);
  resuming.AwaitReached();
  machine_->Kill(Id(3));
  resuming.Open();
  EXPECT_TRUE(absl::IsNotFound(dying.Result()));
  EXPECT_EQ(arbiter_->host_bytes(), machine_->host_used());
  EXPECT_TRUE(Lease(2).ok());
}

TEST_F(GpuArbiterTest, AnotherProcessWithTheSamePidIsAnotherJob) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 8}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  machine_->Kill(Id(1));
  const GpuJobId second{1, 77};
  ASSERT_TRUE(machine_->Start(second, {{"A", kGiB}}, true));
  arbiter_->Add(second, {{"A", kGiB}}, GpuJobState::kResident);
  EXPECT_EQ(Look(1).leases, 0);
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  EXPECT_TRUE(absl::IsNotFound(arbiter_->Release(1, Id(1).start_ticks)));
  arbiter_->Forget(Id(1));
  EXPECT_EQ(Look(1).leases, 1);
  EXPECT_TRUE(arbiter_->Release(1, 77).ok());
}

TEST_F(GpuArbiterTest, ParkingByHandKeepsToTheRules) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 8}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(arbiter_->Park(1)));
  ASSERT_TRUE(arbiter_->Release(1).ok());
  ASSERT_TRUE(arbiter_->Pin(1, true).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(arbiter_->Park(1)));
  ASSERT_TRUE(arbiter_->Pin(1, false).ok());
  Gate gate;
  StopAt(Call::kPark, 1, &gate, absl::InternalError("the driver says no"));
  std::thread parking([&] { EXPECT_TRUE(absl::IsInternal(arbiter_->Park(1))); });
  gate.AwaitReached();
  EXPECT_TRUE(absl::IsAborted(arbiter_->Park(1)));
  Asked asked(this, 1);  // waits for the move to end
  AwaitWaits(1);
  gate.Open();
  parking.join();
  EXPECT_TRUE(asked.Result().ok());
  ASSERT_TRUE(arbiter_->Release(1).ok());
  machine_->Interfere(nullptr);
  EXPECT_TRUE(arbiter_->Park(1).ok());
  EXPECT_TRUE(arbiter_->Park(1).ok());
  EXPECT_EQ(Look(1).state, GpuJobState::kParked);
  EXPECT_EQ(arbiter_->host_bytes(), 8 * kGiB);
}

TEST_F(GpuArbiterTest, MovesMayCorrectWhatIsKnownOfAJob) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 8}});
  machine_->Interfere([this](Call call, const GpuJobId& id) {
    if (call == Call::kPark) arbiter_->SetBytes(id, {{"A", 5 * kGiB}});
    return absl::OkStatus();
  });
  ASSERT_TRUE(arbiter_->Park(1).ok());
  EXPECT_EQ(arbiter_->host_bytes(), 5 * kGiB);
  EXPECT_EQ(Look(1).bytes, (DeviceBytes{{"A", 5 * kGiB}}));
}

TEST_F(GpuArbiterTest, AJobThatMovesToOtherGpusWhileItIsWaitedForQueuesThere) {
  Make({{"A", 8}, {"B", 8}});
  AddResident(1, {{"A", 8}});
  AddResident(2, {{"B", 8}});
  AddParked(3, {{"A", 8}});
  AddParked(4, {{"B", 8}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  ASSERT_TRUE(LeaseAtOnce(2).ok());
  Asked moved(this, 3);
  AwaitWaits(1);
  Asked other(this, 4);
  AwaitWaits(2);
  // As if its state had been restored onto another GPU.
  machine_->Kill(Id(3));
  ASSERT_TRUE(machine_->Start(Id(3), {{"B", 8 * kGiB}}, false));
  arbiter_->SetBytes(Id(3), {{"B", 8 * kGiB}});
  while (Look(4).position != 2) std::this_thread::yield();  // the older request comes first there too
  ASSERT_TRUE(arbiter_->Release(2).ok());
  EXPECT_TRUE(moved.Result().ok());
  ASSERT_TRUE(arbiter_->Release(3).ok());
  EXPECT_TRUE(other.Result().ok());
}

TEST_F(GpuArbiterTest, StopEndsAllWaiting) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 8}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  Asked head(this, 2), behind(this, 2);
  AwaitWaits(2);
  arbiter_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(head.Result()));
  EXPECT_TRUE(absl::IsUnavailable(behind.Result()));
  EXPECT_TRUE(absl::IsUnavailable(Lease(1)));
  EXPECT_TRUE(arbiter_->Release(1).ok());
}

// 50 jobs, some on two GPUs, share 4 GPUs that hold a third of them and a host budget that does not hold the
// rest; everything that may go wrong does.
TEST_F(GpuArbiterTest, TenThousandLeasesAtRandomWithFailuresDeathsAndTimeOuts) {
  constexpr int kJobs = 50, kThreads = 16, kLeases = 10000;
  const std::vector<std::string> gpus = {"A", "B", "C", "D"};
  std::mt19937 random(4711);
  struct Server {
    absl::Mutex mutex;
    DeviceBytes bytes;  // written before the threads start
    GpuJobId id ABSL_GUARDED_BY(mutex);
    bool dead ABSL_GUARDED_BY(mutex) = false;
  };
  std::vector<Server> servers(kJobs);
  uint64_t all = 0;
  DeviceBytes totals;
  for (int i = 0; i < kJobs; ++i) {
    const size_t gpu = static_cast<size_t>(i) % gpus.size();
    servers[i].bytes[gpus[gpu]] = 1 + random() % 4;
    if (i % 6 == 0) servers[i].bytes[gpus[(gpu + 1 + random() % 3) % gpus.size()]] = 1 + random() % 4;
    all += TestMachine::Sum(servers[i].bytes);
  }
  for (const std::string& gpu : gpus) totals[gpu] = all / 12;
  // Not all fit into the GPUs and the budget: some start later.
  const uint64_t budget = all / 2 + 4;
  machine_.emplace(totals, budget);
  GpuArbiterOptions options;
  options.host_budget = budget;
  options.device_totals = totals;
  options.reread_interval = absl::Milliseconds(3);
  options.cancel_interval = absl::Milliseconds(1);
  arbiter_.emplace(&*machine_, options);

  std::atomic<uint64_t> ticks{1};
  std::atomic<int> leases{0}, deaths{0}, starts{0}, on_devices{0}, injected{0}, cancelled{0};
  auto start = [&](int i, bool resident) {
    absl::MutexLock lock(&servers[i].mutex);
    const GpuJobId id{100 + i, ticks++};
    if (!machine_->Start(id, servers[i].bytes, resident)) {
      servers[i].dead = true;
      return false;
    }
    servers[i].id = id;
    servers[i].dead = false;
    arbiter_->Add(id, servers[i].bytes, resident ? GpuJobState::kResident : GpuJobState::kParked);
    return true;
  };
  for (int i = 0; i < kJobs; ++i) {
    if (!start(i, true) && machine_->host_used() + TestMachine::Sum(servers[i].bytes) <= budget)
      start(i, false);
  }
  ASSERT_GE(machine_->Jobs().size(), 35u);
  ASSERT_GE(machine_->host_used(), budget / 2);

  std::atomic<uint32_t> dice{1};
  machine_->Interfere([&](Call call, const GpuJobId&) {
    // The same mixture in every run, whoever gets which.
    uint32_t value = dice++ * 2654435761u;
    value ^= value >> 15;
    for (uint32_t i = 0; i < value % 8; ++i) std::this_thread::yield();
    if (value % 29 != 0) return absl::OkStatus();
    ++injected;
    if (call == Call::kFreeBytes) return absl::UnavailableError("injected");
    switch (value / 29 % 3) {
      case 0:
        return absl::AbortedError("injected");
      case 1:
        return absl::ResourceExhaustedError("injected");
      default:
        return absl::InternalError("injected");
    }
  });

  auto work = [&](uint32_t seed) {
    std::mt19937 own(seed);
    auto chance = [&](uint32_t per_mille) { return own() % 1000 < per_mille; };
    while (leases < kLeases) {
      const int i = static_cast<int>(own() % kJobs);
      Server& server = servers[static_cast<size_t>(i)];
      GpuJobId id;
      bool dead;
      {
        absl::MutexLock lock(&server.mutex);
        id = server.id;
        dead = server.dead;
        if (!dead && chance(5)) {
          machine_->Kill(id);
          server.dead = dead = true;
          ++deaths;
          if (chance(500)) arbiter_->Forget(id);  // else it is for the arbiter to see
        }
      }
      if (dead) {
        // The new process has the old one's PID.
        if (start(i, true)) {
          ++starts;
          on_devices += static_cast<int>(server.bytes.size());
        }
        continue;
      }
      if (chance(20)) {
        EXPECT_TRUE(arbiter_->Pin(id.pid, chance(200)).ok() || !machine_->IsAlive(id));
      }
      if (chance(5)) arbiter_->Park(id.pid).IgnoreError();
      if (chance(5)) arbiter_->Wake();
      LeaseOptions lease_options;
      lease_options.timeout = chance(800) ? absl::Milliseconds(own() % 50) : absl::Microseconds(own() % 1000);
      int asked = 0;
      const int patience = chance(100) ? static_cast<int>(own() % 5) : 1000000;
      lease_options.cancelled = [&] { return ++asked > patience; };
      absl::StatusOr<GpuLease> lease = arbiter_->Lease(id.pid, lease_options);
      if (absl::IsCancelled(lease.status())) ++cancelled;
      if (!lease.ok()) continue;
      ++leases;
      const bool used = machine_->Use(lease->job);
      for (uint32_t n = own() % 20; n > 0; --n) std::this_thread::yield();
      if (used) machine_->Unuse(lease->job);
      absl::Status released = arbiter_->Release(lease->job.pid, lease->job.start_ticks);
      EXPECT_TRUE(released.ok() || (absl::IsNotFound(released) && !machine_->IsAlive(lease->job)))
          << released;
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) threads.emplace_back(work, 1000 + t);
  for (std::thread& thread : threads) thread.join();
  machine_->Interfere(nullptr);

  // Everybody can still be served, one after the other, and has what it had.
  for (GpuJobSnapshot& job : arbiter_->Snapshot()) {
    EXPECT_EQ(job.leases, 0) << job.id.pid;
    EXPECT_EQ(job.waiters, 0) << job.id.pid;
    EXPECT_TRUE(job.state == GpuJobState::kResident || job.state == GpuJobState::kParked) << job.id.pid;
    if (!machine_->IsAlive(job.id)) {
      arbiter_->Forget(job.id);
      continue;
    }
    EXPECT_EQ(job.state == GpuJobState::kResident, machine_->IsResident(job.id)) << job.id.pid;
    EXPECT_TRUE(machine_->IsIntact(job.id)) << job.id.pid;
    ASSERT_TRUE(arbiter_->Pin(job.id.pid, false).ok());
  }
  EXPECT_EQ(arbiter_->host_bytes(), machine_->host_used());
  for (const GpuJobId& job : machine_->Jobs()) {
    absl::Status served = Lease(job.pid, Within(absl::Seconds(30)));
    // The host budget may stand against it for good.
    EXPECT_TRUE(served.ok() || absl::IsResourceExhausted(served)) << served;
    if (served.ok()) {
      EXPECT_TRUE(arbiter_->Release(job.pid).ok());
    }
  }
  // Only a server that was started meanwhile can have taken room that had been found.
  EXPECT_LE(machine_->overfull(), on_devices.load());
  const GpuArbiterCounters counters = arbiter_->counters();
  EXPECT_GE(leases.load(), kLeases);
  EXPECT_GT(counters.evictions, 500u);
  EXPECT_GT(counters.timeouts, 100u);
  EXPECT_GT(counters.failures, 50u);
  EXPECT_GT(cancelled.load(), 50);
  EXPECT_GT(deaths.load(), 20);
  EXPECT_GT(starts.load(), 20);
  EXPECT_GT(injected.load(), 100);
  RecordProperty("evictions", static_cast<int>(counters.evictions));
  RecordProperty("timeouts", static_cast<int>(counters.timeouts));
  RecordProperty("deaths", deaths.load());
}

}  // namespace
}  // namespace rekindle::daemon
