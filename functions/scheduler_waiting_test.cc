// Who waits for an instance: callers and events, and those who have gone meanwhile.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/test_eventually.h"
#include "functions/scheduler_for_tests.h"

namespace rekindle::functions {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class SchedulerWaitingTest : public SchedulerTest {
 protected:
  // Deploys "f", whose one instance answers what it was given when the gate lets it, and remembers it.
  void PutOne() {
    starter_.Become("f", [this](TestRuntime& runtime) {
      while (runtime.Next() && gate_.Pass()) {
        order_.push_back(runtime.payload());
        runtime.Answer(runtime.payload());
      }
      return Exits(1);
    });
    PutOneOf(1000);
  }
  void PutOneOf(uint32_t owner) {
    ScheduledFunction function = Function("f");
    function.most_instances = 1;
    function.owner = owner;
    scheduler().Put(function);
  }
  // A call whose caller has gone when `gone` says so.
  Told InvokeFrom(const std::atomic<bool>& gone, const std::string& payload) {
    Call call = CallOf("f", payload);
    call.gone = [&gone] { return gone.load(); };
    return Invoke(std::move(call));
  }

  Gate gate_;
  std::vector<std::string> order_;  // of the instance's thread; to be read when it has ended
};

// Its callers have nothing to do with what an earlier one has made of the instance.
TEST_F(SchedulerWaitingTest, WhatAnInstanceEndedWithoutBeingGivenIsAnothers) {
  std::atomic<int> instances = 0;
  starter_.Become("f", [&](TestRuntime& runtime) {
    if (instances++ > 0) return Echo(runtime);
    // When it hears that its answer was taken the next call is meant for it.
    if (runtime.Next() && gate_.Pass()) runtime.Answer(runtime.payload());
    return Exits(1);
  });
  ScheduledFunction function = Function("f");
  function.most_instances = 1;
  scheduler().Put(function);
  Told first = Invoke("f", "1");
  ASSERT_TRUE(gate_.WaitForWaiting(1));
  Told second = Invoke("f", "2"), third = InvokeEvent("f", "3");
  gate_.Open(1);
  EXPECT_EQ(TextOf(std::move(first)), "ok 1");
  EXPECT_EQ(TextOf(std::move(second)), "ok 2");
  EXPECT_EQ(TextOf(std::move(third)), "ok 3");
  EXPECT_EQ(Numbers("f").invocations, 3u);
  EXPECT_EQ(Numbers("f").errors, 0u);
}

// Nor with what keeps it from going on.
TEST_F(SchedulerWaitingTest, WhatAnInstanceDoesNotAskForInTimeIsAnothers) {
  std::atomic<int> instances = 0;
  starter_.Become("f", [&](TestRuntime& runtime) {
    if (instances++ > 0) return Echo(runtime);
    if (runtime.Next()) runtime.Answer(runtime.payload());
    runtime.WaitForKill();
    return Exits(1);
  });
  ScheduledFunction function = Function("f");
  function.most_instances = 1;
  function.timeout = absl::Seconds(1);
  scheduler().Put(function);
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  EXPECT_EQ(TextOf(Invoke("f", "2")), "ok 2");
  EXPECT_EQ(Numbers("f").timeouts, 0u);
  EXPECT_EQ(Numbers("f").errors, 0u);
  EXPECT_EQ(starter_.started().size(), 2u);
}

TEST_F(SchedulerWaitingTest, WhatIsTakenBackIsNotGivenToAnotherOwnersFunction) {
  starter_.Become("f", [&](TestRuntime& runtime) {
    if (runtime.Next() && gate_.Pass()) runtime.Answer(runtime.payload());
    gate_.Pass();
    return Exits(7);
  });
  PutOneOf(1000);
  Told first = Invoke("f", "1");
  ASSERT_TRUE(gate_.WaitForWaiting(1));
  Told second = Invoke("f", "2");
  gate_.Open(1);
  EXPECT_EQ(TextOf(std::move(first)), "ok 1");
  ASSERT_TRUE(gate_.WaitForWaiting(1));
  scheduler().Remove("f");
  starter_.Become("f", Echo);
  PutOneOf(1001);
  gate_.Open(1);
  EXPECT_THAT(TextOf(std::move(second)), StartsWith("function error"));
}

// As the one that it was given last does.
TEST_F(SchedulerWaitingTest, WhatAnInstanceEndedWithFails) {
  starter_.Become("f", [](TestRuntime& runtime) {
    if (runtime.Next()) runtime.Answer(runtime.payload());
    runtime.Next();
    return Exits(1);
  });
  ScheduledFunction function = Function("f");
  function.most_instances = 1;
  scheduler().Put(function);
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  EXPECT_THAT(TextOf(Invoke("f", "2")), StartsWith("function error"));
}

// Both load the function: one that listens on a port could not be loaded twice.
TEST_F(SchedulerWaitingTest, AnImageIsTakenWhenTheFirstInstanceIsThere) {
  const auto put = [this](const char* name) {
    ScheduledFunction function = Function(name);
    function.dependency_image = "deps/numpy";
    function.may_have_image = true;
    scheduler().Put(function);
  };
  const auto image_of = [](const char* name) {
    return TestStarter::Making{TestStarter::Making::What::kImage, name, ""};
  };
  starter_.HangInStart("f");
  put("f");
  put("g");
  Told first = Invoke("f", "1");
  EXPECT_EQ(TextOf(Invoke("g", "2")), "ok 2");
  ASSERT_TRUE(starter_.WaitForMade(image_of("g")));
  EXPECT_THAT(starter_.made(), Not(Contains(image_of("f"))));
  starter_.LetStart("f");
  EXPECT_EQ(TextOf(std::move(first)), "ok 1");
  EXPECT_TRUE(starter_.WaitForMade(image_of("f")));
}

// Also where one that is no more had been: that was loaded, and so were none.
TEST_F(SchedulerWaitingTest, AnImageThatIsTriedAgainWaitsForTheFirstInstanceOfThatTime) {
  const TestStarter::Making image{TestStarter::Making::What::kImage, "f", ""};
  options_.first_pause = options_.longest_pause = absl::ZeroDuration();
  starter_.Become("f", [](TestRuntime& runtime) {
    if (runtime.Next()) runtime.Answer("1");
    return Exits(0);
  });
  starter_.RefuseToCapture(absl::UnavailableError("not now"));
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  scheduler().Put(function);
  EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(Numbers("f").problem, "at the first start"); }));
  WaitUntilGone("f");
  const auto before = static_cast<size_t>(std::ranges::count(starter_.made(), image));
  starter_.RefuseToCapture(absl::OkStatus());
  starter_.HangInStart("f");
  Told second = Invoke("f");
  // Makers take turns: what is made for another now would have come after it.
  ScheduledFunction other = Function("g");
  other.dependency_image = "deps/numpy";
  other.may_have_image = true;
  scheduler().Put(other);
  EXPECT_EQ(TextOf(Invoke("g", "2")), "ok 2");
  ASSERT_TRUE(starter_.WaitForMade({TestStarter::Making::What::kImage, "g", ""}));
  EXPECT_THAT(starter_.made(), Contains(image).Times(before));
  starter_.LetStart("f");
  EXPECT_EQ(TextOf(std::move(second)), "ok 1");
  ASSERT_TRUE(Eventually([&] { return Numbers("f").problem.empty(); }));
  EXPECT_THAT(starter_.made(), Contains(image).Times(before + 1));
}

// One at a time is tried.
TEST_F(SchedulerWaitingTest, AnImageThatWaitsToBeTriedWhileItsFunctionIsReplacedHoldsUpNoOthers) {
  options_.first_pause = options_.longest_pause = absl::Seconds(1);
  starter_.RefuseToCapture(absl::UnavailableError("not now"));
  const auto put = [this](const char* name, uint64_t revision) {
    ScheduledFunction function = Function(name);
    function.revision = revision;
    function.dependency_image = "deps/numpy";
    function.may_have_image = true;
    starter_.Become(name, [](TestRuntime& runtime) {
      if (runtime.Next()) runtime.Answer("1");
      return Exits(0);
    });
    scheduler().Put(function);
  };
  put("f", 1);
  starter_.Become("f", [](TestRuntime& runtime) {
    runtime.FailInit("{}");
    return Exits(1);
  });
  EXPECT_EQ(TextOf(Invoke("f")), "function error {}");
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(Numbers("f").problem, "not now"); }));
  const absl::Time tried = SteadyNow() + 2 * options_.first_pause;
  starter_.HangInStart("f");
  Told hanging = Invoke("f");
  ASSERT_TRUE(Eventually([&] { return SteadyNow() > tried; }));
  put("f", 2);
  starter_.LetStart("f");
  EXPECT_EQ(TextOf(std::move(hanging)), "ok 1");
  put("g", 1);
  EXPECT_EQ(TextOf(Invoke("g")), "ok 1");
  ASSERT_TRUE(Eventually([&] { return !Numbers("g").problem.empty(); }));
  starter_.RefuseToCapture(absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return Numbers("g").problem.empty(); }));
}

TEST_F(SchedulerWaitingTest, AnImageIsTriedAlsoWhereTheFirstInstanceCouldNotBeStarted) {
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  for (StartLevel level : {StartLevel::kCold, StartLevel::kDependencyTemplate, StartLevel::kDependencyRam,
                           StartLevel::kDependencyDisk})
    starter_.Refuse(level, absl::InternalError("no memory"));
  scheduler().Put(function);
  EXPECT_THAT(TextOf(Invoke("f")), HasSubstr("no memory"));
  EXPECT_TRUE(starter_.WaitForMade({TestStarter::Making::What::kImage, "f", ""}));
}

TEST_F(SchedulerWaitingTest, EventsWaitBehindCallersHoweverMany) {
  options_.longest_queue = 2;
  options_.most_waiting_bytes = 3000;
  PutOne();
  std::vector<Told> told;
  told.push_back(Invoke("f", "running"));
  ASSERT_TRUE(gate_.WaitForWaiting(1));
  const std::string large(1000, 'x');
  for (int i = 0; i < 10; ++i) told.push_back(InvokeEvent("f", absl::StrCat("event ", i, large)));
  told.push_back(Invoke("f", "caller 1"));
  told.push_back(Invoke("f", "caller 2"));
  EXPECT_EQ(Numbers("f").queued, 12u);
  EXPECT_EQ(Numbers("f").throttles, 0u);
  EXPECT_THAT(TextOf(Invoke("f", "caller 3")), HasSubstr("queue is full"));
  EXPECT_EQ(Numbers("f").throttles, 1u);
  gate_.Open(100);
  for (Told& one : told) EXPECT_THAT(TextOf(std::move(one)), StartsWith("ok "));
  EXPECT_EQ(Numbers("f").invocations, 13u);
  StopScheduler();
  ASSERT_EQ(order_.size(), 13u);
  EXPECT_EQ(order_[1], "caller 1");
  EXPECT_EQ(order_[2], "caller 2");
  for (int i = 0; i < 10; ++i) EXPECT_EQ(order_[3 + i], absl::StrCat("event ", i, large));
}

TEST_F(SchedulerWaitingTest, ACallerGetsTheInstanceThatIsBeingStartedForAnEvent) {
  PutOne();
  starter_.HoldStarts(true);
  std::vector<Told> told;
  told.push_back(InvokeEvent("f", "event 1"));
  told.push_back(InvokeEvent("f", "event 2"));
  told.push_back(Invoke("f", "caller"));
  starter_.HoldStarts(false);
  gate_.Open(3);
  for (Told& one : told) EXPECT_THAT(TextOf(std::move(one)), StartsWith("ok "));
  EXPECT_EQ(Numbers("f").invocations, 3u);
  EXPECT_EQ(starter_.started().size(), 1u);
  StopScheduler();
  EXPECT_THAT(order_, ElementsAre("caller", "event 1", "event 2"));
}

TEST_F(SchedulerWaitingTest, CallsWhoseCallersHaveGoneAreDropped) {
  PutOne();
  std::atomic<bool> stays{false}, leaves{false};
  Told running = InvokeFrom(leaves, "running");
  ASSERT_TRUE(gate_.WaitForWaiting(1));
  Told gone = InvokeFrom(leaves, "gone"), waits = InvokeFrom(stays, "waits");
  EXPECT_EQ(Numbers("f").queued, 2u);
  leaves = true;
  EXPECT_EQ(Numbers("f").queued, 1u);
  gate_.Open(2);
  EXPECT_EQ(TextOf(std::move(running)), "ok running");  // it had begun
  EXPECT_THAT(TextOf(std::move(gone)), StartsWith("CANCELLED"));
  EXPECT_EQ(TextOf(std::move(waits)), "ok waits");
  EXPECT_EQ(Numbers("f").invocations, 2u);
  EXPECT_EQ(Numbers("f").throttles, 0u);
  StopScheduler();
  EXPECT_THAT(order_, ElementsAre("running", "waits"));
}

TEST_F(SchedulerWaitingTest, ThoseWhoHaveGoneTakeNoPlaceInTheQueue) {
  options_.longest_queue = 2;
  PutOne();
  std::atomic<bool> stays{false}, leaves{false};
  Told running = Invoke("f", "running");
  ASSERT_TRUE(gate_.WaitForWaiting(1));
  Told first = InvokeFrom(stays, "first"), second = InvokeFrom(leaves, "second");
  EXPECT_THAT(TextOf(Invoke("f", "third")), HasSubstr("queue is full"));
  leaves = true;
  Told third = Invoke("f", "third");
  EXPECT_THAT(TextOf(std::move(second)), StartsWith("CANCELLED"));
  gate_.Open(3);
  EXPECT_EQ(TextOf(std::move(running)), "ok running");
  EXPECT_EQ(TextOf(std::move(first)), "ok first");
  EXPECT_EQ(TextOf(std::move(third)), "ok third");
}

TEST_F(SchedulerWaitingTest, AnInstanceWhoseCallerHasGoneIsForTheNext) {
  PutOne();
  starter_.HoldStarts(true);
  std::atomic<bool> gone{false};
  Told dropped = InvokeFrom(gone, "dropped");
  EXPECT_EQ(Numbers("f").invocations, 0u) << "a number that only grows";
  gone = true;
  starter_.HoldStarts(false);
  EXPECT_THAT(TextOf(std::move(dropped)), StartsWith("CANCELLED"));
  EXPECT_EQ(Numbers("f").invocations, 0u);
  gate_.Open(2);
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  EXPECT_EQ(TextOf(Invoke("f", "2")), "ok 2");
  EXPECT_EQ(starter_.started().size(), 1u);
  EXPECT_EQ(Numbers("f").invocations, 2u);
  EXPECT_EQ(Numbers("f").idle, 1u);
}

// It may take long, as where all of /proc has to be gone through.
TEST_F(SchedulerWaitingTest, MeasuringInstancesHoldsUpNoCall) {
  scheduler().Put(Function("f"));
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  absl::Notification measuring, measured;
  starter_.MeasureBy([&] {
    measuring.Notify();
    measured.WaitForNotification();
  });
  std::thread asks([this] { EXPECT_GT(Numbers("f").memory_bytes, 0u); });
  measuring.WaitForNotification();
  starter_.MeasureBy(nullptr);
  EXPECT_EQ(TextOf(Invoke("f", "2")), "ok 2");
  measured.Notify();
  asks.join();
}

}  // namespace
}  // namespace rekindle::functions
