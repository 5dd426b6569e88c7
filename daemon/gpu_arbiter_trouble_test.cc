// Requests that are given up, moves that fail, jobs that end meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "daemon/test_gpu_arbiter.h"

namespace rekindle::daemon {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  StopAt(Call::kFreeMemory, 0, &gate);
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
  StopAt(Call::kFreeMemory, 0, &gate);
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
  FailNext(Call::kFreeMemory, 0, absl::UnavailableError("the helper has died"));
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
    return call == Call::kPark ? arbiter_->SetBytes(id, {{"A", 5 * kGiB}}) : absl::OkStatus();
  });
  ASSERT_TRUE(arbiter_->Park(1).ok());
  EXPECT_EQ(arbiter_->host_bytes(), 5 * kGiB);
  EXPECT_EQ(Look(1).bytes, (DeviceBytes{{"A", 5 * kGiB}}));
}

TEST_F(GpuArbiterTest, AJobThatHasGrownBeyondTheHostBudgetIsNotParked) {
  Make({{"A", 16}}, /*budget_gib=*/6);
  AddResident(1, {{"A", 4}});
  machine_->Interfere([this](Call call, const GpuJobId& id) {
    return call == Call::kPark ? arbiter_->SetBytes(id, {{"A", 9 * kGiB}}) : absl::OkStatus();
  });
  const absl::Status refused = arbiter_->Park(1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("grown to 9.0 GiB"), HasSubstr("6.0 GiB of host memory")));
  EXPECT_EQ(arbiter_->host_bytes(), 0u);
  EXPECT_EQ(Look(1).state, GpuJobState::kResident);
}

TEST_F(GpuArbiterTest, JobsThatHaveGrownUnseenMakeRoomForAllThatTheyHave) {
  Make({{"A", 16}});
  AddResident(1, {{"A", 2}});
  AddResident(2, {{"A", 2}});
  AddParked(3, {{"A", 10}});
  // More than all that is known, and free, together.
  machine_->Resize(Id(1), {{"A", 12 * kGiB}});
  ASSERT_TRUE(Lease(3, Within(absl::Seconds(30))).ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 1", "resume 3"));
  EXPECT_EQ(arbiter_->host_bytes(), machine_->host_used());
}

TEST_F(GpuArbiterTest, AJobThatHasShrunkUnseenIsNotParkedInVain) {
  Make({{"A", 16}});
  AddResident(1, {{"A", 8}});
  AddResident(2, {{"A", 8}});
  AddParked(3, {{"A", 12}});
  machine_->Resize(Id(1), {{"A", 2 * kGiB}});
  ASSERT_TRUE(Lease(3, Within(absl::Seconds(30))).ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 2", "resume 3"));
}

TEST_F(GpuArbiterTest, ATimeOutTellsWhatGrownJobsHave) {
  Make({{"A", 16}});
  AddResident(1, {{"A", 2}});
  AddParked(2, {{"A", 10}});
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  machine_->Resize(Id(1), {{"A", 12 * kGiB}});
  const absl::Status refused = Lease(2, Within(absl::Milliseconds(20)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("job 1 has 12.0 GiB, leased 1 time"));
}

TEST_F(GpuArbiterTest, TheHostMemoryOfTheDeadIsFreeForWhoIsParkedByHand) {
  Make({{"A", 16}}, /*budget_gib=*/6);
  AddParked(1, {{"A", 4}});
  AddResident(2, {{"A", 4}});
  EXPECT_TRUE(absl::IsResourceExhausted(arbiter_->Park(2)));
  machine_->Kill(Id(1));
  EXPECT_TRUE(arbiter_->Park(2).ok());
  EXPECT_EQ(arbiter_->host_bytes(), 4 * kGiB);
  EXPECT_EQ(arbiter_->counters().deaths, 1u);
}

TEST_F(GpuArbiterTest, TheHostMemoryOfTheDeadIsFreeForWhoHasGrown) {
  Make({{"A", 16}}, /*budget_gib=*/9);
  AddParked(1, {{"A", 4}});
  AddResident(2, {{"A", 4}});
  machine_->Kill(Id(1));
  machine_->Interfere([this](Call call, const GpuJobId& id) {
    return call == Call::kPark ? arbiter_->SetBytes(id, {{"A", 6 * kGiB}}) : absl::OkStatus();
  });
  EXPECT_TRUE(arbiter_->Park(2).ok());
  EXPECT_EQ(arbiter_->host_bytes(), 6 * kGiB);
}

TEST_F(GpuArbiterTest, AJobIsWantedAsLongAsSomebodyWaitsForItsGpus) {
  Make({{"A", 8}, {"B", 8}});
  AddResident(1, {{"A", 8}});
  AddResident(2, {{"B", 8}});
  AddParked(3, {{"A", 8}});
  EXPECT_FALSE(arbiter_->IsWanted(1));
  ASSERT_TRUE(LeaseAtOnce(1).ok());
  Asked asked(this, 3);
  AwaitWaits(1);
  EXPECT_TRUE(arbiter_->IsWanted(1));
  EXPECT_FALSE(arbiter_->IsWanted(2));
  EXPECT_FALSE(arbiter_->IsWanted(4711));
  ASSERT_TRUE(arbiter_->Release(1).ok());
  EXPECT_TRUE(asked.Result().ok());
  EXPECT_FALSE(arbiter_->IsWanted(1));
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
  ASSERT_TRUE(arbiter_->SetBytes(Id(3), {{"B", 8 * kGiB}}).ok());
  ASSERT_TRUE(Eventually([&] { return Look(4).position == 2; })) << "the older request comes first there too";
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

TEST_F(GpuArbiterTest, ALostGpuRefusesItsOwnJobsAlone) {
  Make({{"A", 8}, {"B", 8}});
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 8}});
  AddParked(3, {{"B", 8}});
  AddParked(4, {{"A", 4}, {"B", 1}});
  machine_->SetUnknown("B", absl::FailedPreconditionError("B does not answer"));
  for (pid_t pid : {3, 4}) {
    const absl::Status lost = Lease(pid);
    EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
    EXPECT_THAT(std::string(lost.message()), HasSubstr("B does not answer"));
  }
  EXPECT_THAT(machine_->TakeCalls(), IsEmpty());
  EXPECT_TRUE(Lease(2).ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("park 1", "resume 2"));
}

TEST_F(GpuArbiterTest, WhereNoMemoryIsToldTheMoveFindsOutWhetherThereIsRoom) {
  Make({{"A", 8}});
  AddResident(1, {{"A", 8}});
  AddParked(2, {{"A", 4}});
  machine_->SetUnknown("A", absl::OkStatus());
  EXPECT_TRUE(Lease(2).ok());
  EXPECT_THAT(machine_->TakeCalls(), ElementsAre("resume 2", "park 1", "resume 2"));
}

}  // namespace
}  // namespace rekindle::daemon
