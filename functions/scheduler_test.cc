// One call after the other, and what can go wrong with each.
#include "functions/scheduler.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <atomic>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/test_eventually.h"
#include "functions/scheduler_for_tests.h"

namespace rekindle::functions {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST_F(SchedulerTest, TheFirstCallStartsAnInstanceWhichTakesTheNextOnes) {
  scheduler().Put(Function("f"));
  Told told = Invoke("f", R"({"n":1})");
  absl::StatusOr<CallResult> first = ResultOf(told);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->payload, R"({"n":1})");
  EXPECT_EQ(first->function_error, "");
  EXPECT_EQ(first->content_type, "");
  EXPECT_EQ(first->level, StartLevel::kCold);
  EXPECT_GT(first->start, absl::ZeroDuration());
  EXPECT_THAT(first->log_tail, StartsWith("START "));
  for (int i = 2; i < 100; ++i) {
    Told later = Invoke("f", absl::StrCat(i));
    absl::StatusOr<CallResult> next = ResultOf(later);
    ASSERT_TRUE(next.ok()) << next.status();
    ASSERT_EQ(next->payload, absl::StrCat(i));
    ASSERT_EQ(next->level, StartLevel::kInstance);
    ASSERT_EQ(next->instance, first->instance);
  }
  EXPECT_THAT(starter_.started(), SizeIs(1));
  FunctionNumbers numbers = Numbers("f");
  EXPECT_EQ(numbers.invocations, 99u);
  EXPECT_EQ(numbers.errors + numbers.timeouts + numbers.throttles, 0u);
  EXPECT_EQ(numbers.idle, 1u);
  EXPECT_EQ(numbers.busy + numbers.starting, 0u);
  ASSERT_THAT(numbers.starts, SizeIs(1));
  EXPECT_EQ(numbers.starts[0].level, StartLevel::kCold);
}

TEST_F(SchedulerTest, WhatIsNotThereIsNotFound) {
  EXPECT_THAT(TextOf(Invoke("nobody")), HasSubstr("NOT_FOUND: there is no function 'nobody'"));
  EXPECT_TRUE(absl::IsNotFound(scheduler().Numbers("nobody").status()));
  scheduler().Remove("nobody");
}

TEST_F(SchedulerTest, ADryRunStartsNothing) {
  scheduler().Put(Function("f"));
  Call call;
  call.function = "f";
  call.dry_run = true;
  std::promise<absl::StatusOr<CallResult>> told;
  scheduler().Invoke(call, [&told](absl::StatusOr<CallResult> result) { told.set_value(std::move(result)); });
  EXPECT_TRUE(told.get_future().get().ok());
  StopScheduler();
  EXPECT_THAT(starter_.started(), SizeIs(0));
}

TEST_F(SchedulerTest, AFunctionsErrorIsAResultAndItsInstanceGoesOn) {
  starter_.Become("f", [](TestRuntime& runtime) {
    while (runtime.Next()) runtime.Fail(R"({"errorType":"KeyError"})");
    return Exits(1);
  });
  scheduler().Put(Function("f"));
  EXPECT_EQ(TextOf(Invoke("f")), R"(function error {"errorType":"KeyError"})");
  EXPECT_EQ(TextOf(Invoke("f")), R"(function error {"errorType":"KeyError"})");
  EXPECT_THAT(starter_.started(), SizeIs(1));
  EXPECT_EQ(Numbers("f").errors, 2u);
}

TEST_F(SchedulerTest, ACallWhoseTimeIsUpEndsItsInstance) {
  std::atomic<int> runs{0};
  starter_.Become("f", [&runs](TestRuntime& runtime) {
    if (++runs > 1) return Echo(runtime);
    runtime.Next();
    runtime.WaitForKill();
    return Exits(0);
  });
  ScheduledFunction function = Function("f");
  function.timeout = absl::Milliseconds(50);
  scheduler().Put(function);
  Told told = Invoke("f");
  absl::StatusOr<CallResult> late = ResultOf(told);
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(late->function_error, "Unhandled");
  EXPECT_THAT(late->payload,
              AllOf(HasSubstr("Sandbox.Timedout"), HasSubstr("Task timed out after 0.05 seconds")));
  EXPECT_THAT(late->log_tail, HasSubstr("Task timed out after 0.05 seconds"));
  function.timeout = absl::Minutes(10);
  function.revision = 2;
  scheduler().Put(function);  // so that the machine's pace does not matter
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  EXPECT_THAT(starter_.started(), SizeIs(2));
  EXPECT_EQ(Numbers("f").timeouts, 1u);
  EXPECT_TRUE(starter_.WaitForLiving(1));
}

TEST_F(SchedulerTest, AnInstanceThatEndsInACallIsItsCallersError) {
  starter_.Become("f", [](TestRuntime& runtime) {
    runtime.Next();
    if (runtime.payload() == "exit") return Exits(3);
    if (runtime.payload() == "crash") return DiesOf(SIGSEGV);
    if (runtime.payload() == "eat") return InstanceEnd{{0, SIGKILL}, true};
    runtime.Answer(runtime.payload());
    return Echo(runtime);
  });
  scheduler().Put(Function("f"));
  EXPECT_THAT(TextOf(Invoke("f", "exit")),
              AllOf(HasSubstr("Runtime.ExitError"), HasSubstr("Runtime exited with error: exit status 3")));
  EXPECT_THAT(TextOf(Invoke("f", "crash")), HasSubstr("signal: segmentation fault"));
  EXPECT_THAT(TextOf(Invoke("f", "eat")),
              AllOf(HasSubstr("Runtime.OutOfMemory"), HasSubstr("limit of 128 MB")));
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  EXPECT_THAT(starter_.started(), SizeIs(4));
  EXPECT_EQ(Numbers("f").errors, 3u);
}

TEST_F(SchedulerTest, AnIdleInstanceThatEndsIsReplacedByTheNextCall) {
  scheduler().Put(Function("f"));
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  starter_.KillInstance(starter_.started()[0].instance);
  WaitUntilGone("f");
  EXPECT_EQ(TextOf(Invoke("f", "2")), "ok 2");
  EXPECT_THAT(starter_.started(), SizeIs(2));
}

TEST_F(SchedulerTest, AFunctionThatCanNotBeLoadedSaysWhy) {
  std::atomic<bool> broken{true};
  starter_.Become("f", [&broken](TestRuntime& runtime) {
    if (!broken) return Echo(runtime);
    // 0: it was ended before it had the answer.
    EXPECT_THAT(runtime.FailInit(R"({"errorType":"Runtime.ImportModuleError"})"), ::testing::AnyOf(202, 0));
    return Exits(1);
  });
  scheduler().Put(Function("f"));
  EXPECT_EQ(TextOf(Invoke("f")), R"(function error {"errorType":"Runtime.ImportModuleError"})");
  ASSERT_THAT(starter_.failed(), SizeIs(1));
  EXPECT_EQ(starter_.failed()[0].problem, "") << "its runtime has said it";
  EXPECT_FALSE(starter_.failed()[0].timed_out);
  broken = false;
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  EXPECT_EQ(Numbers("f").errors, 1u);
}

TEST_F(SchedulerTest, AnInstanceThatEndsBeforeItAsksIsAnError) {
  std::atomic<bool> broken{true};
  starter_.Become("f", [&broken](TestRuntime& runtime) { return broken ? Exits(7) : Echo(runtime); });
  scheduler().Put(Function("f"));
  EXPECT_THAT(TextOf(Invoke("f")), AllOf(HasSubstr("Runtime.ExitError"), HasSubstr("exit status 7")));
  broken = false;
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  ASSERT_THAT(starter_.failed(), SizeIs(1));
  EXPECT_EQ(starter_.failed()[0].error_type, "Runtime.ExitError");
  EXPECT_EQ(starter_.failed()[0].problem, "Runtime exited with error: exit status 7");
}

TEST_F(SchedulerTest, TheMemoryLimitIsNamedWhereItEndedAnInstance) {
  starter_.Become("f", [](TestRuntime& runtime) {
    if (runtime.order().instance.ends_with("-2")) runtime.Next();
    return InstanceEnd{{0, SIGKILL}, /*out_of_memory=*/true};
  });
  scheduler().Put(Function("f"));
  const auto named = AllOf(HasSubstr("Runtime.OutOfMemory"), HasSubstr("memory limit of 128 MB reached"));
  EXPECT_THAT(TextOf(Invoke("f")), named);
  ASSERT_THAT(starter_.failed(), SizeIs(1));
  EXPECT_EQ(starter_.failed()[0].error_type, "Runtime.OutOfMemory");
  EXPECT_THAT(starter_.failed()[0].problem, HasSubstr("memory limit of 128 MB reached"));
  Told during = Invoke("f");
  absl::StatusOr<CallResult> result = ResultOf(during);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->payload, named);
  EXPECT_THAT(result->log_tail, HasSubstr("memory limit of 128 MB reached"));
}

TEST_F(SchedulerTest, WhoHasEndedAnInstanceIsTold) {
  const std::string why = "a frame of its image is damaged";
  starter_.Become("f", [&why](TestRuntime& runtime) {
    if (runtime.order().instance.ends_with("-2")) runtime.Next();
    return InstanceEnd{{0, SIGKILL}, /*out_of_memory=*/false, why};
  });
  scheduler().Put(Function("f"));
  const auto named = AllOf(HasSubstr("Runtime.ExitError"), HasSubstr("Rekindle ended it: " + why));
  EXPECT_THAT(TextOf(Invoke("f")), named);
  Told during = Invoke("f");
  absl::StatusOr<CallResult> result = ResultOf(during);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->payload, named);
  EXPECT_THAT(result->log_tail, HasSubstr("ended: " + why)) << "ahead of the end of the call";
}

TEST_F(SchedulerTest, AStartThatTakesTooLongIsAnError) {
  starter_.Become("f", [](TestRuntime& runtime) {
    runtime.WaitForKill();
    return Exits(0);
  });
  ScheduledFunction function = Function("f");
  function.longest_start = absl::Milliseconds(50);
  scheduler().Put(function);
  EXPECT_THAT(TextOf(Invoke("f")), AllOf(HasSubstr("Sandbox.Timedout"), HasSubstr("did not load")));
  EXPECT_TRUE(starter_.WaitForLiving(0));
  ASSERT_THAT(starter_.failed(), SizeIs(1));
  EXPECT_TRUE(starter_.failed()[0].timed_out);
  EXPECT_GE(starter_.failed()[0].duration, function.longest_start);
  EXPECT_THAT(starter_.failed()[0].problem, HasSubstr("did not load"));
}

TEST_F(SchedulerTest, OneThatSaysItCanNotAndStaysIsEnded) {
  starter_.Become("f", [](TestRuntime& runtime) {
    runtime.FailInit("{}");
    runtime.WaitForKill();
    return Exits(0);
  });
  ScheduledFunction function = Function("f");
  function.longest_start = absl::Milliseconds(200);
  scheduler().Put(function);
  EXPECT_EQ(TextOf(Invoke("f")), "function error {}");
  EXPECT_TRUE(starter_.WaitForLiving(0));
}

TEST_F(SchedulerTest, WhatIsIdleOfTheOldRevisionTakesCallsUntilTheNewOneIsReady) {
  const auto answers = [](const char* what) {
    return [what](TestRuntime& runtime) {
      while (runtime.Next()) runtime.Answer(what);
      return Exits(0);
    };
  };
  starter_.Become("f", answers("old"));
  ScheduledFunction function = Function("f");
  function.provisioned = 2;
  scheduler().Put(function);
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 2; }));
  Gate loaded;
  starter_.Become("f", [&](TestRuntime& runtime) {
    loaded.Pass();
    return answers("new")(runtime);
  });
  ++function.revision;
  scheduler().Put(function);
  ASSERT_TRUE(loaded.WaitForWaiting(2));
  EXPECT_EQ(TextOf(Invoke("f")), "ok old");
  Told one = Invoke("f"), other = Invoke("f");
  EXPECT_EQ(TextOf(std::move(one)), "ok old");
  EXPECT_EQ(TextOf(std::move(other)), "ok old");
  EXPECT_EQ(starter_.living(), 4u);
  loaded.Open(1);
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 1; }));
  EXPECT_EQ(TextOf(Invoke("f")), "ok new");
  loaded.Open(1);
  EXPECT_TRUE(starter_.WaitForLiving(2));
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 2; }));
  EXPECT_EQ(TextOf(Invoke("f")), "ok new");
  EXPECT_THAT(starter_.started(), SizeIs(4));
}

TEST_F(SchedulerTest, ARevisionThatCanNotBeLoadedReplacesTheOldOneAllTheSame) {
  ScheduledFunction function = Function("f");
  function.provisioned = 1;
  scheduler().Put(function);
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 1; }));
  starter_.Become("f", [](TestRuntime& runtime) {
    runtime.FailInit("{}");
    return Exits(1);
  });
  ++function.revision;
  scheduler().Put(function);
  EXPECT_TRUE(starter_.WaitForLiving(0));
  EXPECT_EQ(TextOf(Invoke("f")), "function error {}");
}

TEST_F(SchedulerTest, OneThatIsReplacedAndRemovedBeforeItIsReadyTakesTheOldOneAlong) {
  ScheduledFunction function = Function("f");
  function.provisioned = 1;
  scheduler().Put(function);
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 1; }));
  Gate loaded;
  starter_.Become("f", [&](TestRuntime& runtime) {
    loaded.Pass();
    return Echo(runtime);
  });
  for (int i = 0; i < 2; ++i) {
    ++function.revision;
    scheduler().Put(function);
    ASSERT_TRUE(loaded.WaitForWaiting(i + 1));
    EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1") << "by the first revision";
  }
  scheduler().Remove("f");
  loaded.Open(2);
  EXPECT_TRUE(starter_.WaitForLiving(0));
  EXPECT_THAT(TextOf(Invoke("f")), StartsWith("NOT_FOUND"));
}

TEST_F(SchedulerTest, OtherSettingsEndNoInstance) {
  starter_.Become("f", [](TestRuntime& runtime) {
    while (runtime.Next() && runtime.payload() != "hang") runtime.Answer("1");
    runtime.WaitForKill();
    return Exits(0);
  });
  ScheduledFunction function = Function("f");
  function.provisioned = function.most_instances = 1;
  scheduler().Put(function);
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 1; }));
  function.provisioned = function.most_instances = 2;
  function.timeout = absl::Milliseconds(50);
  scheduler().Adjust(function);
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 2; }));
  EXPECT_THAT(starter_.started(), SizeIs(2));
  EXPECT_EQ(starter_.living(), 2u);
  EXPECT_THAT(TextOf(Invoke("f", "hang")), HasSubstr("timed out after 0.05 seconds"));
  ++function.revision;
  function.provisioned = 0;
  scheduler().Adjust(function);  // of a revision that is not there
  ASSERT_TRUE(Eventually([&] { return Numbers("f").idle >= 2; }));
}

TEST_F(SchedulerTest, HowLongStartsTookIsCountedForAllFunctions) {
  EXPECT_THAT(scheduler().Times(), IsEmpty());
  for (const char* name : {"f", "g"}) {
    scheduler().Put(Function(name));
    EXPECT_EQ(TextOf(Invoke(name, "1")), "ok 1");
  }
  EXPECT_EQ(TextOf(Invoke("f", "2")), "ok 2") << "which needs no start";
  const std::vector<StartTimes> times = scheduler().Times();
  ASSERT_THAT(times, SizeIs(1));
  EXPECT_EQ(times[0].level, StartLevel::kCold);
  EXPECT_EQ(times[0].count, 2u);
  EXPECT_GT(times[0].seconds, 0);
  EXPECT_TRUE(std::is_sorted(times[0].within.begin(), times[0].within.end()));
  EXPECT_LE(times[0].within.back(), times[0].count);
}

TEST_F(SchedulerTest, WhatCanNotBeStartedFromIsPassedOver) {
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.has_image = function.may_have_image = true;
  for (StartLevel level : {StartLevel::kTemplate, StartLevel::kDependencyTemplate, StartLevel::kImageRam,
                           StartLevel::kImageDisk, StartLevel::kDependencyRam, StartLevel::kDependencyDisk}) {
    starter_.Refuse(level, absl::NotFoundError("gone"));
  }
  starter_.Become("f", [](TestRuntime& runtime) {
    if (runtime.Next()) runtime.Answer("1");
    return Exits(0);  // so that each call needs a start
  });
  scheduler().Put(function);
  Told told = Invoke("f");
  absl::StatusOr<CallResult> result = ResultOf(told);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->level, StartLevel::kCold);
  EXPECT_THAT(Numbers("f").problem,
              AllOf(HasSubstr("from nothing"), HasSubstr("gone; `rekindle deps build")));
  WaitUntilGone("f");
  for (StartLevel level : {StartLevel::kDependencyRam, StartLevel::kDependencyDisk})
    starter_.Refuse(level, absl::OkStatus());
  EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
  EXPECT_EQ(Numbers("f").problem, "");
}

TEST_F(SchedulerTest, WhyItIsOnlyStartedFromNothingIsTold) {
  ScheduledFunction function = Function("f");
  function.only_cold = "its image is missing";
  scheduler().Put(function);
  EXPECT_EQ(Numbers("f").problem, "its image is missing");
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  EXPECT_EQ(Numbers("f").problem, "its image is missing");
  ++function.revision;
  function.only_cold.clear();
  scheduler().Put(function);
  EXPECT_EQ(Numbers("f").problem, "");
}

TEST_F(SchedulerTest, WhoCanNotBeStartedAtAllIsTheNodesFault) {
  starter_.Refuse(StartLevel::kCold, absl::InternalError("no more processes"));
  scheduler().Put(Function("f"));
  EXPECT_THAT(TextOf(Invoke("f")), AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("function 'f'"),
                                         HasSubstr("could be started: no more processes")));
  starter_.Refuse(StartLevel::kCold, absl::OkStatus());
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
}

TEST_F(SchedulerTest, WhyNoImageCouldBeUsedIsToldWhereNothingElseCan) {
  for (const StartLevel level : {StartLevel::kDependencyRam, StartLevel::kDependencyDisk})
    starter_.Refuse(level, absl::AbortedError("the pager has died"));
  starter_.Refuse(StartLevel::kCold, absl::FailedPreconditionError("it has a network of its own"));
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  scheduler().Put(function);
  EXPECT_THAT(
      TextOf(Invoke("f")),
      HasSubstr("the pager has died; nor can it be started from nothing: it has a network of its own"));
}

TEST_F(SchedulerTest, ItsOwnImageIsTakenAndUsed) {
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  std::atomic<int> runs{0};
  starter_.Become("f", [&runs](TestRuntime& runtime) {
    ++runs;
    if (runtime.Next()) runtime.Answer(absl::StrCat("\"", NameOf(runtime.order().level), "\""));
    return Exits(0);  // so that each call needs a start
  });
  scheduler().Put(function);
  const TestStarter::Making image{TestStarter::Making::What::kImage, "f", ""};
  EXPECT_THAT(TextOf(Invoke("f")), StartsWith("ok \""));
  ASSERT_TRUE(starter_.WaitForMade(image));
  std::string from;
  for (int i = 0; i < 1000 && !absl::StrContains(from, "image-") && !absl::StrContains(from, "ok \"template");
       ++i) {
    WaitUntilGone("f");
    from = TextOf(Invoke("f"));
  }
  EXPECT_THAT(from, ::testing::AnyOf(HasSubstr("image-"), HasSubstr("template")));
}

// However quick a template of its dependencies is by itself: the function is not loaded there.
TEST_F(SchedulerTest, WhatTakesLongToLoadStartsFromItsOwnImage) {
  ScheduledFunction slow = Function("slow"), quick = Function("quick");
  slow.dependency_image = quick.dependency_image = "deps/numpy";
  slow.has_image = slow.may_have_image = true;
  starter_.Become("slow", [](TestRuntime& runtime) {
    const StartLevel level = runtime.order().level;
    const bool loaded =
        level == StartLevel::kImageRam || level == StartLevel::kImageDisk || level == StartLevel::kTemplate;
    if (!loaded) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (runtime.Next()) runtime.Answer(absl::StrCat("\"", NameOf(level), "\""));
    return Exits(0);  // so that each call needs a start
  });
  starter_.Become("quick", [](TestRuntime& runtime) {
    if (runtime.order().level != StartLevel::kDependencyTemplate)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (runtime.Next()) runtime.Answer("1");
    return Exits(0);
  });
  starter_.RefuseTemplates("slow");
  scheduler().Put(slow);
  scheduler().Put(quick);
  for (StartLevel own : {StartLevel::kImageRam, StartLevel::kImageDisk})
    starter_.Refuse(own, absl::UnavailableError("not now"));
  EXPECT_THAT(TextOf(Invoke("slow")), HasSubstr("dependency-"));
  for (StartLevel own : {StartLevel::kImageRam, StartLevel::kImageDisk})
    starter_.Refuse(own, absl::OkStatus());
  const TestStarter::Making of_dependencies{TestStarter::Making::What::kTemplate, "", "deps/numpy"};
  for (int i = 0; i < 100 && !absl::c_linear_search(starter_.made(), of_dependencies); ++i) {
    WaitUntilGone("quick");
    ASSERT_EQ(TextOf(Invoke("quick")), "ok 1");
  }
  ASSERT_TRUE(starter_.WaitForMade(of_dependencies));
  for (int i = 0; i < 3; ++i) {
    WaitUntilGone("slow");
    EXPECT_THAT(TextOf(Invoke("slow")), ::testing::Not(HasSubstr("dependency-"))) << i;
  }
}

TEST_F(SchedulerTest, AnImageThatIsGoneIsTakenAgain) {
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.has_image = function.may_have_image = true;
  starter_.Refuse(StartLevel::kImageRam, absl::NotFoundError("removed"));
  starter_.Refuse(StartLevel::kImageDisk, absl::NotFoundError("removed"));
  // Made before a start has got a thread, it would be taken instead.
  starter_.Refuse(StartLevel::kTemplate, absl::UnavailableError("ended"));
  starter_.Refuse(StartLevel::kDependencyTemplate, absl::UnavailableError("ended"));
  starter_.Become("f", [](TestRuntime& runtime) {
    if (runtime.Next()) runtime.Answer("1");
    return Exits(0);  // so that each call needs a start
  });
  scheduler().Put(function);
  const TestStarter::Making image{TestStarter::Making::What::kImage, "f", ""};
  for (int i = 0; i < 100 && absl::c_count(starter_.made(), image) == 0; ++i) {
    EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
    WaitUntilGone("f");
  }
  EXPECT_TRUE(starter_.WaitForMade(image));
}

TEST_F(SchedulerTest, ATemplateThatIsGoneIsPassedOverAndMadeAgain) {
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  starter_.Become("f", [](TestRuntime& runtime) {
    if (runtime.Next()) runtime.Answer(absl::StrCat("\"", NameOf(runtime.order().level), "\""));
    return Exits(0);  // so that each call needs a start
  });
  scheduler().Put(function);
  const TestStarter::Making made{TestStarter::Making::What::kTemplate, "f", ""};
  auto templates = [&] {
    const std::vector<TestStarter::Making> all = starter_.made();
    return std::count(all.begin(), all.end(), made);
  };
  // Calls until a start is from a template.
  auto call_until_forked = [&] {
    std::string from;
    while (from != "ok \"template\"") {
      WaitUntilGone("f");
      from = TextOf(Invoke("f"));
      ASSERT_THAT(from, StartsWith("ok \""));
    }
  };
  call_until_forked();
  EXPECT_EQ(templates(), 1);
  starter_.Refuse(StartLevel::kTemplate, absl::UnavailableError("the template has ended"));
  WaitUntilGone("f");
  EXPECT_THAT(TextOf(Invoke("f")),
              ::testing::AllOf(StartsWith("ok \""), ::testing::Not(HasSubstr("\"template"))));
  starter_.Refuse(StartLevel::kTemplate, absl::OkStatus());
  call_until_forked();
  EXPECT_EQ(templates(), 2);
}

TEST_F(SchedulerTest, ATemplateThatCanNotBeForkedGoesForGood) {
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  starter_.Refuse(StartLevel::kTemplate, absl::FailedPreconditionError("setns: Operation not permitted"));
  starter_.Become("f", [](TestRuntime& runtime) {
    if (runtime.Next()) runtime.Answer("1");
    return Exits(0);  // so that each call needs a start
  });
  scheduler().Put(function);
  const TestStarter::Making made{TestStarter::Making::What::kTemplate, "f", ""};
  const TestStarter::Making dropped{TestStarter::Making::What::kDropTemplate, "f", ""};
  auto count = [&](const TestStarter::Making& making) {
    const std::vector<TestStarter::Making> all = starter_.made();
    return std::count(all.begin(), all.end(), making);
  };
  for (int calls = 0; calls < 1000 && count(dropped) == 0; ++calls) {
    EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
    WaitUntilGone("f");
  }
  EXPECT_EQ(count(dropped), 1);
  for (int calls = 0; calls < 20; ++calls) {
    EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
    WaitUntilGone("f");
  }
  StopScheduler();
  EXPECT_EQ(count(made), 1);
  EXPECT_EQ(count(dropped), 1);
}

TEST_F(SchedulerTest, AnImageThatCanNotBeTakenIsNotTriedAgain) {
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  starter_.RefuseToCapture(absl::FailedPreconditionError("it has threads"));
  starter_.Become("f", [](TestRuntime& runtime) {
    if (runtime.Next()) runtime.Answer("1");
    return Exits(0);
  });
  scheduler().Put(function);
  const TestStarter::Making image{TestStarter::Making::What::kImage, "f", ""};
  EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
  ASSERT_TRUE(starter_.WaitForMade(image));
  ASSERT_TRUE(Eventually([&] { return !Numbers("f").problem.empty(); }));
  EXPECT_EQ(Numbers("f").problem, "it has threads");
  for (int i = 0; i < 20; ++i) {
    WaitUntilGone("f");
    EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
  }
  // It is of the code that was there then.
  function.revision = 2;
  scheduler().Put(function);
  EXPECT_EQ(Numbers("f").problem, "");
  StopScheduler();
  std::vector<TestStarter::Making> made = starter_.made();
  EXPECT_EQ(std::count(made.begin(), made.end(), image), 1);
}

TEST_F(SchedulerTest, AnImageThatCanNotBeTakenNowIsTriedAgainAfterAPause) {
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  options_.first_pause = options_.longest_pause = absl::Hours(1);
  starter_.RefuseToCapture(absl::ResourceExhaustedError("the disk is full"));
  starter_.Become("f", [](TestRuntime& runtime) {
    if (runtime.Next()) runtime.Answer("1");
    return Exits(0);  // so that each call needs a start
  });
  scheduler().Put(function);
  const TestStarter::Making image{TestStarter::Making::What::kImage, "f", ""};
  EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
  ASSERT_TRUE(starter_.WaitForMade(image));
  ASSERT_TRUE(Eventually([&] { return !Numbers("f").problem.empty(); }));
  EXPECT_THAT(Numbers("f").problem, AllOf(HasSubstr("could not be made and is tried again after "),
                                          HasSubstr(": the disk is full")));
  for (int i = 0; i < 20; ++i) {
    WaitUntilGone("f");
    EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
  }
  StopScheduler();
  std::vector<TestStarter::Making> made = starter_.made();
  EXPECT_EQ(std::count(made.begin(), made.end(), image), 1);
  // Templates are of that image.
  EXPECT_EQ(std::count(made.begin(), made.end(),
                       TestStarter::Making{TestStarter::Making::What::kTemplate, "f", ""}),
            0);
}

TEST_F(SchedulerTest, AnImageThatCouldNotBeTakenIsThereOnceItCan) {
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  options_.first_pause = options_.longest_pause = absl::ZeroDuration();
  starter_.RefuseToCapture(absl::ResourceExhaustedError("the disk is full"));
  starter_.Become("f", [](TestRuntime& runtime) {
    if (runtime.Next()) runtime.Answer("1");
    return Exits(0);  // so that each call needs a start
  });
  scheduler().Put(function);
  // By itself a number of times, then at starts.
  EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(Numbers("f").problem, "at the first start"); }));
  EXPECT_THAT(Numbers("f").problem, HasSubstr(", 21 times so far, and is tried again at the first start"));
  starter_.RefuseToCapture(absl::OkStatus());
  ASSERT_TRUE(Eventually([&] {
    if (Numbers("f").problem.empty()) return true;
    WaitUntilGone("f");
    EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
    return false;
  }));
}

TEST_F(SchedulerTest, AnImageThatCouldNotBeTakenIsTakenWithoutACall) {
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  options_.first_pause = absl::Milliseconds(1);
  starter_.RefuseToCapture(absl::UnavailableError("not now"));
  starter_.Become("f", [](TestRuntime& runtime) {
    while (runtime.Next()) runtime.Answer("1");
    return Exits(0);
  });
  scheduler().Put(function);
  EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
  ASSERT_TRUE(Eventually([&] { return !Numbers("f").problem.empty(); }));
  starter_.RefuseToCapture(absl::OkStatus());
  ASSERT_TRUE(Eventually([&] { return Numbers("f").problem.empty(); }));
}

TEST_F(SchedulerTest, ImagesOfManyThatCouldNotBeTakenAreThereOnceTheyCan) {
  options_.first_pause = absl::Milliseconds(1);
  starter_.RefuseToCapture(absl::UnavailableError("not now"));
  const std::vector<std::string> names = {"a", "b", "c"};
  for (const std::string& name : names) {
    ScheduledFunction function = Function(name);
    function.dependency_image = "deps/numpy";
    function.may_have_image = true;
    starter_.Become(name, [](TestRuntime& runtime) {
      while (runtime.Next()) runtime.Answer("1");
      return Exits(0);
    });
    scheduler().Put(function);
    EXPECT_EQ(TextOf(Invoke(name)), "ok 1");
  }
  for (const std::string& name : names) {
    ASSERT_TRUE(Eventually([&] { return !Numbers(name).problem.empty(); }));
  }
  starter_.RefuseToCapture(absl::OkStatus());
  for (const std::string& name : names) {
    ASSERT_TRUE(Eventually([&] { return Numbers(name).problem.empty(); }));
  }
}

TEST_F(SchedulerTest, AnInstanceThatNobodyNeedsIsRetired) {
  options_.keep_alive.idle_limit_seconds = 0.05;
  scheduler().Put(Function("f"));
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  EXPECT_TRUE(starter_.WaitForLiving(0));
  EXPECT_EQ(TextOf(Invoke("f", "2")), "ok 2");
  EXPECT_THAT(starter_.started(), SizeIs(2));
}

TEST_F(SchedulerTest, WhenMemoryIsShortAnotherFunctionsIdleInstanceGoes) {
  options_.keep_alive.memory_bytes = uint64_t{40} << 20;  // one instance, as guessed before it is measured
  scheduler().Put(Function("a"));
  scheduler().Put(Function("b"));
  EXPECT_EQ(TextOf(Invoke("a", "1")), "ok 1");
  EXPECT_EQ(TextOf(Invoke("b", "2")), "ok 2");
  EXPECT_TRUE(starter_.WaitForLiving(1));
  EXPECT_EQ(Numbers("a").idle, 0u);
  EXPECT_EQ(TextOf(Invoke("a", "3")), "ok 3");
}

TEST_F(SchedulerTest, WhatIsFilledInAfterTheFirstAnswerCounts) {
  options_.keep_alive.memory_bytes = uint64_t{150} << 20;
  options_.filled_after = absl::Milliseconds(1);
  options_.measure_every = absl::InfiniteDuration();
  starter_.GrowTo(uint64_t{100} << 20);
  scheduler().Put(Function("a"));
  scheduler().Put(Function("b"));
  EXPECT_EQ(TextOf(Invoke("a", "1")), "ok 1");
  EXPECT_EQ(TextOf(Invoke("b", "2")), "ok 2");
  ASSERT_TRUE(starter_.WaitForGrown(2));
  EXPECT_TRUE(starter_.WaitForLiving(1));
}

TEST_F(SchedulerTest, AnInstanceIsMeasuredAgainWhenItHasAnswered) {
  options_.keep_alive.memory_bytes = uint64_t{150} << 20;
  options_.filled_after = absl::Hours(1);
  options_.measure_every = absl::ZeroDuration();
  starter_.GrowTo(uint64_t{100} << 20);
  scheduler().Put(Function("a"));
  scheduler().Put(Function("b"));
  EXPECT_EQ(TextOf(Invoke("a", "1")), "ok 1");
  EXPECT_EQ(TextOf(Invoke("b", "2")), "ok 2");
  ASSERT_TRUE(starter_.WaitForGrown(2));
  EXPECT_EQ(starter_.living(), 2u);
  EXPECT_EQ(TextOf(Invoke("a", "3")), "ok 3");
  EXPECT_EQ(TextOf(Invoke("b", "4")), "ok 4");
  EXPECT_TRUE(starter_.WaitForLiving(1));
}

TEST_F(SchedulerTest, ATemplateThatIsLargerThanThereIsRoomForGoes) {
  options_.keep_alive.memory_bytes = uint64_t{150} << 20;
  ScheduledFunction function = Function("f");
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  starter_.MakeTemplatesOf(uint64_t{200} << 20);
  starter_.Become("f", [](TestRuntime& runtime) {
    if (runtime.Next()) runtime.Answer("1");
    return Exits(0);  // so that each call needs a start
  });
  scheduler().Put(function);
  const TestStarter::Making made{TestStarter::Making::What::kTemplate, "f", ""};
  const TestStarter::Making dropped{TestStarter::Making::What::kDropTemplate, "f", ""};
  auto is_made = [&] {
    const std::vector<TestStarter::Making> all = starter_.made();
    return std::find(all.begin(), all.end(), made) != all.end();
  };
  while (!is_made()) {
    EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
    WaitUntilGone("f");
  }
  EXPECT_TRUE(starter_.WaitForMade(dropped));
  EXPECT_EQ(TextOf(Invoke("f")), "ok 1");
}

TEST_F(SchedulerTest, EndingTellsThoseWhoWaitAndEndsAllInstances) {
  Gate gate;
  starter_.Become("busy", [](TestRuntime& runtime) {
    runtime.Next();
    runtime.WaitForKill();
    return Exits(0);
  });
  starter_.Become("loading", [&gate](TestRuntime& runtime) {
    gate.Open(1);
    runtime.WaitForKill();
    return Exits(0);
  });
  ScheduledFunction one = Function("busy");
  one.most_instances = 1;
  scheduler().Put(one);
  scheduler().Put(Function("loading"));
  scheduler().Put(Function("idle"));
  EXPECT_EQ(TextOf(Invoke("idle", "1")), "ok 1");
  Told running = Invoke("busy"), waiting = Invoke("busy"), loading = Invoke("loading");
  ASSERT_TRUE(Eventually([&] { return Numbers("busy").busy != 0; }));
  ASSERT_TRUE(gate.Pass());
  StopScheduler();
  EXPECT_EQ(starter_.living(), 0u);
  for (Told* told : {&running, &waiting, &loading}) {
    ASSERT_FALSE(Pending(*told));
    EXPECT_THAT(TextOf(std::move(*told)), HasSubstr("UNAVAILABLE: the daemon is ending"));
  }
}

TEST_F(SchedulerTest, WhatItStillDoesAsItEndsMayAskIt) {
  scheduler().Put(Function("f"));
  EXPECT_EQ(TextOf(Invoke("f", "1")), "ok 1");
  scheduler().Stop();
  scheduler().Stop();
  EXPECT_EQ(Numbers("f").idle + Numbers("f").busy, 0u);
}

TEST_F(SchedulerTest, ItEndsWhileInstancesAreBeingStarted) {
  starter_.HoldStarts(true);
  scheduler().Put(Function("f"));
  std::vector<Told> told;
  for (int i = 0; i < 20; ++i) told.push_back(Invoke("f"));
  std::thread opener([this] { starter_.HoldStarts(false); });
  StopScheduler();
  opener.join();
  EXPECT_EQ(starter_.living(), 0u);
  for (Told& one : told) {
    ASSERT_FALSE(Pending(one));
    EXPECT_THAT(TextOf(std::move(one)), ::testing::AnyOf(HasSubstr("UNAVAILABLE"), "ok {}"));
  }
}

}  // namespace
}  // namespace rekindle::functions
