#include "daemon/rpc_support.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/file.h"
#include "base/test_child.h"
#include "base/unique_fd.h"
#include "daemon/image_lookup.h"
#include "daemon/job_start.h"
#include "daemon/test_node.h"

namespace rekindle::daemon {
namespace {

constexpr uid_t kUser = 65534;

Caller LocalCaller(pid_t pid) {
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = kUser;
  caller.gid = kUser;
  caller.pid = pid;
  caller.pidfd = std::make_shared<const UniqueFd>(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return caller;
}

v1::RestoreRequest ForItsInput() {
  v1::RestoreRequest request;
  for (int i = 0; i < 3; ++i) request.add_stdio_fds(0);
  return request;
}

bool Become(uid_t effective) {
  return ::syscall(SYS_setgroups, 0, nullptr) == 0 && ::setresgid(kUser, kUser, kUser) == 0 &&
         ::setresuid(kUser, effective, effective) == 0;
}

TEST(TakeStdioTest, FromAProcessThatIsTheCallers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be others";
  const TestChild child([] { return Become(kUser) && ::prctl(PR_SET_DUMPABLE, 1) == 0; });
  ASSERT_TRUE(child.prepared());
  const auto taken = TakeStdio(LocalCaller(child.pid()), ForItsInput());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->size(), 3u);
}

TEST(TakeStdioTest, WhatIsNotOpenIsTheCallersMistake) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be others";
  const TestChild child([] { return Become(kUser) && ::prctl(PR_SET_DUMPABLE, 1) == 0; });
  ASSERT_TRUE(child.prepared());
  for (const int number : {-1, 12345}) {
    const absl::Status refused = TakeDescriptors(LocalCaller(child.pid()), {number}, "say so").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_NE(refused.message().find("say so"), absl::string_view::npos) << refused;
  }
}

TEST(TakeStdioTest, NotFromASetUidProgramThatHasTakenItsPlace) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be others";
  for (const uid_t effective : {uid_t{0}, kUser}) {
    const TestChild child([effective] { return Become(effective); });
    ASSERT_TRUE(child.prepared());
    const absl::Status refused = TakeStdio(LocalCaller(child.pid()), ForItsInput()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  }
}

// A process with that file as its standard input, which has become `effective`.
bool OpenAndBecome(const std::string& path, uid_t effective) {
  const int file = ::open(path.c_str(), O_RDONLY);
  return file >= 0 && ::dup2(file, 0) == 0 && Become(effective);
}

TEST(InputPathTest, OfAProcessThatIsTheCallersAndOfNoOther) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be others";
  auto directory = TemporaryDirectory::Make("/tmp", "rpc-support-test.");
  ASSERT_TRUE(directory.ok()) << directory.status();
  const std::string path = directory->path() + "/input";
  ASSERT_TRUE(WriteFileAtomically(path, "input").ok());
  const TestChild own([&] { return OpenAndBecome(path, kUser) && ::prctl(PR_SET_DUMPABLE, 1) == 0; });
  const TestChild set_uid([&] { return OpenAndBecome(path, 0); });
  ASSERT_TRUE(own.prepared());
  ASSERT_TRUE(set_uid.prepared());
  const absl::StatusOr<std::string> found = InputPath(LocalCaller(own.pid()), 0);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, path);
  const absl::Status refused = InputPath(LocalCaller(set_uid.pid()), 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_EQ(refused.message().find(path), absl::string_view::npos) << refused;
}

TEST(InputPathTest, NotOfWhoHasTheNumberOfOneThatHasGone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be others";
  auto directory = TemporaryDirectory::Make("/tmp", "rpc-support-test.");
  ASSERT_TRUE(directory.ok()) << directory.status();
  const std::string path = directory->path() + "/input";
  ASSERT_TRUE(WriteFileAtomically(path, "input").ok());
  const TestChild gone;
  const TestChild other([&] { return OpenAndBecome(path, kUser) && ::prctl(PR_SET_DUMPABLE, 1) == 0; });
  ASSERT_TRUE(other.prepared());
  Caller caller = LocalCaller(gone.pid());
  gone.Kill();
  ASSERT_TRUE(gone.AwaitEnd());
  caller.pid = other.pid();
  EXPECT_FALSE(InputPath(caller, 0).ok());
}

TEST(FindImageTest, ADigestSaysNothingOfOthersImages) {
  TestNode test_node;
  Node& node = *test_node;
  auto store = node.OpenStore(Node::Access::kCreate);
  ASSERT_TRUE(store.ok()) << store.status();
  store::NewImageOptions image;
  image.reference = "secret:1";
  image.owner = kUser;
  auto writer = (*store)->NewImage(image);
  ASSERT_TRUE(writer.ok() && (*writer)->AddBlob("b", "content").ok());
  const auto info = (*writer)->Commit();
  ASSERT_TRUE(info.ok()) << info.status();
  Caller other, owner;
  other.kind = owner.kind = Caller::Kind::kLocal;
  other.uid = other.gid = kUser - 1;
  owner.uid = owner.gid = kUser;
  for (const std::string& name : {info->digest, info->digest.substr(0, sizeof("sha256:") + 12)}) {
    const absl::Status refused = FindImageFor(node, **store, other, name, "inspect").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound) << refused;
    EXPECT_EQ(refused.message().find("secret"), absl::string_view::npos) << refused;
    const auto found = FindImageFor(node, **store, owner, name, "inspect");
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->reference, "secret:1");
  }
}

TEST(NodeTest, AStoreThatIsAwayIsNotMadeAnew) {
  TestNode test_node;
  Node& node = *test_node;
  EXPECT_TRUE(absl::IsNotFound(node.CheckStoreIsThere()));
  ASSERT_TRUE(node.OpenStore(Node::Access::kCreate).ok());
  EXPECT_TRUE(node.CheckStoreIsThere().ok());
  const std::string elsewhere = node.options().store + ".away";
  ASSERT_EQ(::rename(node.options().store.c_str(), elsewhere.c_str()), 0);
  for (const bool folder : {false, true}) {
    ASSERT_TRUE(!folder || ::mkdir(node.options().store.c_str(), 0700) == 0);
    EXPECT_TRUE(absl::IsUnavailable(node.OpenStore(Node::Access::kCreate).status()));
    EXPECT_TRUE(absl::IsUnavailable(node.CheckStoreIsThere()));
  }
  EXPECT_TRUE(ListDirectory(node.options().store)->empty());
  ASSERT_EQ(::rename(elsewhere.c_str(), node.options().store.c_str()), 0);
  EXPECT_TRUE(node.CheckStoreIsThere().ok());
  // Another one in its place is taken.
  ASSERT_EQ(::rename(node.options().store.c_str(), elsewhere.c_str()), 0);
  store::StoreOptions other;
  other.path = node.options().store;
  ASSERT_TRUE(store::Store::Open(other).ok());
  EXPECT_TRUE(node.OpenStore(Node::Access::kWrite).ok());
}

// As the message of `rekindle fsck` advises where nothing is left of it.
TEST(NodeTest, AStoreThatWasRemovedIsMadeAnew) {
  TestNode test_node;
  Node& node = *test_node;
  for (const bool with_its_folder : {true, false, true}) {
    auto store = node.OpenStore(Node::Access::kCreate);
    ASSERT_TRUE(store.ok()) << store.status();
    const std::string id = (*store)->id();
    ASSERT_TRUE(RemoveTree(node.options().store).ok());
    ASSERT_TRUE(with_its_folder || ::mkdir(node.options().store.c_str(), 0700) == 0);
    EXPECT_TRUE(absl::IsUnavailable(node.OpenStore(Node::Access::kRead).status()));
    store = node.OpenStore(Node::Access::kCreate);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_NE((*store)->id(), id);
  }
}

TEST(SendJobEndsTest, TellsEachWhenItEndsAndWhoseEndItIs) {
  TestNode test_node;
  const Node& node = *test_node;
  std::vector<std::shared_ptr<JobEnd>> ends;
  std::vector<RegisteredJob> jobs(3);
  for (RegisteredJob& job : jobs) {
    ends.push_back(std::make_shared<JobEnd>());
    job.end = ends.back();
    job.record.pid = static_cast<pid_t>(100 + ends.size());
    job.record.instance = "copy-" + std::to_string(ends.size());
  }
  ends[1]->Set(ExitState{4, 0});  // before anybody waits
  std::vector<v1::JobExit> told;
  absl::Notification first, second;
  const EventSink<v1::JobEvent> send = [&](const v1::JobEvent& event) {
    told.push_back(event.exited());
    if (told.size() == 1) first.Notify();
    if (told.size() == 2) second.Notify();
    return true;
  };
  std::thread waits([&] { EXPECT_TRUE(SendJobEnds(node, Call(), jobs, send).ok()); });
  constexpr absl::Duration kLongest = absl::Seconds(60);
  EXPECT_TRUE(first.WaitForNotificationWithTimeout(kLongest)) << "it waits for another's end";
  ends[2]->Set(ExitState{0, 9});
  EXPECT_TRUE(second.WaitForNotificationWithTimeout(kLongest)) << "it waits for another's end";
  ends[0]->Set(ExitState{0, 0});
  waits.join();
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[0].pid(), 102);
  EXPECT_EQ(told[0].instance(), "copy-2");
  EXPECT_EQ(told[0].exit_code(), 4);
  EXPECT_EQ(told[1].pid(), 103);
  EXPECT_EQ(told[1].signal(), 9);
  EXPECT_EQ(told[2].pid(), 101);
}

}  // namespace
}  // namespace rekindle::daemon
