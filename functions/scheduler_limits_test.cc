// Many calls at once: how many instances there are, who waits, who is refused; new revisions and removals
// meanwhile.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/test_eventually.h"
#include "functions/http_client_for_tests.h"
#include "functions/invoke_api.h"
#include "functions/scheduler_for_tests.h"

namespace rekindle::functions {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Answers what it was given when the gate lets it.
TestProgram EchoThrough(Gate& gate) {
  return [&gate](TestRuntime& runtime) {
    while (runtime.Next() && gate.Pass()) runtime.Answer(runtime.payload());
    return Exits(1);
  };
}

TEST_F(SchedulerTest, AnInstanceHasOneCallAtATime) {
  std::atomic<int> at_once{0};
  std::vector<std::string> order;  // of one thread: the instance's
  starter_.Become("f", [&](TestRuntime& runtime) {
    while (runtime.Next()) {
      EXPECT_EQ(++at_once, 1);
      order.push_back(runtime.payload());
      --at_once;
      runtime.Answer(runtime.payload());
    }
    return Exits(1);
  });
  ScheduledFunction function = Function("f");
  function.most_instances = 1;
  scheduler().Put(function);
  std::vector<Told> told;
  std::vector<std::string> sent;
  for (int i = 0; i < 50; ++i) told.push_back(Invoke("f", sent.emplace_back(absl::StrCat(i))));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(TextOf(std::move(told[i])), absl::StrCat("ok ", i));
  EXPECT_THAT(starter_.started(), SizeIs(1));
  StopScheduler();
  EXPECT_EQ(order, sent);
}

TEST_F(SchedulerTest, CallsAtOnceGetAnInstanceEach) {
  Gate gate;
  starter_.Become("f", EchoThrough(gate));
  scheduler().Put(Function("f"));
  std::vector<Told> told;
  for (int i = 0; i < 8; ++i) told.push_back(Invoke("f", absl::StrCat(i)));
  ASSERT_TRUE(gate.WaitForWaiting(8));
  EXPECT_EQ(Numbers("f").busy, 8u);
  EXPECT_EQ(Numbers("f").queued, 0u);
  gate.Open(8);
  std::set<std::string> instances;
  for (int i = 0; i < 8; ++i) {
    absl::StatusOr<CallResult> result = ResultOf(told[i]);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->payload, absl::StrCat(i));
    instances.insert(result->instance);
  }
  EXPECT_THAT(instances, SizeIs(8));
  // They are kept for the next ones.
  told.clear();
  for (int i = 0; i < 8; ++i) told.push_back(Invoke("f", absl::StrCat(i)));
  gate.Open(8);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(TextOf(std::move(told[i])), absl::StrCat("ok ", i));
  EXPECT_THAT(starter_.started(), SizeIs(8));
}

// Echoes, and knows how many have been at it at once.
class AtOnce {
 public:
  explicit AtOnce(Gate& gate) : gate_(gate) {}
  TestProgram Program() {
    return [this](TestRuntime& runtime) {
      while (runtime.Next()) {
        const int now = ++now_;
        for (int most = most_; now > most && !most_.compare_exchange_weak(most, now);) continue;
        if (!gate_.Pass()) break;
        --now_;
        runtime.Answer(runtime.payload());
      }
      return Exits(0);
    };
  }
  int most() const { return most_; }
  void Forget() { most_ = 0; }

 private:
  Gate& gate_;
  std::atomic<int> now_{0}, most_{0};
};

TEST_F(SchedulerTest, IdleOnesAboveALimitThatIsLoweredEndAtOnce) {
  Gate gate;
  AtOnce at_once(gate);
  starter_.Become("f", at_once.Program());
  ScheduledFunction function = Function("f");
  scheduler().Put(function);
  std::vector<Told> told;
  for (int i = 0; i < 6; ++i) told.push_back(Invoke("f", absl::StrCat(i)));
  gate.Open(6);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(TextOf(std::move(told[i])), absl::StrCat("ok ", i));
  WaitUntilIdle("f", 6);
  at_once.Forget();
  function.most_instances = 1;
  scheduler().Adjust(function);
  EXPECT_EQ(Numbers("f").idle, 1u);
  told.clear();
  for (int i = 0; i < 6; ++i) told.push_back(Invoke("f", absl::StrCat(i)));
  EXPECT_EQ(Numbers("f").busy, 1u);
  EXPECT_EQ(Numbers("f").queued, 5u);
  gate.Open(6);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(TextOf(std::move(told[i])), absl::StrCat("ok ", i));
  EXPECT_EQ(at_once.most(), 1);
  EXPECT_THAT(starter_.started(), SizeIs(6)) << "the one that stayed has answered all";
}

TEST_F(SchedulerTest, BusyOnesAboveALimitThatIsLoweredEndWhenTheyHaveAnswered) {
  Gate gate;
  starter_.Become("f", EchoThrough(gate));
  ScheduledFunction function = Function("f");
  scheduler().Put(function);
  std::vector<Told> told;
  for (int i = 0; i < 4; ++i) told.push_back(Invoke("f", absl::StrCat(i)));
  ASSERT_TRUE(gate.WaitForWaiting(4));
  function.most_instances = 2;
  scheduler().Adjust(function);
  for (int i = 4; i < 8; ++i) told.push_back(Invoke("f", absl::StrCat(i)));
  EXPECT_EQ(Numbers("f").queued, 4u);
  gate.Open(2);
  EXPECT_TRUE(starter_.WaitForLiving(2));
  EXPECT_TRUE(gate.WaitForWaiting(2));
  EXPECT_EQ(Numbers("f").queued, 4u) << "those that were above the limit took none of them";
  gate.Open(6);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(TextOf(std::move(told[i])), absl::StrCat("ok ", i));
  EXPECT_THAT(starter_.started(), SizeIs(4));
}

TEST_F(SchedulerTest, WhatIsBeingStartedAsALimitIsLoweredKeepsToIt) {
  Gate gate;
  AtOnce at_once(gate);
  starter_.Become("f", at_once.Program());
  starter_.HoldStarts(true);
  ScheduledFunction function = Function("f");
  scheduler().Put(function);
  std::vector<Told> told;
  for (int i = 0; i < 4; ++i) told.push_back(Invoke("f", absl::StrCat(i)));
  function.most_instances = 1;
  scheduler().Adjust(function);
  starter_.HoldStarts(false);
  ASSERT_TRUE(starter_.WaitForStarts(4));
  EXPECT_TRUE(starter_.WaitForLiving(1));
  gate.Open(4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(TextOf(std::move(told[i])), absl::StrCat("ok ", i));
  EXPECT_EQ(at_once.most(), 1);
}

TEST_F(SchedulerTest, OneThatIsOnlyStartingTakesNoPlaceOfAReadyOneAsALimitIsLowered) {
  for (const bool answers_before : {true, false}) {
    const std::string name = answers_before ? "idle" : "busy";
    Gate gate;
    starter_.Become(name, EchoThrough(gate));
    ScheduledFunction function = Function(name);
    scheduler().Put(function);
    Told first = Invoke(name, "1");
    ASSERT_TRUE(gate.WaitForWaiting(1));
    starter_.HangInStart(name);
    Told second = Invoke(name, "2");
    ASSERT_EQ(Numbers(name).starting, 1u);
    if (answers_before) {
      gate.Open(2);
      WaitUntilIdle(name, 1);
    }
    function.most_instances = 1;
    scheduler().Adjust(function);
    if (!answers_before) gate.Open(2);
    const absl::StatusOr<CallResult> one = ResultOf(first), two = ResultOf(second);
    ASSERT_TRUE(one.ok() && two.ok()) << one.status() << ", " << two.status();
    EXPECT_EQ(two->instance, one->instance);
    starter_.LetStart(name);
    ASSERT_TRUE(Eventually([&] { return Numbers(name).starting == 0; }));
    gate.Open(1);
    Told third = Invoke(name, "3");
    const absl::StatusOr<CallResult> three = ResultOf(third);
    ASSERT_TRUE(three.ok()) << three.status();
    EXPECT_EQ(three->instance, one->instance);
  }
}

TEST_F(SchedulerTest, CallsThatWaitAgainSinceALimitWasLoweredKeepTheirOrder) {
  std::vector<std::string> order;  // of one instance's thread
  starter_.Become("f", [&order](TestRuntime& runtime) {
    while (runtime.Next()) {
      order.push_back(runtime.payload());
      runtime.Answer(runtime.payload());
    }
    return Exits(0);
  });
  starter_.HoldStarts(true);
  ScheduledFunction function = Function("f");
  scheduler().Put(function);
  std::vector<Told> told;
  for (int i = 0; i < 4; ++i) told.push_back(Invoke("f", absl::StrCat(i)));
  function.most_instances = 1;
  scheduler().Adjust(function);
  starter_.HoldStarts(false);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(TextOf(std::move(told[i])), absl::StrCat("ok ", i));
  StopScheduler();
  EXPECT_THAT(order, ::testing::ElementsAre("0", "1", "2", "3"));
}

TEST_F(SchedulerTest, BeyondItsQueueCallersAreRefused) {
  Gate gate;
  starter_.Become("f", EchoThrough(gate));
  options_.longest_queue = 2;
  ScheduledFunction function = Function("f");
  function.most_instances = 1;
  scheduler().Put(function);
  scheduler().Put(Function("other"));
  Told running = Invoke("f", "1");
  ASSERT_TRUE(gate.WaitForWaiting(1));
  Told second = Invoke("f", "2"), third = Invoke("f", "3");
  EXPECT_THAT(TextOf(Invoke("f", "4")), AllOf(HasSubstr("RESOURCE_EXHAUSTED: Rate Exceeded"),
                                              HasSubstr("function 'f'"), HasSubstr("queue is full")));
  EXPECT_EQ(Numbers("f").throttles, 1u);
  EXPECT_EQ(Numbers("f").queued, 2u);
  EXPECT_EQ(TextOf(Invoke("other", "5")), "ok 5");
  gate.Open(3);
  EXPECT_EQ(TextOf(std::move(running)), "ok 1");
  EXPECT_EQ(TextOf(std::move(second)), "ok 2");
  EXPECT_EQ(TextOf(std::move(third)), "ok 3");
  EXPECT_EQ(Numbers("f").invocations, 3u);
}

TEST_F(SchedulerTest, CallsThatWaitForOneOwnersFunctionsHaveNoMoreThanTheirShareOfMemory) {
  Gate gate;
  options_.most_waiting_bytes = 3 << 20;
  const std::string large(1 << 20, 'x');
  std::vector<Told> waiting;
  for (const char* name : {"f", "g"}) {
    starter_.Become(name, EchoThrough(gate));
    ScheduledFunction function = Function(name);
    function.owner = 1000;
    function.most_instances = 1;
    scheduler().Put(function);
    waiting.push_back(Invoke(name, "1"));
  }
  ScheduledFunction other = Function("other");
  other.owner = 1001;
  scheduler().Put(other);
  ASSERT_TRUE(gate.WaitForWaiting(2));
  waiting.push_back(Invoke("f", large));
  waiting.push_back(Invoke("g", large));
  EXPECT_THAT(TextOf(Invoke("g", large)), AllOf(HasSubstr("RESOURCE_EXHAUSTED: Rate Exceeded"),
                                                HasSubstr("user 1000"), HasSubstr("have 3.0 MiB together")));
  EXPECT_EQ(Numbers("g").throttles, 1u);
  waiting.push_back(Invoke("f", "2"));
  EXPECT_EQ(TextOf(Invoke("other", large)), "ok " + large);
  gate.Open(100);
  for (Told& told : waiting) EXPECT_THAT(TextOf(std::move(told)), HasSubstr("ok "));
  // They have given back what they had.
  EXPECT_EQ(TextOf(Invoke("g", large)), "ok " + large);
  gate.Open(100);
}

// What the daemon does between the two.
class SchedulersInvoker : public Invoker {
 public:
  explicit SchedulersInvoker(Scheduler& scheduler) : scheduler_(scheduler) {}
  void Invoke(InvokeRequest request, Done done) override {
    Call call;
    call.function = request.function;
    call.request_id = request.request_id;
    call.payload = request.payload;
    scheduler_.Invoke(std::move(call), [done = std::move(done)](absl::StatusOr<CallResult> result) {
      if (!result.ok()) return done(result.status());
      InvokeResult answer;
      answer.payload = result->payload;
      done(std::move(answer));
    });
  }
  absl::StatusOr<std::vector<ListedFunction>> List(const std::any&) override {
    return std::vector<ListedFunction>();
  }

 private:
  Scheduler& scheduler_;
};

TEST_F(SchedulerTest, OverHttpARefusedCallIsTooManyRequests) {
  Gate gate;
  starter_.Become("f", EchoThrough(gate));
  options_.longest_queue = 0;
  ScheduledFunction function = Function("f");
  function.most_instances = 1;
  scheduler().Put(function);
  Told running = Invoke("f", "1");
  ASSERT_TRUE(gate.WaitForWaiting(1));
  TestAddress address(TestAddress::kTcp);
  auto invoker = std::make_shared<SchedulersInvoker>(scheduler());
  std::vector<UniqueFd> listeners;
  listeners.push_back(address.TakeListener());
  auto api = InvokeApi::Start(threads_, std::move(listeners), {}, invoker);
  ASSERT_TRUE(api.ok()) << api.status();
  HttpReply refused = HttpClient(address).Post("/2015-03-31/functions/f/invocations", "2");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers["x-amzn-errortype"], "TooManyRequestsException");
  EXPECT_THAT(refused.body, HasSubstr("Rate Exceeded"));
  gate.Open(2);
  EXPECT_EQ(TextOf(std::move(running)), "ok 1");
  HttpReply taken = HttpClient(address).Post("/2015-03-31/functions/f/invocations", "3");
  EXPECT_EQ(taken.status, 200);
  EXPECT_EQ(taken.body, "3");
}

TEST_F(SchedulerTest, WhoWaitsIsServedAfterItsOnlyInstanceHasDied) {
  ScheduledFunction function = Function("f");
  function.most_instances = 1;
  Gate gate;
  starter_.Become("f", [&gate](TestRuntime& runtime) {
    while (runtime.Next() && gate.Pass()) {
      if (runtime.payload() == "exit") return Exits(3);
      runtime.Answer(runtime.payload());
    }
    return Exits(1);
  });
  scheduler().Put(function);
  Told dies = Invoke("f", "exit");
  ASSERT_TRUE(gate.WaitForWaiting(1));
  Told waits = Invoke("f", "2");
  gate.Open(2);
  EXPECT_THAT(TextOf(std::move(dies)), HasSubstr("exit status 3"));
  EXPECT_EQ(TextOf(std::move(waits)), "ok 2");
}

TEST_F(SchedulerTest, WhoWaitsIsServedAfterTheTimeOfItsOnlyInstanceIsUp) {
  ScheduledFunction function = Function("f");
  function.most_instances = 1;
  function.timeout = absl::Milliseconds(500);
  starter_.Become("f", [](TestRuntime& runtime) {
    runtime.Next();
    if (runtime.payload() == "hang") {
      runtime.WaitForKill();
      return Exits(0);
    }
    runtime.Answer(runtime.payload());
    return Echo(runtime);
  });
  scheduler().Put(function);
  Told hangs = Invoke("f", "hang"), waits = Invoke("f", "2");
  EXPECT_THAT(TextOf(std::move(hangs)), HasSubstr("Task timed out"));
  EXPECT_EQ(TextOf(std::move(waits)), "ok 2");
}

TEST_F(SchedulerTest, WhoWaitsIsServedAfterAnInstanceCouldNotBeLoaded) {
  ScheduledFunction function = Function("f");
  function.most_instances = 1;
  std::atomic<int> runs{0};
  Gate gate;
  starter_.Become("f", [&](TestRuntime& runtime) {
    if (++runs > 1) return Echo(runtime);
    gate.Pass();
    return Exits(1);
  });
  scheduler().Put(function);
  Told fails = Invoke("f", "1");
  ASSERT_TRUE(gate.WaitForWaiting(1));
  Told waits = Invoke("f", "2");
  gate.Open(1);
  EXPECT_THAT(TextOf(std::move(fails)), HasSubstr("Runtime.ExitError"));
  EXPECT_EQ(TextOf(std::move(waits)), "ok 2");
}

TEST_F(SchedulerTest, AnotherFunctionsIdleInstanceMakesRoom) {
  options_.most_instances = 1;
  scheduler().Put(Function("a"));
  scheduler().Put(Function("b"));
  EXPECT_EQ(TextOf(Invoke("a", "1")), "ok 1");
  EXPECT_EQ(TextOf(Invoke("b", "2")), "ok 2");
  EXPECT_EQ(TextOf(Invoke("a", "3")), "ok 3");
  EXPECT_THAT(starter_.started(), SizeIs(3));
}

TEST_F(SchedulerTest, AnotherFunctionsBusyInstanceMakesRoomWhenItHasAnswered) {
  options_.most_instances = 1;
  Gate gate;
  starter_.Become("a", EchoThrough(gate));
  scheduler().Put(Function("a"));
  scheduler().Put(Function("b"));
  Told first = Invoke("a", "1");
  ASSERT_TRUE(gate.WaitForWaiting(1));
  Told second = Invoke("b", "2");
  EXPECT_TRUE(Pending(second));
  gate.Open(1);
  EXPECT_EQ(TextOf(std::move(first)), "ok 1");
  EXPECT_EQ(TextOf(std::move(second)), "ok 2");
}

TEST_F(SchedulerTest, ProvisionedInstancesAreThereBeforeTheFirstCall) {
  ScheduledFunction function = Function("f");
  function.provisioned = 2;
  scheduler().Put(function);
  ASSERT_TRUE(starter_.WaitForStarts(2));
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 2; }));
  Told told = Invoke("f", "1");
  absl::StatusOr<CallResult> result = ResultOf(told);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->level, StartLevel::kInstance);
  EXPECT_THAT(starter_.started(), SizeIs(2));
}

TEST_F(SchedulerTest, ProvisionedInstancesOutliveTheIdleLimit) {
  options_.keep_alive.idle_limit_seconds = 0.05;
  Gate gate;
  starter_.Become("f", EchoThrough(gate));
  ScheduledFunction function = Function("f");
  function.provisioned = 1;
  scheduler().Put(function);
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 1; }));
  Told first = Invoke("f", "1"), second = Invoke("f", "2");
  ASSERT_TRUE(gate.WaitForWaiting(2));
  gate.Open(2);
  EXPECT_EQ(TextOf(std::move(first)), "ok 1");
  EXPECT_EQ(TextOf(std::move(second)), "ok 2");
  EXPECT_TRUE(starter_.WaitForLiving(1));  // the second one has gone
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle == 1; }));
}

// It is kept, and told again and again.
TEST_F(SchedulerTest, OfALongErrorOfAProvisionedInstanceTheBeginningIsKept) {
  starter_.Become("f", [](TestRuntime& runtime) {
    runtime.FailInit(R"({"errorMessage":")" + std::string(500'000, 'x') + R"("})");
    return Exits(1);
  });
  ScheduledFunction function = Function("f");
  function.provisioned = 1;
  scheduler().Put(function);
  ASSERT_TRUE(Eventually([&] { return !Numbers("f").problem.empty(); }));
  EXPECT_THAT(Numbers("f").problem, StartsWith(R"({"errorMessage":"xxx)"));
  EXPECT_LE(Numbers("f").problem.size(), 2000u);
  // A caller gets it whole.
  Told told = Invoke("f");
  const absl::StatusOr<CallResult> result = ResultOf(told);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->payload.size(), 500'000u);
}

TEST_F(SchedulerTest, AProvisionedInstanceThatEndsIsReplaced) {
  starter_.Become("f", [](TestRuntime& runtime) {
    while (runtime.Next()) {
      if (runtime.payload() == "exit") return Exits(3);
      runtime.Answer(runtime.payload());
    }
    return Exits(1);
  });
  ScheduledFunction function = Function("f");
  function.provisioned = 1;
  scheduler().Put(function);
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 1; }));
  starter_.KillInstance(starter_.started()[0].instance);  // before its first call
  ASSERT_TRUE(starter_.WaitForStarts(2));
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  EXPECT_THAT(TextOf(Invoke("f", "exit")), HasSubstr("exit status 3"));
  ASSERT_TRUE(starter_.WaitForStarts(3));
  EXPECT_EQ(TextOf(Invoke("f", "2")), "ok 2");
  EXPECT_THAT(starter_.started(), SizeIs(3));
}

TEST_F(SchedulerTest, ACallThatWaitsForAProvisionedInstanceGetsAnotherWhenThatFails) {
  std::atomic<int> runs{0};
  Gate gate;
  starter_.Become("f", [&](TestRuntime& runtime) {
    if (++runs > 1) return Echo(runtime);
    gate.Pass();
    return Exits(1);
  });
  ScheduledFunction function = Function("f");
  function.provisioned = 1;
  scheduler().Put(function);
  ASSERT_TRUE(gate.WaitForWaiting(1));
  Told told = Invoke("f", "1");
  EXPECT_EQ(Numbers("f").queued, 1u);
  gate.Open(1);
  EXPECT_EQ(TextOf(std::move(told)), "ok 1");
  EXPECT_EQ(Numbers("f").errors, 0u);
}

TEST_F(SchedulerTest, ACallThatWaitsForAProvisionedInstanceHearsWhenNoneCanBeStarted) {
  starter_.Refuse(StartLevel::kCold, absl::InternalError("no more processes"));
  starter_.HoldStarts(true);
  ScheduledFunction function = Function("f");
  function.provisioned = 1;
  scheduler().Put(function);
  Told told = Invoke("f", "1");
  starter_.HoldStarts(false);
  EXPECT_THAT(TextOf(std::move(told)), HasSubstr("no more processes"));
}

TEST_F(SchedulerTest, ANewRevisionsProvisionedInstancesWaitUntilTheOldOnesHaveGone) {
  Gate end;
  starter_.Become("f", [&end](TestRuntime& runtime) {
    Echo(runtime);
    end.Pass();
    return Exits(0);
  });
  ScheduledFunction function = Function("f");
  function.most_instances = function.provisioned = 2;
  scheduler().Put(function);
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 2; }));
  function.revision = 2;
  scheduler().Put(function);
  ASSERT_TRUE(end.WaitForWaiting(2));
  EXPECT_EQ(Numbers("f").starting, 0u);
  EXPECT_THAT(starter_.started(), SizeIs(2));
  end.Open(1);
  ASSERT_TRUE(starter_.WaitForStarts(3));
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  EXPECT_THAT(starter_.started(), SizeIs(3));
  end.Open(1);
  ASSERT_TRUE(starter_.WaitForStarts(4));
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 2; }));
  EXPECT_EQ(starter_.living(), 2u);
  end.Open(2);
  StopScheduler();
}

TEST_F(SchedulerTest, ProvisionedInstancesKeepToTheLimitOfAll) {
  options_.most_instances = 3;
  ScheduledFunction one = Function("one"), other = Function("other");
  one.provisioned = 2;
  other.provisioned = 2;
  EXPECT_TRUE(scheduler().ReserveProvisioned(one).ok());
  scheduler().Put(one);
  absl::Status refused = scheduler().ReserveProvisioned(other).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("function 'other'"), HasSubstr("make 4 with those of other functions"),
                    HasSubstr("at most 3")));
  scheduler().Put(other);
  ASSERT_TRUE(Eventually([&] { return Numbers("one").idle >= 2 && Numbers("other").idle >= 1; }));
  EXPECT_EQ(Numbers("other").starting, 0u);
  EXPECT_EQ(TextOf(Invoke("other", "1")), "ok 1");
  EXPECT_THAT(starter_.started(), SizeIs(3));
  // With the room that the other leaves it has all.
  scheduler().Remove("one");
  EXPECT_TRUE(scheduler().ReserveProvisioned(other).ok());
  ASSERT_TRUE(Eventually([&] { return Numbers("other").idle >= 2; }));
}

TEST_F(SchedulerTest, ProvisionedInstancesKeepToTheMemoryOfAll) {
  options_.keep_alive.memory_bytes = uint64_t{1} << 30;
  ScheduledFunction one = Function("one"), other = Function("other");
  one.provisioned = 6;
  other.provisioned = 3;
  ASSERT_TRUE(scheduler().ReserveProvisioned(one).ok());
  scheduler().Put(one);
  EXPECT_THAT(std::string(scheduler().ReserveProvisioned(other).status().message()),
              AllOf(HasSubstr("3 provisioned instances of 128.0 MiB"), HasSubstr("come to 1.1 GiB"),
                    HasSubstr("have 1.0 GiB"), HasSubstr("--functions-memory")));
  other.provisioned = 2;
  EXPECT_TRUE(scheduler().ReserveProvisioned(other).ok());
  // Of its own present revision it takes the place.
  one.provisioned = 8;
  EXPECT_TRUE(scheduler().ReserveProvisioned(one).ok());
  one.memory_bytes *= 2;
  EXPECT_FALSE(scheduler().ReserveProvisioned(one).ok());
}

TEST_F(SchedulerTest, ProvisionedInstancesCountFromTheCheckOn) {
  options_.keep_alive.memory_bytes = uint64_t{1} << 30;  // eight instances
  ScheduledFunction one = Function("one"), other = Function("other");
  one.provisioned = 6;
  other.provisioned = 3;
  {
    const auto room = scheduler().ReserveProvisioned(one);
    ASSERT_TRUE(room.ok()) << room.status();
    EXPECT_EQ(scheduler().ReserveProvisioned(other).status().code(), absl::StatusCode::kResourceExhausted);
    // Two deployments of one function take one another's place.
    EXPECT_TRUE(scheduler().ReserveProvisioned(one).ok());
  }
  // The first one was not put in, and then is the other.
  auto room = scheduler().ReserveProvisioned(other);
  ASSERT_TRUE(room.ok()) << room.status();
  scheduler().Put(other);
  ScheduledFunction third = Function("third");
  third.provisioned = 5;  // not counted twice, as long as the room is kept
  EXPECT_TRUE(scheduler().ReserveProvisioned(third).ok());
  EXPECT_FALSE(scheduler().ReserveProvisioned(one).ok());
}

TEST_F(SchedulerTest, OneOfManyWhoAskForTheSameRoomAtOnceGetsIt) {
  options_.most_instances = 5;
  scheduler();
  std::vector<absl::StatusOr<Scheduler::Reservation>> rooms;
  absl::Mutex mutex;
  std::vector<std::thread> askers;
  for (int i = 0; i < 8; ++i) {
    askers.emplace_back([&, i] {
      ScheduledFunction function = Function(absl::StrCat("f", i));
      function.provisioned = 3;
      auto room = scheduler().ReserveProvisioned(function);
      absl::MutexLock lock(&mutex);
      rooms.push_back(std::move(room));
    });
  }
  for (std::thread& asker : askers) asker.join();
  EXPECT_EQ(std::count_if(rooms.begin(), rooms.end(), [](const auto& room) { return room.ok(); }), 1);
}

TEST_F(SchedulerTest, OthersInstancesMakeRoomForProvisionedOnes) {
  options_.most_instances = 2;
  Gate gate;
  starter_.Become("f", EchoThrough(gate));
  scheduler().Put(Function("f"));
  Told idle = Invoke("f", "1"), busy = Invoke("f", "2");
  ASSERT_TRUE(gate.WaitForWaiting(2));
  ScheduledFunction ready = Function("ready");
  ready.provisioned = 2;
  scheduler().Put(ready);
  EXPECT_THAT(starter_.started(), SizeIs(2));
  // Once they have answered.
  gate.Open(1);
  ASSERT_TRUE(starter_.WaitForStarts(3));
  gate.Open(1);
  ASSERT_TRUE(Eventually([&] { return Numbers("ready").idle >= 2; }));
  EXPECT_THAT(TextOf(std::move(idle)), HasSubstr("ok "));
  EXPECT_THAT(TextOf(std::move(busy)), HasSubstr("ok "));
  EXPECT_EQ(Numbers("f").idle, 0u);
}

TEST_F(SchedulerTest, ARemovedFunctionAnswersWhatItHasBegun) {
  Gate gate;
  starter_.Become("f", EchoThrough(gate));
  ScheduledFunction function = Function("f");
  function.most_instances = 1;
  scheduler().Put(function);
  Told running = Invoke("f", "1");
  ASSERT_TRUE(gate.WaitForWaiting(1));
  Told waiting = Invoke("f", "2");
  scheduler().Remove("f");
  EXPECT_THAT(TextOf(std::move(waiting)), HasSubstr("NOT_FOUND: function 'f' was removed meanwhile"));
  EXPECT_THAT(TextOf(Invoke("f", "3")), HasSubstr("NOT_FOUND"));
  EXPECT_TRUE(Pending(running));
  gate.Open(1);
  EXPECT_EQ(TextOf(std::move(running)), "ok 1");
  EXPECT_TRUE(starter_.WaitForLiving(0));
}

TEST_F(SchedulerTest, AFunctionThatIsRemovedWhileItStartsEnds) {
  starter_.HoldStarts(true);
  scheduler().Put(Function("f"));
  Told waiting = Invoke("f", "1");
  scheduler().Remove("f");
  EXPECT_THAT(TextOf(std::move(waiting)), HasSubstr("NOT_FOUND"));
  starter_.HoldStarts(false);
  ASSERT_TRUE(starter_.WaitForStarts(1));
  EXPECT_TRUE(starter_.WaitForLiving(0));
}

TEST_F(SchedulerTest, ANewRevisionTakesTheCallsThatWait) {
  Gate gate;
  starter_.Become("f", [&gate](TestRuntime& runtime) {
    while (runtime.Next() && gate.Pass()) runtime.Answer(absl::StrCat(runtime.order().revision));
    return Exits(1);
  });
  ScheduledFunction function = Function("f");
  function.most_instances = 1;
  scheduler().Put(function);
  Told running = Invoke("f");
  ASSERT_TRUE(gate.WaitForWaiting(1));
  Told waiting = Invoke("f");
  function.revision = 2;
  scheduler().Put(function);
  Told later = Invoke("f");
  gate.Open(3);
  EXPECT_EQ(TextOf(std::move(running)), "ok 1");
  EXPECT_EQ(TextOf(std::move(waiting)), "ok 2");
  EXPECT_EQ(TextOf(std::move(later)), "ok 2");
  EXPECT_TRUE(starter_.WaitForLiving(1));
  EXPECT_EQ(Numbers("f").invocations, 3u);
}

TEST_F(SchedulerTest, ANewRevisionEndsTheOldOnesIdleInstances) {
  scheduler().Put(Function("f"));
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  ScheduledFunction second = Function("f");
  second.revision = 2;
  scheduler().Put(second);
  EXPECT_TRUE(starter_.WaitForLiving(0));
  EXPECT_EQ(TextOf(Invoke("f", "2")), "ok 2");
  EXPECT_EQ(starter_.started().back().revision, 2u);
}

}  // namespace
}  // namespace rekindle::functions
