// Whose turn it is, who makes room, and who is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/test_gpu_arbiter.h"

namespace rekindle::daemon {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

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

TEST_F(GpuArbiterTest, AJobMovesWithTheTreeThatItIsPartOf) {
  Make({{"A", 12}});
  AddResident(1, {{"A", 4}});  // the whole tree
  AddResident(2, {{"A", 4}});
  AddParked(3, {{"A", 8}});
  machine_->SetParent(2, 1);
  for (pid_t used : {1, 2}) {
    const pid_t other = 3 - used;
    ASSERT_TRUE(LeaseAtOnce(used).ok());
    EXPECT_TRUE(absl::IsDeadlineExceeded(Lease(3, Within(absl::Milliseconds(1)))));
    const absl::Status leased = arbiter_->Park(other);
    EXPECT_TRUE(absl::IsFailedPrecondition(leased));
    EXPECT_THAT(std::string(leased.message()),
                AllOf(HasSubstr(absl::StrCat("job ", used)), HasSubstr("leased")));
    ASSERT_TRUE(arbiter_->Release(used).ok());
    ASSERT_TRUE(arbiter_->Pin(used, true).ok());
    EXPECT_FALSE(Lease(3, Within(absl::Milliseconds(1))).ok());
    EXPECT_THAT(std::string(arbiter_->Park(other).message()), HasSubstr("--unpin"));
    ASSERT_TRUE(arbiter_->Pin(used, false).ok());
  }
  EXPECT_THAT(machine_->TakeCalls(), IsEmpty());
  // As one: the tree goes, and brings what it has once.
  auto lease = arbiter_->Lease(3, {});
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_THAT(lease->parked, ElementsAre(1));
  EXPECT_EQ(Look(2).state, GpuJobState::kParked);
  EXPECT_EQ(arbiter_->host_bytes(), 4 * kGiB);
}

TEST_F(GpuArbiterTest, HostMemoryOfATreeAndOfAPartOfItCountsOnce) {
  Make({{"A", 16}});
  const DeviceBytes of_tree = {{"A", 8 * kGiB}}, of_part = {{"A", 4 * kGiB}};
  AddParked(1, {{"A", 8}});
  // Both were parked before this start.
  arbiter_->Add(Id(2), of_part, GpuJobState::kParked);
  AddResident(3, {{"A", 2}});
  machine_->SetParent(2, 1);
  ASSERT_TRUE(LeaseAtOnce(3).ok());
  EXPECT_EQ(arbiter_->host_bytes(), 8 * kGiB);
  // One of them is looked at again.
  arbiter_->Add(Id(2), of_part, GpuJobState::kParked);
  EXPECT_EQ(arbiter_->host_bytes(), 8 * kGiB);
  arbiter_->Add(Id(1), of_tree, GpuJobState::kParked);
  EXPECT_EQ(arbiter_->host_bytes(), 8 * kGiB);
  // The tree is nobody's business any more, and its part is still parked.
  arbiter_->Forget(Id(1));
  EXPECT_EQ(arbiter_->host_bytes(), 4 * kGiB);
  arbiter_->Forget(Id(2));
  EXPECT_EQ(arbiter_->host_bytes(), 0u);
}

TEST_F(GpuArbiterTest, APartThatIsParkedCountsStillWhereItsTreeCanNotBe) {
  Make({{"A", 16}});
  AddResident(1, {{"A", 8}});
  arbiter_->Add(Id(2), {{"A", 4 * kGiB}}, GpuJobState::kParked);
  machine_->SetParent(2, 1);
  FailNext(Call::kPark, 1, absl::InternalError("no"));
  EXPECT_FALSE(arbiter_->Park(1).ok());
  EXPECT_EQ(arbiter_->host_bytes(), 4 * kGiB);
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
  ASSERT_TRUE(AwaitWaits(1));
  ASSERT_TRUE(arbiter_->Pin(3, false).ok());
  EXPECT_TRUE(first.Result().ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 3", "resume 1"));
}

TEST_F(GpuArbiterTest, ALeaseWithAnIdIsTakenOnce) {
  Make({{"A", 10}});
  AddResident(1, {{"A", 6}});
  AddParked(2, {{"A", 6}});
  LeaseOptions named = Within(absl::ZeroDuration());
  named.id = "a";
  ASSERT_TRUE(Lease(1, named).ok());
  Asked waits(this, 2);
  ASSERT_TRUE(AwaitWaits(1));
  // It is not to wait for who waits for its end.
  EXPECT_TRUE(Lease(1, named).ok());
  EXPECT_EQ(Look(1).leases, 1);
  EXPECT_EQ(arbiter_->counters().leases, 1u);
  // The first one's caller has gone, the second one's may know of it still.
  EXPECT_TRUE(arbiter_->TakeBack(Id(1), LeaseKind::kLasting, "a").ok());
  EXPECT_EQ(Look(1).leases, 1);
  arbiter_->Confirm(Id(1), "a");
  ASSERT_TRUE(Lease(1, named).ok());
  EXPECT_TRUE(arbiter_->TakeBack(Id(1), LeaseKind::kLasting, "a").ok());
  EXPECT_EQ(Look(1).leases, 1);
  EXPECT_TRUE(arbiter_->Release(1, 0, LeaseKind::kLasting, "a").ok());
  EXPECT_TRUE(waits.Result().ok());
  EXPECT_EQ(Look(1).leases, 0);
  arbiter_->Confirm(Id(1), "a");
  EXPECT_EQ(Look(1).leases, 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(arbiter_->TakeBack(Id(1), LeaseKind::kLasting, "a")));
}

TEST_F(GpuArbiterTest, ALeaseWithAnIdThatNobodyKnowsOfEnds) {
  Make({{"A", 10}});
  AddResident(1, {{"A", 6}});
  LeaseOptions named;
  named.id = "a";
  for (int asked = 0; asked < 2; ++asked) ASSERT_TRUE(Lease(1, named).ok());
  EXPECT_TRUE(arbiter_->TakeBack(Id(1), LeaseKind::kLasting, "a").ok());
  EXPECT_EQ(Look(1).leases, 1);
  EXPECT_TRUE(arbiter_->TakeBack(Id(1), LeaseKind::kLasting, "a").ok());
  EXPECT_EQ(Look(1).leases, 0);
  EXPECT_THAT(Look(1).ids, IsEmpty());
  // One from before a restart somebody knows of.
  arbiter_->Inherit(Id(1), 0, /*pinned=*/false, {"b"});
  named.id = "b";
  ASSERT_TRUE(Lease(1, named).ok());
  EXPECT_TRUE(arbiter_->TakeBack(Id(1), LeaseKind::kLasting, "b").ok());
  EXPECT_EQ(Look(1).leases, 1);
}

TEST_F(GpuArbiterTest, JobsWithInheritedLeasesAndPinsStay) {
  Make({{"A", 12}});
  for (pid_t pid : {1, 2, 3}) AddResident(pid, {{"A", 4}});
  AddParked(4, {{"A", 4}});
  arbiter_->Inherit(Id(1), 2, /*pinned=*/false);
  arbiter_->Inherit(Id(2), 0, /*pinned=*/true);
  ASSERT_TRUE(LeaseAtOnce(3).ok());
  ASSERT_EQ(Look(1).leases, 2);
  ASSERT_TRUE(Look(2).pinned);
  ASSERT_TRUE(absl::IsFailedPrecondition(arbiter_->Park(1)));
  ASSERT_TRUE(absl::IsFailedPrecondition(arbiter_->Park(2)));
  Asked asked(this, 4);
  ASSERT_TRUE(AwaitWaits(1));
  EXPECT_TRUE(arbiter_->Release(1).ok());
  EXPECT_THAT(machine_->TakeCalls(), IsEmpty());
  EXPECT_TRUE(arbiter_->Release(1).ok());
  EXPECT_TRUE(asked.Result().ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 1", "resume 4"));
  EXPECT_TRUE(absl::IsFailedPrecondition(arbiter_->Release(1)));
}

TEST_F(GpuArbiterTest, LeasesAreInheritedBeforeTheJobIsKnownAndByThisProcessAlone) {
  Make({{"A", 12}});
  arbiter_->Inherit(Id(1), 1, /*pinned=*/true);
  AddParked(1, {{"A", 4}});
  EXPECT_EQ(Look(1).leases, 1);
  EXPECT_TRUE(Look(1).pinned);
  EXPECT_EQ(Look(1).state, GpuJobState::kParked);
  ASSERT_TRUE(Lease(1).ok());
  EXPECT_EQ(Look(1).leases, 2);
  // Another process with its PID.
  arbiter_->Add({1, 1}, {{"A", 4 * kGiB}}, GpuJobState::kResident);
  EXPECT_EQ(Look(1).leases, 0);
  EXPECT_FALSE(Look(1).pinned);
}

TEST_F(GpuArbiterTest, ALeaseWithAnIdEndsByItAlone) {
  Make({{"A", 12}});
  AddResident(1, {{"A", 4}});
  AddResident(2, {{"A", 4}});
  LeaseOptions named;
  for (const char* id : {"a", "b"}) {
    named.id = id;
    ASSERT_TRUE(Lease(1, named).ok());
  }
  ASSERT_TRUE(Lease(1).ok());
  LeaseOptions held;
  held.kind = LeaseKind::kHeld;
  ASSERT_TRUE(Lease(1, held).ok());
  EXPECT_EQ(Look(1).leases, 4);
  EXPECT_THAT(Look(1).ids, ElementsAre("a", "b"));
  const auto release = [this](const char* id, pid_t pid = 1) {
    return arbiter_->Release(pid, 0, LeaseKind::kLasting, id);
  };
  EXPECT_TRUE(release("a").ok());
  const absl::Status late = release("a");
  EXPECT_TRUE(absl::IsFailedPrecondition(late));
  EXPECT_THAT(std::string(late.message()), AllOf(HasSubstr("'a'"), HasSubstr("has ended")));
  EXPECT_TRUE(absl::IsFailedPrecondition(release("b", 2))) << "it is another job's";
  EXPECT_EQ(Look(1).leases, 3);
  // The one without an ID, and no other.
  EXPECT_TRUE(arbiter_->Release(1).ok());
  const absl::Status of_others = arbiter_->Release(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(of_others));
  EXPECT_THAT(std::string(of_others.message()), HasSubstr("--lease-id"));
  EXPECT_TRUE(release("b").ok());
  EXPECT_EQ(Look(1).leases, 1);
  EXPECT_EQ(Look(1).held, 1);
  // From before a restart, and not twice.
  for (int times : {1, 2}) {
    arbiter_->Inherit(Id(1), times == 1 ? 1 : 0, /*pinned=*/false, {"c"});
    EXPECT_EQ(Look(1).leases, 3);
  }
  EXPECT_TRUE(release("c").ok());
  EXPECT_TRUE(arbiter_->Release(1).ok());
  EXPECT_EQ(Look(1).leases, 1);
}

TEST_F(GpuArbiterTest, ALeaseThatIsHeldIsEndedByItsHolderAlone) {
  Make({{"A", 12}});
  AddResident(1, {{"A", 4}});
  LeaseOptions held;
  held.kind = LeaseKind::kHeld;
  ASSERT_TRUE(Lease(1, held).ok());
  EXPECT_EQ(Look(1).leases, 1);
  EXPECT_EQ(Look(1).held, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(arbiter_->Release(1)));
  ASSERT_TRUE(Lease(1).ok());
  EXPECT_EQ(Look(1).leases, 2);
  EXPECT_EQ(Look(1).held, 1);
  EXPECT_TRUE(arbiter_->Release(1, 0, LeaseKind::kHeld).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(arbiter_->Release(1, 0, LeaseKind::kHeld)));
  EXPECT_EQ(Look(1).leases, 1);
  EXPECT_TRUE(arbiter_->Release(1).ok());
  EXPECT_EQ(Look(1).leases, 0);
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
  ASSERT_TRUE(AwaitWaits(1));
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
  ASSERT_TRUE(AwaitWaits(1));
  // Its job is there, but it came later.
  absl::Status refused = LeaseAtOnce(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("job 3"));
  Asked later(this, 1);
  ASSERT_TRUE(AwaitWaits(3));
  EXPECT_TRUE(LeaseAtOnce(2).ok());
  EXPECT_TRUE(Lease(4).ok());
  EXPECT_EQ(Look(3).position, 1);
  EXPECT_EQ(Look(1).position, 2);
  EXPECT_EQ(Look(1).waiters, 1);
  EXPECT_EQ(Look(2).position, 0);

  ASSERT_TRUE(arbiter_->Release(1).ok());
  EXPECT_TRUE(earlier.Result().ok());
  ASSERT_TRUE(AwaitWaits(3));
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
  ASSERT_TRUE(AwaitWaits(1));
  Asked behind(this, 5);
  ASSERT_TRUE(AwaitWaits(2));
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
  EXPECT_THAT(
      timed_out.message(),
      AllOf(HasSubstr("A has 1.0 GiB free of the 10.0 GiB"), HasSubstr("job 1 has 4.0 GiB, leased 1 time"),
            HasSubstr("job 2 has 6.0 GiB"), HasSubstr("other programs, have 1.0 GiB")));
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
    ASSERT_TRUE(AwaitWaits(1));
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
  ASSERT_TRUE(arbiter_->SetBytes(Id(1), {{"A", 8 * kGiB}}).ok());
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
  ASSERT_TRUE(AwaitWaits(1));
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
  ASSERT_TRUE(AwaitWaits(1));
  Asked asked(this, 2);
  ASSERT_TRUE(AwaitWaits(2));
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

TEST_F(GpuArbiterTest, WhatMayHaveBeenAnywhereNeedsRoomEverywhereAndHostMemoryOnce) {
  Make({{"A", 8}, {"B", 8}}, 13);
  AddResident(1, {{"A", 6}});
  AddResident(2, {{"B", 6}});
  // It needs 4 on one of them, nobody knows on which.
  ASSERT_TRUE(machine_->Start(Id(3), {{"B", 4 * kGiB}}, false));
  arbiter_->Add(Id(3), {{"A", 4 * kGiB}, {"B", 4 * kGiB}}, GpuJobState::kParked, /*anywhere=*/true);
  EXPECT_EQ(arbiter_->host_bytes(), 4 * kGiB);
  const absl::Status no_budget = LeaseAtOnce(3);
  EXPECT_FALSE(no_budget.ok()) << "both would have to go, and there is host memory for one";
  EXPECT_THAT(machine_->TakeCalls(), IsEmpty());
  arbiter_->Add(Id(2), {{"B", 2 * kGiB}}, GpuJobState::kResident);
  machine_->Resize(Id(2), {{"B", 2 * kGiB}});
  EXPECT_TRUE(Lease(3).ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 1", "resume 3"));
}

}  // namespace
}  // namespace rekindle::daemon
