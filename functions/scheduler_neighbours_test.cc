// Functions of several owners beside each other: what one of them makes a scheduler wait for, the others do
// not.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "functions/scheduler_for_tests.h"

namespace rekindle::functions {
namespace {

using ::testing::HasSubstr;
using What = TestStarter::Making::What;

ScheduledFunction Captured(ScheduledFunction function, uint32_t owner) {
  function.owner = owner;
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  return function;
}

// What they have between two calls says little of that.
TEST_F(SchedulerTest, InstancesCountWithWhatTheyNeedAtWork) {
  options_.keep_alive.memory_bytes = uint64_t{300} << 20;
  Gate gate;
  starter_.Become("f", [&gate](TestRuntime& runtime) {
    runtime.NeedForACall(uint64_t{100} << 20);
    while (runtime.Next() && gate.Pass()) runtime.Answer(runtime.payload());
    return Exits(1);
  });
  scheduler().Put(Function("f"));
  gate.Open(1);
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  std::vector<Told> calls;
  for (int i = 0; i < 24; ++i) calls.push_back(Invoke("f", "2"));
  ASSERT_TRUE(gate.WaitForWaiting(3));
  EXPECT_EQ(Numbers("f").busy, 3u);
  EXPECT_EQ(Numbers("f").starting, 0u);
  EXPECT_EQ(Numbers("f").queued, 21u);
  gate.Open(24);
  for (Told& call : calls) EXPECT_EQ(TextOf(std::move(call)), "ok 2");
  EXPECT_EQ(starter_.started().size(), 3u);
}

TEST_F(SchedulerTest, FunctionsThatHangInTheirCaptureStopNoNeighbour) {
  // More than there are threads.
  for (int i = 0; i < 8; ++i) {
    const std::string name = absl::StrCat("hangs", i);
    starter_.HangInCapture(name);
    scheduler().Put(Captured(Function(name), 1));
    EXPECT_EQ(TextOf(Invoke(name, "1")), "ok 1");
  }
  for (const char* name : {"hangs0", "hangs1"}) ASSERT_TRUE(starter_.WaitForMade({What::kImage, name, ""}));
  // Each call needs that the instance of the one before has been cleared away.
  starter_.Become("neighbour", [](TestRuntime& runtime) {
    if (runtime.Next()) runtime.Answer("2");
    return Exits(0);
  });
  ScheduledFunction neighbour = Captured(Function("neighbour"), 2);
  neighbour.most_instances = 1;
  scheduler().Put(neighbour);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(TextOf(Invoke("neighbour")), "ok 2");
    WaitUntilGone("neighbour");
  }
  EXPECT_TRUE(starter_.WaitForMade({What::kImage, "neighbour", ""}));
  StopScheduler();  // and does not wait for them
  EXPECT_EQ(starter_.living(), 0u);
}

TEST_F(SchedulerTest, AnOwnerWhoseFunctionsDoNotStartLeavesAThreadToOthers) {
  options_.threads.starts = 2;
  starter_.HangInStart("hangs");
  ScheduledFunction hangs = Function("hangs"), neighbour = Function("neighbour");
  hangs.owner = 1;
  neighbour.owner = 2;
  scheduler().Put(hangs);
  scheduler().Put(neighbour);
  std::vector<Told> told;
  for (int i = 0; i < 4; ++i) told.push_back(Invoke("hangs", "1"));
  EXPECT_EQ(TextOf(Invoke("neighbour", "2")), "ok 2");
  for (const Told& one : told) EXPECT_TRUE(Pending(one));
  starter_.LetStart("hangs");
  for (Told& one : told) EXPECT_EQ(TextOf(std::move(one)), "ok 1");
}

// Answers "1" as often as the gate lets it.
TestProgram AnswersThrough(Gate& gate) {
  return [&gate](TestRuntime& runtime) {
    while (runtime.Next() && gate.Pass()) runtime.Answer("1");
    return Exits(1);
  };
}

TEST_F(SchedulerTest, CallsWaitWhileWhatIsInWorkHasAllMemory) {
  options_.keep_alive.memory_bytes = uint64_t{70}
                                     << 20;  // two instances, as guessed before they are measured
  Gate gate;
  starter_.Become("hog", AnswersThrough(gate));
  ScheduledFunction hog = Function("hog"), other = Function("other"), neighbour = Function("neighbour");
  hog.owner = other.owner = 1;
  neighbour.owner = 2;
  for (const ScheduledFunction& function : {hog, other, neighbour}) scheduler().Put(function);
  std::vector<Told> told;
  for (int i = 0; i < 3; ++i) told.push_back(Invoke("hog"));
  ASSERT_TRUE(gate.WaitForWaiting(2));
  Told waits = Invoke("other", "2");
  EXPECT_EQ(Numbers("hog").queued + Numbers("other").queued, 2u);
  EXPECT_EQ(TextOf(Invoke("neighbour", "3")), "ok 3") << "one is always started";
  EXPECT_TRUE(Pending(waits));
  EXPECT_THAT(starter_.started(), ::testing::SizeIs(3));
  gate.Open(3);
  for (Told& one : told) EXPECT_EQ(TextOf(std::move(one)), "ok 1");
  EXPECT_EQ(TextOf(std::move(waits)), "ok 2");
}

TEST_F(SchedulerTest, WhatIsAlwaysToBeThereIsInTheMemoryForWhichCallsWait) {
  options_.keep_alive.memory_bytes = uint64_t{105} << 20;  // three instances, as guessed
  Gate gate;
  starter_.Become("hog", AnswersThrough(gate));
  ScheduledFunction hog = Function("hog"), kept = Function("kept");
  hog.owner = kept.owner = 1;
  kept.provisioned = 1;
  scheduler().Put(kept);
  WaitUntilIdle("kept", 1);
  scheduler().Put(hog);
  std::vector<Told> told;
  for (int i = 0; i < 3; ++i) told.push_back(Invoke("hog"));
  const FunctionNumbers now = Numbers("hog");
  EXPECT_EQ(now.starting + now.busy, 2u);
  gate.Open(3);
  for (Told& one : told) EXPECT_EQ(TextOf(std::move(one)), "ok 1");
}

TEST_F(SchedulerTest, WhatIsEndingIsInTheMemoryForWhichCallsWait) {
  options_.keep_alive.memory_bytes = uint64_t{105} << 20;  // three instances, as guessed
  Gate gate, kept;
  starter_.Become("hog", AnswersThrough(gate));
  starter_.Become("works", AnswersThrough(kept));
  ScheduledFunction hog = Function("hog"), works = Function("works"), other = Function("other");
  hog.owner = works.owner = other.owner = 1;
  hog.timeout = absl::Milliseconds(50);
  for (const ScheduledFunction& function : {hog, works, other}) scheduler().Put(function);
  Told working = Invoke("works");
  ASSERT_TRUE(kept.WaitForWaiting(1));
  std::vector<Told> told;
  for (int i = 0; i < 2; ++i) told.push_back(Invoke("hog"));
  for (Told& one : told) EXPECT_THAT(TextOf(std::move(one)), HasSubstr("timed out"));
  // They have been told to end, and have not.
  ASSERT_TRUE(gate.WaitForWaiting(2));
  Told waits = Invoke("other", "2");
  EXPECT_EQ(Numbers("other").queued, 1u);
  EXPECT_EQ(Numbers("other").starting, 0u);
  gate.Open(2);
  EXPECT_EQ(TextOf(std::move(waits)), "ok 2");
  kept.Open(1);
  EXPECT_EQ(TextOf(std::move(working)), "ok 1");
}

TEST_F(SchedulerTest, AFunctionIsAnsweredWhileAnotherOfItsOwnerHasAllMemoryAndNeverRests) {
  // Of one that has answered 10 MiB are known, 32 MiB are guessed of one that has not.
  for (const uint64_t mib : {44, 12}) {
    options_.keep_alive.memory_bytes = mib << 20;
    Gate gate;
    starter_.Become("hog", AnswersThrough(gate));
    ScheduledFunction hog = Function("hog"), other = Function("other");
    hog.owner = other.owner = 1;
    for (const ScheduledFunction& function : {hog, other}) scheduler().Put(function);
    gate.Open(1);
    EXPECT_EQ(TextOf(Invoke("hog")), "ok 1");
    std::atomic<bool> rests = false;
    std::function<void(absl::StatusOr<CallResult>)> again = [&](const absl::StatusOr<CallResult>&) {
      if (!rests) scheduler().Invoke(CallOf("hog", "{}"), again);
    };
    for (int i = 0; i < 10; ++i) again(CallResult());
    ASSERT_TRUE(gate.WaitForWaiting(static_cast<int>(mib / 10)));
    Told waits = Invoke("other", "2");
    EXPECT_EQ(Numbers("other").queued, 1u);
    gate.Open(1 << 30);
    EXPECT_EQ(TextOf(std::move(waits)), "ok 2");
    EXPECT_GE(Numbers("hog").invocations, 2u);
    rests = true;
    while (Numbers("hog").queued + Numbers("hog").busy > 0) std::this_thread::yield();
    StopScheduler();
  }
}

// It may take as much as its limit says.
TEST_F(SchedulerTest, WhatIsNotMeasuredYetIsTakenToNeedAPartOfItsLimit) {
  options_.keep_alive.memory_bytes = uint64_t{1} << 30;
  Gate gate;
  starter_.Become("large", AnswersThrough(gate));
  ScheduledFunction large = Function("large");
  large.memory_bytes = uint64_t{2} << 30;
  scheduler().Put(large);
  std::vector<Told> told;
  for (int i = 0; i < 4; ++i) told.push_back(Invoke("large"));
  ASSERT_TRUE(gate.WaitForWaiting(2));
  EXPECT_EQ(Numbers("large").queued, 2u);
  // Its size is known from its first answer on: there is room for all.
  gate.Open(1);
  ASSERT_TRUE(gate.WaitForWaiting(3));
  gate.Open(3);
  for (Told& one : told) EXPECT_EQ(TextOf(std::move(one)), "ok 1");
}

TEST_F(SchedulerTest, ANeighboursFirstCallWaitsForOneAnswerOfWhoHasAllInstances) {
  options_.most_instances = 4;
  Gate gate;
  starter_.Become("hog", AnswersThrough(gate));
  ScheduledFunction hog = Function("hog"), neighbour = Function("neighbour");
  hog.owner = 1;
  neighbour.owner = 2;
  scheduler().Put(hog);
  scheduler().Put(neighbour);
  std::vector<Told> told;
  for (int i = 0; i < 40; ++i) told.push_back(Invoke("hog"));
  ASSERT_TRUE(gate.WaitForWaiting(4));
  Told first = Invoke("neighbour", "2"), second = Invoke("neighbour", "3");
  gate.Open(1);
  EXPECT_EQ(TextOf(std::move(first)), "ok 2");
  EXPECT_EQ(TextOf(std::move(second)), "ok 3");
  gate.Open(1000);
  for (Told& one : told) EXPECT_EQ(TextOf(std::move(one)), "ok 1");
}

TEST_F(SchedulerTest, OwnersWhoAllWantMoreHaveAboutAsManyInstances) {
  options_.most_instances = 6;
  Gate gates[3];
  std::vector<Told> told;
  for (uint32_t i = 0; i < 3; ++i) {
    const std::string name = absl::StrCat("f", i);
    starter_.Become(name, AnswersThrough(gates[i]));
    ScheduledFunction function = Function(name);
    function.owner = i;  // root too
    scheduler().Put(function);
  }
  for (const char* name : {"f0", "f1", "f2"}) {
    for (int i = 0; i < 20; ++i) told.push_back(Invoke(name));
  }
  ASSERT_TRUE(gates[0].WaitForWaiting(6));
  // Each answer of the first gives one away, until it has no more than the others.
  for (int given = 1; given <= 4; ++given) {
    gates[0].Open(1);
    ASSERT_TRUE(gates[0].WaitForWaiting(6 - given));
    while (Numbers("f1").busy + Numbers("f2").busy < static_cast<uint32_t>(given)) std::this_thread::yield();
  }
  EXPECT_EQ(Numbers("f1").busy, 2u);
  EXPECT_EQ(Numbers("f2").busy, 2u);
  // From here on each keeps what it has.
  const size_t started = starter_.started().size();
  for (int i = 0; i < 6; ++i) {
    Gate& gate = gates[i % 3];
    gate.Open(1);
    ASSERT_TRUE(gate.WaitForWaiting(2));
  }
  EXPECT_EQ(starter_.started().size(), started);
  for (Gate& gate : gates) gate.Open(1000);
  for (Told& one : told) EXPECT_EQ(TextOf(std::move(one)), "ok 1");
}

TEST_F(SchedulerTest, WhoSharesOneInstanceWithOthersHasItInTurn) {
  options_.most_instances = 1;
  std::vector<Told> told;
  for (uint32_t i = 1; i <= 3; ++i) {
    ScheduledFunction function = Function(absl::StrCat("f", i));
    function.owner = i;
    scheduler().Put(function);
  }
  for (int call = 0; call < 5; ++call) {
    for (const char* name : {"f1", "f2", "f3"}) told.push_back(Invoke(name, "1"));
  }
  for (Told& one : told) EXPECT_EQ(TextOf(std::move(one)), "ok 1");
}

TEST_F(SchedulerTest, OneUsersFunctionsLeaveAFewInstancesToOthers) {
  options_.most_instances = 10;
  Gate gate;
  starter_.Become("hog", AnswersThrough(gate));
  starter_.Become("another", AnswersThrough(gate));
  ScheduledFunction hog = Function("hog"), another = Function("another"), neighbour = Function("neighbour");
  hog.owner = another.owner = 1;
  neighbour.owner = 2;
  scheduler().Put(hog);
  scheduler().Put(another);
  scheduler().Put(neighbour);
  std::vector<Told> told;
  for (int i = 0; i < 12; ++i) told.push_back(Invoke(i < 6 ? "hog" : "another"));
  ASSERT_TRUE(gate.WaitForWaiting(9));
  EXPECT_EQ(Numbers("another").queued, 3u);
  EXPECT_EQ(TextOf(Invoke("neighbour", "2")), "ok 2");  // without any answer
  // What one of his functions does not need any more another one has.
  gate.Open(12);
  for (Told& one : told) EXPECT_EQ(TextOf(std::move(one)), "ok 1");
  told.clear();
  for (int i = 0; i < 9; ++i) told.push_back(Invoke("hog"));
  ASSERT_TRUE(gate.WaitForWaiting(9));
  Told waits = Invoke("another");
  EXPECT_EQ(Numbers("another").queued, 1u);
  gate.Open(1);
  while (Numbers("another").busy == 0) std::this_thread::yield();
  gate.Open(9);
  EXPECT_EQ(TextOf(std::move(waits)), "ok 1");
  for (Told& one : told) EXPECT_EQ(TextOf(std::move(one)), "ok 1");
  // And so it is with those that are always to be there.
  hog.provisioned = 9;
  EXPECT_TRUE(scheduler().ReserveProvisioned(hog).ok());
  hog.provisioned = 10;
  EXPECT_THAT(std::string(scheduler().ReserveProvisioned(hog).status().message()),
              testing::HasSubstr("one user has at most 9 of this node's 10"));
  hog.owner = 0;
  EXPECT_TRUE(scheduler().ReserveProvisioned(hog).ok());
}

}  // namespace
}  // namespace rekindle::functions
