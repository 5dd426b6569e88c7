// Functions of several owners beside each other: what one of them makes a scheduler wait for, the others do
// not.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "functions/scheduler_for_tests.h"

namespace rekindle::functions {
namespace {

using What = TestStarter::Making::What;

ScheduledFunction Captured(ScheduledFunction function, uint32_t owner) {
  function.owner = owner;
  function.dependency_image = "deps/numpy";
  function.may_have_image = true;
  return function;
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
  options_.start_threads = 2;
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

}  // namespace
}  // namespace rekindle::functions
