// Callers, of whom some leave, events, deployments and removals at random, of functions that answer, fail,
// end, hang or can't be loaded: every call is told something, once, that suits what it asked for, and at the
// end nothing is left.
#include <gmock/gmock.h>

#include <atomic>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "functions/scheduler_for_tests.h"

namespace rekindle::functions {
namespace {

constexpr int kFunctions = 4, kCallers = 6, kCallsEach = 200;

std::string NameOf(int function) { return absl::StrCat("f", function); }

// Does what its payload says.
InstanceEnd Obey(TestRuntime& runtime, std::atomic<uint64_t>& started) {
  const uint64_t number = ++started;
  if (number % 17 == 0) return Exits(9);
  if (number % 23 == 0) {
    runtime.FailInit(R"({"errorType":"Load"})");
    return Exits(1);
  }
  while (runtime.Next()) {
    const std::string what = runtime.payload();
    if (what == "exit") return Exits(3);
    if (what == "fail") {
      runtime.Fail(R"({"errorType":"KeyError"})");
    } else if (what == "hang") {
      runtime.WaitForKill();
    } else {
      runtime.Answer(what);
    }
  }
  return Exits(1);
}

bool Suits(const std::string& asked, const std::string& told) {
  // An instance may not start, whatever it was to do; a call may wait for a function that is removed.
  if (absl::StrContains(told, "exit status 9") || absl::StrContains(told, "\"Load\"") ||
      absl::StrContains(told, "NOT_FOUND") || absl::StrContains(told, "RESOURCE_EXHAUSTED")) {
    return true;
  }
  // The machine may be slow: anything can run out of time.
  if (absl::StrContains(told, "Task timed out")) return true;
  if (asked == "exit") return absl::StrContains(told, "exit status 3");
  if (asked == "fail") return told == R"(function error {"errorType":"KeyError"})";
  return asked != "hang" && told == "ok " + asked;
}

TEST_F(SchedulerTest, EveryCallIsToldWhatSuitsIt) {
  std::atomic<uint64_t> started{0};
  options_.most_instances = 10;
  options_.longest_queue = 5;
  options_.keep_alive.idle_limit_seconds = 0.02;
  options_.keep_alive.memory_bytes = uint64_t{200} << 20;
  auto function = [](int number, uint64_t revision) {
    ScheduledFunction made = Function(NameOf(number));
    made.revision = revision;
    made.owner = static_cast<uint32_t>(number);
    made.timeout = absl::Milliseconds(300);
    made.most_instances = number == 1 ? 1 : 0;
    made.provisioned = number == 2 ? 2 : 0;
    made.most_instances = number == 2 ? 3 : made.most_instances;
    made.dependency_image = number == 3 ? "deps" : "";
    made.may_have_image = number == 3;
    return made;
  };
  for (int i = 0; i < kFunctions; ++i) {
    starter_.Become(NameOf(i), [&started](TestRuntime& runtime) { return Obey(runtime, started); });
    scheduler().Put(function(i, 1));
  }
  std::atomic<bool> through{false};
  std::thread deployer([&] {
    std::mt19937 random(1);
    for (uint64_t revision = 2; !through; ++revision) {
      const int which = static_cast<int>(random() % kFunctions);
      if (random() % 4 == 0) scheduler().Remove(NameOf(which));
      scheduler().Put(function(which, revision));
      scheduler().Numbers(NameOf(which)).IgnoreError();
      std::this_thread::yield();
      // The callers shall get somewhere.
      Told told = Invoke(NameOf(which), "deployer");
      ResultOf(told).IgnoreError();
    }
  });
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([this, caller] {
      std::mt19937 random(static_cast<unsigned>(caller) + 100);
      for (int i = 0; i < kCallsEach; ++i) {
        const unsigned dice = random() % 40;
        const std::string asked = dice == 0   ? "hang"
                                  : dice < 4  ? "exit"
                                  : dice < 10 ? "fail"
                                              : absl::StrCat(caller * kCallsEach + i);
        const std::string name = NameOf(static_cast<int>(random() % kFunctions));
        const unsigned kind = random() % 6;
        if (kind < 2) {
          const std::string told = TextOf(InvokeEvent(name, asked));
          EXPECT_TRUE(Suits(asked, told)) << asked << " was told " << told;
          EXPECT_FALSE(absl::StrContains(told, "RESOURCE_EXHAUSTED")) << told;
          continue;
        }
        Call call = CallOf(name, asked);
        // Somewhere on its way.
        if (kind == 2) call.gone = [looks = std::make_shared<std::atomic<int>>(0)] { return ++*looks > 1; };
        const std::string told = TextOf(Invoke(std::move(call)));
        EXPECT_TRUE(Suits(asked, told) || (kind == 2 && absl::StrContains(told, "CANCELLED")))
            << asked << " was told " << told;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  through = true;
  deployer.join();
  // All come to rest: only what is provisioned stays.
  for (int i = 0; i < kFunctions; ++i) scheduler().Remove(NameOf(i));
  EXPECT_TRUE(starter_.WaitForLiving(0));
}

}  // namespace
}  // namespace rekindle::functions
