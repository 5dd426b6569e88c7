#include "daemon/group_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "daemon/groups.h"

namespace rekindle::daemon {
namespace {

class GroupRecordsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto folder = TemporaryDirectory::Make(testing::TempDir(), "rekindle_group_test.");
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_ = std::make_unique<TemporaryDirectory>(*std::move(folder));
    directory_ = folder_->path() + "/groups";
    ASSERT_TRUE(MakeDirectories(directory_).ok());
  }

  static v1::Group Made(const std::string& reference, int64_t created) {
    v1::Group group;
    group.set_id(NewGroupId());
    group.set_reference(reference);
    group.set_created_unix_ns(created);
    for (const char* host : {"", "node-b:7443"}) {
      v1::GroupPart* part = group.add_parts();
      part->mutable_member()->set_host(host);
      part->mutable_member()->set_job("train");
      part->set_digest("sha256:00");
    }
    return group;
  }

  std::unique_ptr<TemporaryDirectory> folder_;
  std::string directory_;
};

TEST_F(GroupRecordsTest, ADecisionIsThereForWhoeverStartsNext) {
  const v1::Group group = Made("x:1", 7);
  {
    GroupRecords records(directory_);
    EXPECT_TRUE(records.List()->empty());
    EXPECT_TRUE(absl::IsNotFound(records.Find(group.id()).status()));
    ASSERT_TRUE(records.Decide(group).ok());
    ASSERT_TRUE(records.Update(group.id(), [](v1::Group& g) { g.mutable_parts(1)->set_settled(true); }).ok());
  }
  GroupRecords records(directory_);
  auto found = records.Find(group.id());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->reference(), "x:1");
  EXPECT_FALSE(IsComplete(*found));
  EXPECT_EQ(found->parts(1).member().host(), "node-b:7443");
  ASSERT_TRUE(records.Update(group.id(), [](v1::Group& g) { g.mutable_parts(0)->set_settled(true); }).ok());
  EXPECT_TRUE(IsComplete(*records.Find(group.id())));
  ASSERT_TRUE(records.Forget(group.id()).ok());
  EXPECT_TRUE(absl::IsNotFound(records.Find(group.id()).status()));
}

TEST_F(GroupRecordsTest, OfOneNameTheNewestIsMeant) {
  GroupRecords records(directory_);
  const v1::Group old = Made("x:1", 7), next = Made("x:1", 8), other = Made("y:1", 9);
  ASSERT_TRUE(records.Decide(old).ok() && records.Decide(next, old.id()).ok() && records.Decide(other).ok());
  EXPECT_EQ(records.FindByReference("x:1")->id(), next.id());
  EXPECT_EQ(records.List()->front().id(), other.id());
  ASSERT_TRUE(records.Update(next.id(), [](v1::Group& g) { g.set_removed(true); }).ok());
  EXPECT_EQ(records.FindByReference("x:1")->id(), old.id());
  auto none = records.FindByReference("z:1").status();
  EXPECT_TRUE(absl::IsNotFound(none));
  EXPECT_TRUE(absl::StrContains(none.message(), "y:1")) << none;
}

TEST_F(GroupRecordsTest, WhatCanNotBeKeptIsNotDecided) {
  const std::string file = directory_ + ".file";
  ASSERT_TRUE(WriteFileAtomically(file, "no folder").ok());
  GroupRecords records(file);
  absl::Status decided = records.Decide(Made("x:1", 7));
  EXPECT_FALSE(decided.ok());
  EXPECT_FALSE(absl::IsDataLoss(decided)) << decided;
}

TEST_F(GroupRecordsTest, ADamagedRecordIsNoAbsentOne) {
  GroupRecords records(directory_);
  const v1::Group group = Made("x:1", 7);
  ASSERT_TRUE(records.Decide(group).ok());
  const std::string path = absl::StrCat(directory_, "/", group.id(), ".json");
  ASSERT_TRUE(WriteFileAtomically(path, "{\"id\": \"").ok());
  auto found = records.Find(group.id()).status();
  EXPECT_TRUE(absl::IsDataLoss(found)) << found;
  EXPECT_TRUE(absl::StrContains(found.message(), path)) << found;
}

TEST_F(GroupRecordsTest, ARecordOfANewerVersionIsNotWrittenByThisOne) {
  GroupRecords records(directory_);
  const v1::Group group = Made("x:1", 7);
  ASSERT_TRUE(records.Decide(group).ok());
  const std::string path = absl::StrCat(directory_, "/", group.id(), ".json");
  const std::string newer = absl::StrCat(R"({"keep_until": 7, )", ReadFile(path)->substr(1));
  ASSERT_TRUE(WriteFileAtomically(path, newer).ok());
  const absl::Status updated =
      records.Update(group.id(), [](v1::Group& g) { g.mutable_parts(0)->set_settled(true); });
  EXPECT_TRUE(absl::IsFailedPrecondition(updated)) << updated;
  EXPECT_EQ(*ReadFile(path), newer);
}

TEST_F(GroupRecordsTest, ADamagedRecordIsInNobodysWay) {
  GroupRecords records(directory_);
  const v1::Group bad = Made("x:1", 8), good = Made("y:1", 7);
  ASSERT_TRUE(records.Decide(bad).ok() && records.Decide(good).ok());
  const std::string path = absl::StrCat(directory_, "/", bad.id(), ".json");
  ASSERT_TRUE(WriteFileAtomically(path, "{\"id\": \"").ok());
  std::map<std::string, absl::Status> unreadable;
  auto listed = records.List(&unreadable);
  ASSERT_TRUE(listed.ok()) << listed.status();
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_EQ(listed->front().id(), good.id());
  ASSERT_EQ(unreadable.size(), 1u);
  EXPECT_TRUE(absl::IsDataLoss(unreadable[bad.id()])) << unreadable[bad.id()];
  EXPECT_EQ(records.FindByReference("y:1")->id(), good.id());
  auto none = records.FindByReference("x:1").status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_TRUE(absl::StrContains(none.message(), path)) << none;
}

TEST_F(GroupRecordsTest, WhatAnotherProcessHasInWorkIsKnown) {
  GroupRecords records(directory_), others(directory_);  // as another daemon's: flock tells the two apart
  const std::string id = NewGroupId(), dead = NewGroupId();
  EXPECT_FALSE(*others.IsInWork(id));
  auto work = records.BeginWork(id, "x:1"), died = records.BeginWork(dead, "y:1");
  ASSERT_TRUE(work.ok() && died.ok()) << work.status() << died.status();
  died->Reset();
  others.ForgetDeadWork();
  EXPECT_TRUE(*others.IsInWork(id));
  EXPECT_FALSE(*others.IsInWork(dead));
  EXPECT_FALSE(PathExists(absl::StrCat(directory_, "/", dead, ".lock")));
  records.EndWork(id, *std::move(work));
  EXPECT_FALSE(*others.IsInWork(id));
  EXPECT_TRUE(others.List()->empty());
}

TEST_F(GroupRecordsTest, ANameIsCapturedByOneAtATime) {
  GroupRecords records(directory_), others(directory_);
  const std::string id = NewGroupId(), next = NewGroupId(), other = NewGroupId();
  auto work = records.BeginWork(id, "x:1");
  ASSERT_TRUE(work.ok()) << work.status();
  for (GroupRecords* by : {&records, &others}) {
    auto second = by->BeginWork(next, "x:1").status();
    EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
    EXPECT_TRUE(absl::StrContains(second.message(), id)) << second;
  }
  EXPECT_FALSE(*records.IsInWork(next));
  EXPECT_TRUE(others.BeginWork(other, "x:2").ok());
  records.EndWork(id, *std::move(work));
  work = others.BeginWork(next, "x:1");
  ASSERT_TRUE(work.ok()) << work.status();
  // Nor does one that died keep it.
  work->Reset();
  EXPECT_TRUE(records.BeginWork(id, "x:1").ok());
}

TEST_F(GroupRecordsTest, OnlyWhatItReplacesMayHaveItsName) {
  GroupRecords records(directory_);
  const v1::Group first = Made("x:1", 7), second = Made("x:1", 8), third = Made("x:1", 9);
  ASSERT_TRUE(records.Decide(first).ok());
  for (const char* replaces : {"", "another"}) {
    absl::Status refused = records.Decide(second, replaces);
    EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
    EXPECT_TRUE(absl::IsNotFound(records.Find(second.id()).status()));
  }
  EXPECT_TRUE(records.Decide(second, first.id()).ok());
  // The first one's record goes once its members know.
  EXPECT_TRUE(records.Decide(third, second.id()).ok());
  for (const v1::Group& group : {first, second, third})
    ASSERT_TRUE(records.Update(group.id(), [](v1::Group& g) { g.set_removed(true); }).ok());
  EXPECT_TRUE(records.Decide(Made("x:1", 10)).ok());
}

TEST_F(GroupRecordsTest, WhoeverChangesThemTakesTurns) {
  GroupRecords records(directory_), others(directory_);
  v1::Group group = Made("x:1", 7);
  constexpr int kParts = 20;
  while (group.parts_size() < 2 * kParts) *group.add_parts() = group.parts(0);
  ASSERT_TRUE(records.Decide(group).ok());
  auto settle = [&](GroupRecords& by, int first) {
    for (int i = first; i < first + kParts; ++i) {
      absl::Status noted =
          by.Update(group.id(), [i](v1::Group& g) { g.mutable_parts(i)->set_settled(true); });
      EXPECT_TRUE(noted.ok()) << noted;
    }
  };
  std::thread other([&] { settle(others, kParts); });
  settle(records, 0);
  other.join();
  EXPECT_TRUE(IsComplete(*records.Find(group.id()))) << "one has undone what the other wrote";
}

TEST_F(GroupRecordsTest, IdsAreIds) {
  GroupRecords records(directory_);
  EXPECT_TRUE(CheckGroupId(NewGroupId()).ok());
  EXPECT_NE(NewGroupId(), NewGroupId());
  for (const char* bad : {"", "../../etc/passwd", "0123456789ABCDEF0123456789ABCDEF", "0123"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(records.Find(bad).status())) << bad;
  }
}

TEST(GroupCalls, OneHostThatIsAwayHoldsUpNoOther) {
  absl::Mutex mutex;
  std::vector<std::string> made;
  absl::Notification good_was_called;
  auto call = [&](const char* host, const char* name, absl::Status status) {
    return PeerCall{host, [&, name, status] {
                      if (status.ok()) {
                        good_was_called.Notify();
                      } else {
                        EXPECT_TRUE(good_was_called.WaitForNotificationWithTimeout(absl::Minutes(1)));
                      }
                      absl::MutexLock lock(&mutex);
                      made.push_back(name);
                      return status;
                    }};
  };
  const absl::Status away = absl::AbortedError("away"), slow = absl::DeadlineExceededError("slow"),
                     other = absl::FailedPreconditionError("another store");
  const std::vector<PeerCall> calls = {
      call("a", "a1", away),  call("a", "a2", away),  call("b", "b1", slow),           call("b", "b2", slow),
      call("c", "c1", other), call("c", "c2", other), call("d", "d", absl::OkStatus())};
  CallPeers(calls, [] { return false; });
  EXPECT_THAT(made, testing::UnorderedElementsAre("a1", "b1", "c1", "c2", "d"));
  made.clear();
  CallPeers(calls, [] { return true; });
  EXPECT_TRUE(made.empty());
}

TEST(GroupNames, AreThoseOfTheMembers) {
  EXPECT_EQ(MemberReference("train/big:step1", 3), "train/big/3:step1");
  EXPECT_EQ(PreparedId("abc", 3), "abc.3");
}

}  // namespace
}  // namespace rekindle::daemon
