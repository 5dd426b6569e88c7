#include "gpu_state/ledger.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/process_stat.h"

namespace rekindle::gpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LedgerTest : public testing::Test {
 protected:
  LedgerTest()
      : folder_(*TemporaryDirectory::Make("/tmp", "ledger-test-")), ledger_(folder_.path() + "/gpu") {}

  LedgerEntry Entry(pid_t pid) {
    LedgerEntry entry;
    entry.pid = pid;
    entry.start_ticks = ReadProcessStat(pid)->start_ticks;
    entry.goal = LedgerEntry::Goal::kParked;
    entry.job = pid;
    entry.uses = {{pid, "GPU-a", 60}, {pid, "GPU-b", std::nullopt}};
    entry.areas = {{0x7f0000000000, 4096}, {0x7f0000200000, 8192}};
    entry.why = "parked by a test";
    entry.keeps_room = true;
    entry.driver = "580.95.05";
    return entry;
  }

  TemporaryDirectory folder_;
  Ledger ledger_;
};

TEST_F(LedgerTest, EntriesAreReadBack) {
  EXPECT_TRUE(ledger_.List()->empty());
  ASSERT_TRUE(ledger_.Put({Entry(::getpid())}).ok());
  auto entries = ledger_.List();
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 1u);
  const LedgerEntry& entry = (*entries)[0];
  EXPECT_EQ(entry.pid, ::getpid());
  EXPECT_EQ(entry.goal, LedgerEntry::Goal::kParked);
  EXPECT_EQ(entry.why, "parked by a test");
  EXPECT_TRUE(entry.keeps_room);
  EXPECT_EQ(entry.driver, "580.95.05");
  EXPECT_FALSE(entry.unplaced);
  ASSERT_EQ(entry.uses.size(), 2u);
  EXPECT_EQ(entry.areas, Entry(::getpid()).areas);
  EXPECT_EQ(entry.uses[0].bytes, 60u);
  EXPECT_FALSE(entry.uses[1].bytes);
  ledger_.Remove({::getpid()});
  EXPECT_TRUE(ledger_.List()->empty());
}

// Until it is killed and waited for.
pid_t StartChild() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  return child;
}

void EndChild(pid_t child) {
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(LedgerTest, TellsOfSomeAlone) {
  // Not the parent, which may end, be the first process, or be in another PID namespace.
  const pid_t asked_for = StartChild(), without_entry = StartChild();
  EXPECT_TRUE(ledger_.Put({Entry(::getpid()), Entry(asked_for)}).ok());
  auto entries = ledger_.Of({asked_for, without_entry});
  EndChild(asked_for);
  EndChild(without_entry);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_EQ((*entries)[0].pid, asked_for);
}

TEST_F(LedgerTest, ForgetsTheDead) {
  const pid_t child = StartChild();
  LedgerEntry of_child = Entry(child);
  LedgerEntry of_another = Entry(::getpid());
  of_another.start_ticks += 2;  // our PID, but another process's
  ASSERT_TRUE(ledger_.Put({of_child, of_another}).ok());
  auto entries = ledger_.List();
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_EQ((*entries)[0].pid, child);
  EndChild(child);
  EXPECT_TRUE(ledger_.List()->empty());
  EXPECT_TRUE(ListDirectory(ledger_.directory())->empty());
}

// In a PID namespace of its own, with what is asked there; gives its answer.
bool InAnotherPidNamespace(const std::function<bool()>& ask) {
  const pid_t outside = ::fork();
  if (outside == 0) {
    if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) ::_exit(2);
    const pid_t first = ::fork();
    if (first == 0) {
      const bool mounted = ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                           ::mount("proc", "/proc", "proc", 0, nullptr) == 0;
      ::_exit(mounted ? (ask() ? 0 : 1) : 2);
    }
    int status = 0;
    ::waitpid(first, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
  }
  int status = 0;
  ::waitpid(outside, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) <= 1) << "no PID namespace: " << status;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(LedgerTest, LeavesEntriesOfOtherPidNamespacesAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes PID namespaces";
  LedgerEntry ours = Entry(::getpid());
  ASSERT_TRUE(ledger_.Put({ours}).ok());
  EXPECT_TRUE(InAnotherPidNamespace([&] {
    Ledger there(ledger_.directory());
    auto entries = there.List();
    auto named = there.Of({ours.pid, 1});
    return entries.ok() && entries->empty() && named.ok() && named->empty();
  }));
  EXPECT_EQ(ledger_.List()->size(), 1u) << "it can't know whether our process lives";

  // One with the same number has an entry, and a turn, of its own.
  const auto turn = ledger_.TakeTurn(1);
  EXPECT_TRUE(InAnotherPidNamespace([&] {
    Ledger there(ledger_.directory());
    LedgerEntry entry = Entry(::getpid());
    entry.why = "parked in there";
    if (!there.TakeTurn(1).ok() || !there.Put({entry}).ok()) return false;
    const auto entries = there.List();
    const bool alone = entries.ok() && entries->size() == 1 && entries->front().why == entry.why;
    there.Remove({ours.pid});
    return alone && there.Of({entry.pid})->size() == 1;
  }));
  ASSERT_EQ(ledger_.List()->size(), 1u);
  EXPECT_EQ(ledger_.List()->front().why, ours.why);
}

TEST_F(LedgerTest, AnEntryAtTheSharedPlaceIsKnownToItsPidNamespaceAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes PID namespaces";
  EXPECT_TRUE(InAnotherPidNamespace([&] {
    Ledger there(ledger_.directory());
    LedgerEntry entry = Entry(::getpid());
    if (!there.Put({entry}).ok()) return false;
    // Where an older Rekindle has put it.
    const std::string at_shared = absl::StrCat(ledger_.directory(), "/process-", ::getpid());
    if (::rename(there.PathOf(::getpid()).c_str(), at_shared.c_str()) != 0) return false;
    if (there.List()->size() != 1 || there.Of({::getpid()})->size() != 1) return false;
    if (!there.Put({entry}).ok() || there.List()->size() != 1 || PathExists(at_shared)) return false;
    // The machine's.
    entry.start_ticks += 2;
    if (!there.Put({entry}).ok() || ::rename(there.PathOf(::getpid()).c_str(), at_shared.c_str()) != 0)
      return false;
    const bool unknown = there.List()->empty() && there.Of({::getpid()})->empty();
    there.Remove({::getpid()});
    return unknown && PathExists(at_shared);
  }));
}

TEST_F(LedgerTest, KnowsWhetherTheMoverLives) {
  auto mover = ledger_.Enlist();
  ASSERT_TRUE(mover.ok()) << mover.status();
  EXPECT_EQ(ledger_.Enlist()->name, mover->name);
  LedgerEntry entry = Entry(::getpid());
  EXPECT_FALSE(ledger_.IsBeingMoved(entry)) << "nobody is named";
  entry.mover = mover->name;
  EXPECT_TRUE(ledger_.IsBeingMoved(entry));

  // A helper that has the descriptor too lives on.
  int helper = ::dup(mover->descriptor);
  entry.mover = mover->name;
  {
    Ledger other(ledger_.directory());
    EXPECT_TRUE(other.IsBeingMoved(entry));
    other.RemoveFreeLocks();
    EXPECT_TRUE(PathExists(ledger_.directory() + "/" + entry.mover));
  }
  ::close(helper);
}

TEST_F(LedgerTest, LocksOfTheDeadAreFree) {
  LedgerEntry entry = Entry(::getpid());
  {
    Ledger dead(ledger_.directory());
    entry.mover = dead.Enlist()->name;
    EXPECT_TRUE(ledger_.IsBeingMoved(entry));
  }
  EXPECT_FALSE(ledger_.IsBeingMoved(entry));
  ledger_.RemoveFreeLocks();
  EXPECT_FALSE(PathExists(ledger_.directory() + "/" + entry.mover));
  EXPECT_FALSE(ledger_.IsBeingMoved(entry));
}

TEST_F(LedgerTest, AMoverWhoseFileIsRemovedMakesItAnew) {
  LedgerEntry entry = Entry(::getpid());
  entry.mover = ledger_.Enlist()->name;
  const std::string path = ledger_.directory() + "/" + entry.mover;
  ASSERT_EQ(::unlink(path.c_str()), 0);
  EXPECT_EQ(ledger_.Enlist()->name, entry.mover);
  EXPECT_TRUE(Ledger(ledger_.directory()).IsBeingMoved(entry));

  // Its helper, which has the descriptor of the one before, sees to it in its place.
  const int helper = ::dup(ledger_.Enlist()->descriptor);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  Ledger of_helper(ledger_.directory());
  ASSERT_TRUE(of_helper.Inherit(helper).ok());
  EXPECT_TRUE(Ledger(ledger_.directory()).IsBeingMoved(entry));
  ::close(helper);
}

TEST_F(LedgerTest, TheMoverIsKnownWhereTheFolderIsNotUtf8OrHasAnotherPath) {
  const std::string folder = folder_.path() + "/\xff";
  Ledger odd(folder);
  LedgerEntry entry = Entry(::getpid());
  entry.mover = odd.Enlist()->name;
  ASSERT_TRUE(odd.Put({entry}).ok());
  EXPECT_TRUE(Ledger(folder).IsBeingMoved(Ledger(folder).List()->at(0)));
  // An older Rekindle looks at the whole path.
  Ledger plain(folder_.path() + "/plain");
  entry.mover = plain.Enlist()->name;
  ASSERT_TRUE(plain.Put({entry}).ok());
  EXPECT_THAT(*ReadFile(plain.PathOf(::getpid())),
              HasSubstr(absl::StrCat("\"mover\":\"", plain.directory(), "/", entry.mover, "\"")));
}

TEST_F(LedgerTest, NamesADamagedEntry) {
  ASSERT_TRUE(ledger_.Put({Entry(::getpid())}).ok());
  const std::string path = ledger_.PathOf(1);
  ASSERT_TRUE(WriteFileAtomically(path, "{\"pid\":").ok());
  auto entries = ledger_.List();
  EXPECT_TRUE(absl::IsDataLoss(entries.status()));
  EXPECT_NE(entries.status().message().find(path), absl::string_view::npos) << entries.status();
}

TEST_F(LedgerTest, WhatANewerVersionHasWrittenIsLeftAsItIs) {
  ASSERT_TRUE(ledger_.Put({Entry(::getpid())}).ok());
  const std::string path = ledger_.PathOf(::getpid());
  const std::string ours = *ReadFile(path);
  ASSERT_THAT(ours, HasSubstr("\"format\":1,"));
  const auto put = [&](const char* from, const char* to) {
    const std::string text = absl::StrReplaceAll(ours, {{from, to}});
    EXPECT_NE(text, ours);
    EXPECT_TRUE(WriteFileAtomically(path, text).ok());
    return text;
  };
  for (const auto& [from, to] :
       {std::pair("\"format\":1,", "\"format\":2,"), std::pair("\"format\":1,", "\"format\":\"later\","),
        std::pair("\"format\":1,", "\"format\":1,\"of_later\":true,"),
        std::pair("\"uuid\":\"GPU-b\"", "\"uuid\":\"GPU-b\",\"of_later\":1")}) {
    const std::string text = put(from, to);
    for (const absl::Status& refused : {ledger_.List().status(), ledger_.Of({::getpid()}).status()}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()),
                  AllOf(HasSubstr(path), HasSubstr("newer version"), Not(HasSubstr("remove it"))));
    }
    EXPECT_EQ(*ReadFile(path), text);
  }
  put("\"format\":1,", "");  // an older one's
  EXPECT_EQ(ledger_.List()->size(), 1u);
  // Of another process, which has ended.
  put("\"start_ticks\":", "\"of_later\":true,\"start_ticks\":1");
  EXPECT_TRUE(ledger_.List()->empty());
  EXPECT_FALSE(PathExists(path));
}

TEST_F(LedgerTest, ANoteSaysWhatTheEntriesOfTheLivingSay) {
  LedgerEntry ours = Entry(::getpid()), another = ours, gone = ours;
  another.pid = ::getppid();
  another.start_ticks = ReadProcessStat(::getppid())->start_ticks;
  gone.start_ticks += 2;  // that PID belongs to us by now
  const std::string note = Ledger::Note({ours, gone, another});
  const std::vector<LedgerEntry> read =
      Ledger::FromNote(absl::StrCat("no entry\n{\"pid\": 1}\n[]\n", note, note.substr(0, 20)));
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].pid, ours.pid);
  EXPECT_EQ(read[0].job, ours.job);
  EXPECT_EQ(read[0].why, ours.why);
  EXPECT_EQ(read[0].areas, ours.areas);
  ASSERT_EQ(read[0].uses.size(), 2u);
  EXPECT_EQ(read[0].uses[0].bytes, 60u);
  EXPECT_EQ(read[1].pid, another.pid);
  EXPECT_TRUE(Ledger::FromNote("").empty());
}

TEST_F(LedgerTest, OneHasATurnAtATime) {
  Ledger other(ledger_.directory());
  {
    auto ours = ledger_.TakeTurn("a");
    ASSERT_TRUE(ours.ok()) << ours.status();
    EXPECT_TRUE(absl::IsUnavailable(other.TakeTurn("a").status()));
    EXPECT_TRUE(other.TakeTurn("b").ok());
    const Ledger::Turn moved = *std::move(ours);
    EXPECT_TRUE(absl::IsUnavailable(other.TakeTurn("a").status()));
  }
  EXPECT_TRUE(other.TakeTurn("a").ok());
  // Nothing of it is left.
  EXPECT_TRUE(ListDirectory(ledger_.directory())->empty());
}

}  // namespace
}  // namespace rekindle::gpu
