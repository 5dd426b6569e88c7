#include "restore/file_rollback.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "restore/compatibility.h"
#include "restore/discarded_tail.h"
#include "restore/file_rollback_testing.h"

namespace rekindle::restore {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// ---- appending

TEST_F(FileRollbackTest, WhatGrewIsCutOffAndALogsTailIsKept) {
  Record("log", "one\ntwo\n");
  ASSERT_EQ(::chmod(Path("log").c_str(), 0604), 0);
  const ino_t inode = Stat("log").st_ino;
  Append("log", "three\nfour\n");
  Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::TRUNCATED);
  EXPECT_EQ(report.size(), 8u);
  EXPECT_EQ(report.discarded_bytes(), 11u);
  EXPECT_EQ(Read("log"), "one\ntwo\n");
  EXPECT_EQ(Stat("log").st_ino, inode);
  ASSERT_TRUE(absl::StartsWith(report.tail_copy(), Path("log.rekindle-tail-"))) << report.tail_copy();
  std::string copy = report.tail_copy().substr(files_.size() + 1);
  EXPECT_THAT(copy, testing::MatchesRegex("log.rekindle-tail-[0-9]{8}T[0-9]{6}Z"));
  EXPECT_EQ(Read(copy), "three\nfour\n");
  EXPECT_EQ(Stat(copy).st_mode & 07777, 0604u);
}

TEST_F(FileRollbackTest, BinaryTailsAreNotKeptUnlessTheFileIsTheJobsLog) {
  const std::string binary("\x01\x00\x02", 3);
  Record("events", "x");
  Record("output", "x");
  manifest_.set_log(Path("output"));
  v1::StdioSlot* slot = manifest_.add_stdio();
  slot->set_fd(2);
  slot->set_kind("file");
  slot->set_path(Path("errors"));
  Record("errors", "x");
  for (const char* name : {"events", "output", "errors"}) Append(name, binary);
  std::vector<Report> reports = Apply();
  ASSERT_THAT(reports, SizeIs(3));
  EXPECT_EQ(reports[0].tail_copy(), "");
  for (int i : {1, 2}) EXPECT_EQ(ReadFile(reports[i].tail_copy()).value_or("(none)"), binary) << i;
  for (const Report& report : reports) EXPECT_EQ(report.action(), Report::TRUNCATED) << report.path();
}

TEST_F(FileRollbackTest, TwiceIsAsOnce) {
  Record("log", "one\n");
  Append("log", "two\n");
  EXPECT_EQ(ApplyOne().action(), Report::TRUNCATED);
  const std::vector<std::string> names = ListDirectory(files_).value();
  Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::UNCHANGED);
  EXPECT_EQ(report.size(), 4u);
  EXPECT_EQ(report.tail_copy(), "");
  EXPECT_EQ(Read("log"), "one\n");
  EXPECT_EQ(ListDirectory(files_).value(), names);
}

TEST_F(FileRollbackTest, ManyTailsOfOneSecondHaveDifferentNames) {
  Record("log", "one\n");
  std::set<std::string> copies;
  for (int i = 0; i < 5; ++i) {
    Append("log", "tail " + std::to_string(i) + "\n");
    Report report = ApplyOne();
    EXPECT_EQ(ReadFile(report.tail_copy()).value_or(""), "tail " + std::to_string(i) + "\n");
    copies.insert(report.tail_copy());
  }
  EXPECT_THAT(copies, SizeIs(5));
}

TEST_F(FileRollbackTest, LongNamesHaveTailsToo) {
  std::string name(255, 'n');
  Record(name, "one\n");
  Append(name, "two\n");
  Report report = ApplyOne();
  EXPECT_EQ(ReadFile(report.tail_copy()).value_or(""), "two\n");
}

TEST_F(FileRollbackTest, LongNamesAreMadeAgain) {
  const std::string one(255, 'n'), other = std::string(254, 'n') + "o";
  Record(one, "one\n", {.in_place = true, .content = true});
  Record(other, "other\n", {.in_place = true, .content = true});
  ASSERT_EQ(::unlink(Path(one).c_str()), 0);
  ASSERT_EQ(::unlink(Path(other).c_str()), 0);
  rollback_.set_mode(v1::Rollback::ALL);
  for (const Report& report : Apply()) EXPECT_EQ(report.action(), Report::MADE_AGAIN) << report.why();
  EXPECT_EQ(Read(one), "one\n");
  EXPECT_EQ(Read(other), "other\n");
  EXPECT_THAT(ListDirectory(files_).value(), ElementsAre(one, other));
}

TEST_F(FileRollbackTest, APlanChangesNothing) {
  Record("log", "one\n");
  Record("data", "0123456789", {.in_place = true, .content = true});
  Append("log", "two\n");
  Rewrite("data", 0, "abc");
  rollback_.set_mode(v1::Rollback::ALL);
  const timespec before = Stat("data").st_mtim;
  std::vector<FileAction> plan = Plan();
  ASSERT_THAT(plan, SizeIs(2));
  EXPECT_EQ(plan[0].report.action(), Report::TRUNCATED);
  EXPECT_TRUE(absl::StartsWith(plan[0].report.tail_copy(), Path("log.rekindle-tail-")));
  EXPECT_EQ(plan[1].report.action(), Report::PUT_BACK);
  EXPECT_EQ(Read("log"), "one\ntwo\n");
  EXPECT_EQ(Read("data"), "abc3456789");
  EXPECT_EQ(Stat("data").st_mtim.tv_nsec, before.tv_nsec);
  EXPECT_THAT(ListDirectory(files_).value(), ElementsAre("data", "log"));
}

TEST_F(FileRollbackTest, InterruptedBetweenCopyAndCut) {
  Record("log", "one\n");
  Record("other", "one\n");
  Append("log", "two\n");
  Append("other", "two\n");
  // What a roll-back that was killed there has left: copies of both tails, one of the files cut off.
  Write("log.rekindle-tail-20260101T000000Z", "two\n");
  Write("other.rekindle-tail-20260101T000000Z", "two\n");
  ASSERT_EQ(::truncate(Path("log").c_str(), 4), 0);
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::UNCHANGED);
  EXPECT_EQ(reports[1].action(), Report::TRUNCATED);
  EXPECT_EQ(Read("log") + Read("other"), "one\none\n");
}

struct Interrupted {};

// Whatever was opened, made or renamed last: what was begun is done by the next.
TEST_F(FileRollbackTest, InterruptedAnywhere) {
  const std::string content = store::MakePages(20, 4);
  Record("changed", content, {.in_place = true, .content = true});
  Record("gone", content, {.in_place = true, .content = true});
  Record("log", "one\n");
  Record("replaced", content, {.in_place = true, .content = true});
  rollback_.set_mode(v1::Rollback::ALL);
  int interrupted = 0;
  for (bool finished = false; !finished;) {
    Rewrite("changed", 5 * kPage, "something newer");
    (void)::unlink(Path("gone").c_str());
    Append("log", "two\n");
    Write("new", "another");
    ASSERT_EQ(::rename(Path("new").c_str(), Path("replaced").c_str()), 0);
    int left = interrupted;
    rights_ = [&left](const std::function<void()>& work) {
      if (left-- == 0) throw Interrupted();
      work();
    };
    try {
      Apply();
      finished = true;
    } catch (const Interrupted&) {
      ++interrupted;
    }
    rights_ = OurRights;
    Apply();
    for (const char* name : {"changed", "gone", "replaced"}) {
      EXPECT_TRUE(Read(name) == content) << name << " " << interrupted;
    }
    EXPECT_EQ(Read("log"), "one\n") << interrupted;
    for (const FileAction& action : Plan()) {
      EXPECT_EQ(action.report.action(), Report::UNCHANGED) << action.report.path() << " " << interrupted;
    }
    const std::vector<std::string> names = ListDirectory(files_).value();
    for (const std::string& name : names) {
      EXPECT_FALSE(absl::StrContains(name, "rekindle-new")) << name << " " << interrupted;
    }
  }
  EXPECT_GE(interrupted, 9) << "four looks, two that ask for the folder, two made, one copied, two renamed";
}

TEST_F(FileRollbackTest, FilesThatAreRewrittenInPlaceAreOnlyCutOff) {
  Record("same", "0123456789", {.in_place = true, .content = true});
  Record("longer", "0123456789", {.in_place = true, .content = false});
  Record("untouched", "0123456789", {.in_place = true});
  Record("mapped", "0123456789", {.in_place = true});
  manifest_.mutable_written_files(3)->set_modified_ns(0);
  Rewrite("same", 0, "abc");
  Rewrite("longer", 5, "abcdefgh");
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::LEFT);
  EXPECT_THAT(reports[0].why(), AllOf(HasSubstr("rewritten in place"), HasSubstr("--rollback all")));
  EXPECT_EQ(reports[1].action(), Report::TRUNCATED);
  EXPECT_THAT(reports[1].why(), AllOf(HasSubstr("rewritten in place"), HasSubstr("--file-contents")));
  EXPECT_EQ(reports[2].action(), Report::UNCHANGED);
  EXPECT_EQ(reports[2].why(), "");
  EXPECT_EQ(reports[3].action(), Report::LEFT) << "its time says nothing";
  EXPECT_EQ(Read("same"), "abc3456789");
  EXPECT_EQ(Read("longer"), "01234abcde");
  EXPECT_TRUE(CheckPlan(Plan()).ok()) << "the job can be restored";
}

TEST_F(FileRollbackTest, ShrunkAndVanishedFilesAreRefusedBeforeAnythingChanges) {
  Record("log", "one\n");
  Record("shrunk", "0123456789");
  Record("gone", "0123456789", {.in_place = true});
  Record("back", "0123456789", {.content = true});
  ASSERT_EQ(::unlink(Path("back").c_str()), 0);
  Append("log", "two\n");
  ASSERT_EQ(::truncate(Path("shrunk").c_str(), 4), 0);
  ASSERT_EQ(::unlink(Path("gone").c_str()), 0);
  std::vector<FileAction> plan = Plan();
  EXPECT_EQ(plan[0].report.action(), Report::TRUNCATED);
  EXPECT_EQ(plan[1].report.action(), Report::LEFT);
  EXPECT_EQ(plan[2].report.action(), Report::LEFT);
  EXPECT_EQ(plan[3].report.action(), Report::MADE_AGAIN);
  absl::Status status = CheckPlan(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr(Path("shrunk") + ": it has become shorter (4 bytes, it had 10)"),
            HasSubstr(Path("gone") + ": it is gone; the image does not have its content"),
            Not(HasSubstr("--rollback all")), Not(HasSubstr(Path("log"))), Not(HasSubstr(Path("back")))));
  EXPECT_EQ(Read("log"), "one\ntwo\n");
  EXPECT_EQ(Read("back"), "(none)");
}

TEST_F(FileRollbackTest, TroubleOfTheMachineIsNoReasonToLeaveAFileAsItIs) {
  Record("lines", "one\n");
  Append("lines", "two\n");
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  // Folder and name can be opened, and then the file not.
  const auto with_few = [&before](const std::function<void()>& work) {
    rlimit limited = before;
    {
      const UniqueFd first(::open("/", O_PATH)), second(::open("/", O_PATH)), third(::open("/", O_PATH));
      limited.rlim_cur = static_cast<rlim_t>(third.get());
    }
    ::setrlimit(RLIMIT_NOFILE, &limited);
    work();
    ::setrlimit(RLIMIT_NOFILE, &before);
  };
  const absl::Status planned = PlanRollback(manifest_, Image(), rollback_, with_few).status();
  EXPECT_EQ(planned.code(), absl::StatusCode::kResourceExhausted) << planned;
  EXPECT_THAT(std::string(planned.message()), HasSubstr("lines"));
}

TEST_F(FileRollbackTest, IgnoredFilesAndFoldersStayAsTheyAre) {
  ASSERT_EQ(::mkdir(Path("folder").c_str(), 0755), 0);
  for (const char* name : {"a", "ab", "folder/b"}) {
    Record(name, "one\n");
    Append(name, "two\n");
  }
  rollback_.add_ignore_paths(Path("a"));
  rollback_.add_ignore_paths(Path("folder/"));
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::IGNORED);
  EXPECT_EQ(reports[0].size(), 8u);
  EXPECT_EQ(reports[1].action(), Report::TRUNCATED) << "it only begins like an ignored one";
  EXPECT_EQ(reports[2].action(), Report::IGNORED);
  EXPECT_EQ(Read("a") + Read("folder/b"), "one\ntwo\none\ntwo\n");
  rollback_.add_ignore_paths("relative");
  EXPECT_EQ(PlanRollback(manifest_, Image(), rollback_, rights_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(FileRollbackTest, NoneDoesNothing) {
  Record("log", "one\n");
  Append("log", "two\n");
  rollback_.set_mode(v1::Rollback::NONE);
  EXPECT_THAT(Apply(), IsEmpty());
  EXPECT_EQ(Read("log"), "one\ntwo\n");
}

TEST_F(FileRollbackTest, ImagesThatDoNotDescribeTheirFilesSaySo) {
  Write("log", "one\ntwo\n");
  for (const std::string& path : {Path("log"), Path("log"), std::string("/dev/null"), Path("read")}) {
    v1::NeededFile* file = manifest_.add_files();
    file->set_path(path);
    file->set_written(path != Path("read"));
  }
  Report report = ApplyOne();
  EXPECT_EQ(report.path(), Path("log"));
  EXPECT_EQ(report.action(), Report::LEFT);
  EXPECT_THAT(report.why(), HasSubstr("does not describe"));
  EXPECT_EQ(Read("log"), "one\ntwo\n");
}

// ---- names that mean something else now

TEST_F(FileRollbackTest, LinksInTheFilesPlaceAreNotFollowed) {
  Record("log", "one\n");
  Write("victim", "something valuable");
  ASSERT_EQ(::unlink(Path("log").c_str()), 0);
  ASSERT_EQ(::symlink(Path("victim").c_str(), Path("log").c_str()), 0);
  for (v1::Rollback::Mode mode : {v1::Rollback::APPEND, v1::Rollback::ALL}) {
    rollback_.set_mode(mode);
    Report report = ApplyOne();
    EXPECT_EQ(report.action(), Report::LEFT);
    EXPECT_THAT(report.why(), HasSubstr("symbolic link"));
  }
  EXPECT_EQ(Read("victim"), "something valuable");
}

TEST_F(FileRollbackTest, LinksToTheFileItselfAreNotFollowedEither) {
  Record("log", "one\n");
  Append("log", "two\n");
  ASSERT_EQ(::rename(Path("log").c_str(), Path("moved").c_str()), 0);
  ASSERT_EQ(::symlink(Path("moved").c_str(), Path("log").c_str()), 0);
  EXPECT_EQ(ApplyOne().action(), Report::LEFT);
  EXPECT_EQ(Read("moved"), "one\ntwo\n");
}

TEST_F(FileRollbackTest, AnotherFileOfTheNameIsLeft) {
  Record("log", "one\n");
  Write("new", "of another program");
  ASSERT_EQ(::rename(Path("new").c_str(), Path("log").c_str()), 0);
  Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::LEFT);
  EXPECT_THAT(report.why(), HasSubstr("another file has its name"));
  EXPECT_EQ(report.size(), 18u);
  EXPECT_EQ(Read("log"), "of another program");
  EXPECT_TRUE(CheckPlan(Plan()).ok());
}

TEST_F(FileRollbackTest, FoldersAndPipesInItsPlaceAreLeft) {
  Record("a", "one\n");
  Record("b", "one\n");
  for (const char* name : {"a", "b"}) ASSERT_EQ(::unlink(Path(name).c_str()), 0);
  ASSERT_EQ(::mkdir(Path("a").c_str(), 0755), 0);
  ASSERT_EQ(::mkfifo(Path("b").c_str(), 0644), 0);
  for (const Report& report : Apply()) {
    EXPECT_EQ(report.action(), Report::LEFT);
    EXPECT_THAT(report.why(), HasSubstr("something else than a regular file"));
  }
}

TEST_F(FileRollbackTest, ADeviceNumberSaysNothingAfterAReboot) {
  Record("log", "one\n");
  Append("log", "two\n");
  manifest_.mutable_written_files(0)->set_device(manifest_.written_files(0).device() + 1);
  EXPECT_EQ(ApplyOne().action(), Report::LEFT);
  manifest_.set_job_id("another boot/70/1");
  EXPECT_EQ(ApplyOne().action(), Report::TRUNCATED);
  EXPECT_EQ(Read("log"), "one\n");
}

TEST_F(FileRollbackTest, HardLinksStayLinks) {
  Record("data", "0123456789", {.in_place = true, .content = true});
  ASSERT_EQ(::link(Path("data").c_str(), Path("link").c_str()), 0);
  Rewrite("data", 2, "abcdefghijkl");
  rollback_.set_mode(v1::Rollback::ALL);
  EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK);
  EXPECT_EQ(Read("link"), "0123456789");
  EXPECT_EQ(Stat("data").st_ino, Stat("link").st_ino);
}

// ---- content

TEST_F(FileRollbackTest, ContentIsPutBackIntoTheSameFile) {
  const std::string content = store::MakePages(300, 5).substr(0, 300 * kPage - 77);
  Record("data", content, {.in_place = true, .content = true});
  struct stat before = Stat("data");
  UniqueFd reader = OpenFile(Path("data"), O_RDONLY).value();
  Rewrite("data", 5, "abc");
  Rewrite("data", 299 * kPage, std::string(3 * kPage, 'z'));
  rollback_.set_mode(v1::Rollback::ALL);
  Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::PUT_BACK);
  EXPECT_EQ(report.size(), content.size());
  EXPECT_EQ(report.discarded_bytes(), 2 * kPage + 77);
  EXPECT_TRUE(Read("data") == content);
  EXPECT_EQ(Stat("data").st_ino, before.st_ino);
  EXPECT_EQ(Stat("data").st_mtim.tv_nsec, before.st_mtim.tv_nsec);
  char first[3];
  EXPECT_EQ(::pread(reader.get(), first, 3, 5), 3);
  EXPECT_EQ(std::string(first, 3), content.substr(5, 3)) << "whoever has it open sees it";
  EXPECT_EQ(ApplyOne().action(), Report::UNCHANGED);
}

TEST_F(FileRollbackTest, ShrunkFilesGrowBack) {
  const std::string content = store::MakePages(3, 6);
  Record("data", content, {.in_place = true, .content = true});
  ASSERT_EQ(::truncate(Path("data").c_str(), 100), 0);
  Touch("data");
  rollback_.set_mode(v1::Rollback::ALL);
  EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK);
  EXPECT_TRUE(Read("data") == content);
}

// The disk does not take what is written by this descriptor: of this thread, and those that it makes.
void FailSyncOf(int fd) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(fd), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {sizeof program / sizeof program[0], program};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0) << std::strerror(errno);
}

TEST_F(FileRollbackTest, ADiskThatFailsIsToldBeforeAllFilesAreChanged) {
  constexpr int kFiles = 100, kFails = 3;
  const auto name = [](int i) { return absl::StrCat("file-", 100 + i); };
  for (int i = 0; i < kFiles; ++i) Record(name(i), "what the image has", {.in_place = true, .content = true});
  for (int i = 0; i < kFiles; ++i) Rewrite(name(i), 0, "what came later");
  rollback_.set_mode(v1::Rollback::ALL);
  std::vector<FileAction> plan = Plan();
  ASSERT_THAT(plan, SizeIs(kFiles));
  absl::Status status;
  std::thread([&] {
    FailSyncOf(plan[kFails].file.get());
    status = PutFilesBack(Image(), rights_, &plan);
  }).join();
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path(name(kFails)))) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("Input/output error"));
  int as_they_were = 0;
  for (int i = 0; i < kFiles; ++i) as_they_were += Read(name(i)) == "what came laterhas" ? 1 : 0;
  EXPECT_GE(as_they_were, kFiles / 2);

  // Once the disk is well again it is done all the same.
  Apply();
  for (int i = 0; i < kFiles; ++i) EXPECT_EQ(Read(name(i)), "what the image has");
}

TEST_F(FileRollbackTest, AnInterruptedPutBackIsDoneAgain) {
  const std::string content = store::MakePages(100, 8);
  Record("data", content, {.in_place = true, .content = true});
  // Half of it was put back when it was interrupted.
  Rewrite("data", 50 * kPage, std::string(60 * kPage, 'x'));
  rollback_.set_mode(v1::Rollback::ALL);
  EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK);
  EXPECT_TRUE(Read("data") == content);
}

TEST_F(FileRollbackTest, MappedFilesAreComparedByContent) {
  Record("data", "0123456789", {.in_place = true, .content = true});
  manifest_.mutable_written_files(0)->set_modified_ns(0);
  rollback_.set_mode(v1::Rollback::ALL);
  EXPECT_EQ(ApplyOne().action(), Report::UNCHANGED);
  UniqueFd fd = OpenFile(Path("data"), O_WRONLY).value();
  ASSERT_EQ(::pwrite(fd.get(), "abc", 3, 0), 3);
  EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK);
  EXPECT_EQ(Read("data"), "0123456789");
}

TEST_F(FileRollbackTest, SparseFilesStaySparse) {
  constexpr uint64_t kSize = 64 << 20;
  Write("data", "");
  ASSERT_EQ(::truncate(Path("data").c_str(), kSize), 0);
  UniqueFd fd = OpenFile(Path("data"), O_WRONLY).value();
  ASSERT_EQ(::pwrite(fd.get(), "y", 1, 32 << 20), 1);
  RecordAsItIs("data", {.in_place = true, .content = true});
  Rewrite("data", 0, std::string(8 << 20, 'x'));
  const std::string expected = std::string(32 << 20, '\0') + "y" + std::string((32 << 20) - 1, '\0');
  rollback_.set_mode(v1::Rollback::ALL);
  EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK);
  EXPECT_TRUE(Read("data") == expected);
  EXPECT_LT(Stat("data").st_blocks * 512, 1 << 20) << "what was a hole is one again";
  ASSERT_EQ(::unlink(Path("data").c_str()), 0);
  EXPECT_EQ(ApplyOne().action(), Report::MADE_AGAIN);
  EXPECT_TRUE(Read("data") == expected);
  EXPECT_LT(Stat("data").st_blocks * 512, 1 << 20);
}

TEST_F(FileRollbackTest, LargeFilesArePutBackWhateverBecameOfThem) {
  const std::string content = store::MakePages(6 << 10, 7).substr(0, (24 << 20) - 100);
  Record("data", content, {.in_place = true, .content = true});
  rollback_.set_mode(v1::Rollback::ALL);
  const auto put_back = [&] {
    EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK);
    EXPECT_TRUE(Read("data") == content);
  };
  for (const uint64_t at : {uint64_t{5}, 3 * kPage - 1, uint64_t{content.size()} - 1})
    Rewrite("data", at, "!");
  put_back();
  Rewrite("data", 1 << 20, std::string(9 << 20, '\0'));
  put_back();
  Rewrite("data", content.size(), "more");
  put_back();
  for (const off_t bytes : {off_t{0}, off_t{5}, off_t{10 << 20}, static_cast<off_t>(content.size() - 1)}) {
    ASSERT_EQ(::truncate(Path("data").c_str(), bytes), 0);
    Touch("data");
    put_back();
  }
}

TEST_F(FileRollbackTest, OneThatBecameShorterIsItsBeginningUntilAllIsThere) {
  const std::string content = store::MakePages(6 << 10, 7);
  Record("data", content, {.in_place = true, .content = true});
  ASSERT_EQ(::truncate(Path("data").c_str(), kPage), 0);
  std::vector<FileAction> plan = Plan();
  ASSERT_EQ(plan[0].report.action(), Report::PUT_BACK);
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit limit = {16 << 20, before.rlim_max};
  ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = ApplyRollback(Image(), rights_, &plan);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_DFL);
  EXPECT_FALSE(status.ok());
  const std::string left = Read("data");
  EXPECT_GT(left.size(), kPage);
  EXPECT_LT(left.size(), content.size());
  EXPECT_TRUE(left == content.substr(0, left.size()));
  EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK);
  EXPECT_TRUE(Read("data") == content);
}

TEST_F(FileRollbackTest, WhatIsAppendedBehindAHoleIsNoPartOfTheContent) {
  Write("data", "beginning");
  ASSERT_EQ(::truncate(Path("data").c_str(), 1 << 20), 0);
  RecordAsItIs("data", {.content = true, .is_new = true});
  const std::string content = Read("data");
  Append("data", "more");
  EXPECT_EQ(ApplyOne().action(), Report::TRUNCATED);
  EXPECT_TRUE(Read("data") == content);
}

TEST_F(FileRollbackTest, HolesAreSkipped) {
  constexpr uint64_t kSize = uint64_t{1} << 40, kMiddle = kSize / 2;
  Write("data", "");
  ASSERT_EQ(::truncate(Path("data").c_str(), kSize), 0);
  manifest_.add_written_files();
  struct stat info = Stat("data");
  v1::WrittenFile* file = manifest_.mutable_written_files(0);
  file->set_path(Path("data"));
  file->set_size(kSize);
  file->set_inode(info.st_ino);
  file->set_device(info.st_dev);
  file->set_in_place(true);
  file->set_content_object("files/0");
  stored_.objects["files/0"][kMiddle] = store::MakePages(1, 3);
  UniqueFd fd = OpenFile(Path("data"), O_RDWR).value();
  ASSERT_EQ(::pwrite(fd.get(), "x", 1, kSize - 1), 1);
  ASSERT_EQ(::pwrite(fd.get(), "x", 1, 5 * kPage), 1);
  rollback_.set_mode(v1::Rollback::ALL);
  EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK);
  EXPECT_EQ(ApplyOne().action(), Report::UNCHANGED);
  std::string page(kPage, '?');
  EXPECT_EQ(::pread(fd.get(), page.data(), kPage, kMiddle), static_cast<ssize_t>(kPage));
  EXPECT_TRUE(page == store::MakePages(1, 3));
  for (uint64_t at : {5 * kPage, kSize - 1}) {
    char byte = '?';
    EXPECT_EQ(::pread(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
    EXPECT_EQ(byte, 0);
  }
}

TEST_F(FileRollbackTest, VanishedAndReplacedFilesAreMadeAgain) {
  Record("gone", "0123456789", {.in_place = true, .content = true});
  Record("replaced", "0123456789", {.in_place = true, .content = true});
  Record("log", "0123456789");
  Record("empty", "");
  for (const char* name : {"gone", "replaced"}) ASSERT_EQ(::chmod(Path(name).c_str(), 0604), 0);
  for (auto& file : *manifest_.mutable_written_files()) file.set_mode(0604);
  for (const char* name : {"gone", "log", "empty"}) ASSERT_EQ(::unlink(Path(name).c_str()), 0);
  Write("new", "another");
  ASSERT_EQ(::rename(Path("new").c_str(), Path("replaced").c_str()), 0);
  rollback_.set_mode(v1::Rollback::ALL);
  std::vector<FileAction> plan = Plan();
  EXPECT_EQ(plan[0].report.action(), Report::MADE_AGAIN);
  EXPECT_EQ(plan[1].report.action(), Report::MADE_AGAIN);
  EXPECT_EQ(plan[2].report.action(), Report::LEFT) << "what was appended to has no content in the image";
  EXPECT_EQ(plan[3].report.action(), Report::MADE_AGAIN) << "nothing is known of it but that it was empty";
  EXPECT_THAT(std::string(CheckPlan(plan).message()), HasSubstr(Path("log") + ": it is gone"));
  ASSERT_TRUE(ApplyRollback(Image(), rights_, &plan).ok());
  for (const char* name : {"gone", "replaced"}) {
    EXPECT_EQ(Read(name), "0123456789");
    EXPECT_EQ(Stat(name).st_mode & 07777, 0604u);
  }
  EXPECT_EQ(Read("empty"), "");
  EXPECT_THAT(ListDirectory(files_).value(), ElementsAre("empty", "gone", "replaced"));
  for (const FileAction& action : Plan()) {
    EXPECT_EQ(action.report.action(), action.report.path() == Path("log") ? Report::LEFT : Report::UNCHANGED)
        << action.report.path();
  }
}

TEST_F(FileRollbackTest, AFolderThatIsGoneIsMadeAgain) {
  ASSERT_EQ(::mkdir(Path("folder").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir(Path("folder/below").c_str(), 0755), 0);
  Record("folder/below/data", "0123456789", {.in_place = true, .content = true});
  Record("folder/below/empty", "");
  v1::FolderOfFile* folder = manifest_.mutable_written_files(0)->mutable_folder();
  folder->set_device(Stat("folder/below").st_dev);
  folder->set_mode(0751);
  folder->set_uid(::geteuid());
  folder->set_gid(::getegid());
  RemoveTree(Path("folder")).IgnoreError();
  ASSERT_TRUE(CheckPlan(Plan()).ok()) << CheckPlan(Plan());
  EXPECT_THAT(ListDirectory(files_).value(), IsEmpty()) << "a plan makes nothing";
  std::vector<Report> reports = Apply();
  EXPECT_EQ(reports[0].action(), Report::MADE_AGAIN);
  EXPECT_THAT(reports[0].why(), HasSubstr("its folder was made again, too"));
  EXPECT_EQ(Read("folder/below/data"), "0123456789");
  EXPECT_EQ(Stat("folder/below").st_mode & 07777, 0751u);
  EXPECT_EQ(Stat("folder").st_mode & 07777, 0751u);
  EXPECT_THAT(ListDirectory(Path("folder/below")).value(), ElementsAre("data", "empty"));
}

TEST_F(FileRollbackTest, AFolderThatMayComeBackIsSaid) {
  ASSERT_EQ(::mkdir(Path("folder").c_str(), 0755), 0);
  Record("folder/data", "0123456789", {.in_place = true, .content = true});
  Record("folder/large", "0123456789");
  RemoveTree(Path("folder")).IgnoreError();
  const auto why = [&](size_t file) {
    std::vector<FileAction> plan = Plan();
    EXPECT_EQ(CheckPlan(plan).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(plan[file].report.action(), Report::LEFT);
    return plan[file].report.why();
  };
  const auto may_come_back =
      AllOf(HasSubstr("it is gone, with its folder " + Path("folder")), HasSubstr(kMakeFolder));
  EXPECT_THAT(why(1), AllOf(may_come_back, HasSubstr("the image does not have its content")));
  // It lay on another file system, which is not mounted now.
  v1::WrittenFile* data = manifest_.mutable_written_files(0);
  data->set_device(data->device() + 1);
  EXPECT_THAT(why(0), may_come_back);
  data->set_device(data->device() - 1);
  manifest_.set_job_id("another boot/70/1");
  EXPECT_THAT(why(0), may_come_back) << "nothing tells of which it was";
  // As after a reboot, which empties such a folder.
  ASSERT_EQ(::chmod(files_.c_str(), 01777), 0);
  EXPECT_THAT(why(1), Not(HasSubstr(kMakeFolder))) << "it was for a while";
  EXPECT_EQ(Plan()[0].report.action(), Report::MADE_AGAIN);
  ASSERT_EQ(::symlink("nowhere", Path("folder").c_str()), 0);
  EXPECT_EQ(Plan()[0].report.action(), Report::LEFT) << "a link to what is not mounted, say";
}

// ---- no room

class SmallDiskTest : public FileRollbackTest {
 protected:
  void SetUp() override {
    FileRollbackTest::SetUp();
    if (::geteuid() != 0) GTEST_SKIP() << "mounting needs root";
    ASSERT_EQ(::mount("none", files_.c_str(), "tmpfs", 0, "size=1m"), 0);
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2(files_.c_str(), MNT_DETACH);
  }
  void FillDisk() {
    UniqueFd fd = OpenFile(Path("filler"), O_WRONLY | O_CREAT).value();
    const std::string page(kPage, 'f');
    while (::write(fd.get(), page.data(), page.size()) > 0) {
    }
  }
  absl::Status Refusal() {
    std::vector<FileAction> plan = Plan();
    return ApplyRollback(Image(), rights_, &plan);
  }

 private:
  bool mounted_ = false;
};

TEST_F(SmallDiskTest, NoRoomForATailChangesNothing) {
  Record("a", "one\n");
  Record("b", "one\n");
  const std::string tail(400 << 10, 't');
  Append("a", tail);
  Append("b", tail);
  absl::Status status = Refusal();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(Path("a")), HasSubstr("--ignore-path")));
  EXPECT_TRUE(Read("a") == "one\n" + tail && Read("b") == "one\n" + tail);
  EXPECT_THAT(ListDirectory(files_).value(), ElementsAre("a", "b"));
}

TEST_F(SmallDiskTest, NoRoomForContentChangesNothing) {
  const std::string content = store::MakePages(150, 9);
  Record("data", content, {.in_place = true, .content = true});
  Record("log", "one\n");
  Append("log", "two\n");
  ASSERT_EQ(::unlink(Path("data").c_str()), 0);
  FillDisk();
  rollback_.set_mode(v1::Rollback::ALL);
  absl::Status status = Refusal();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("data")));
  EXPECT_EQ(Read("log"), "one\ntwo\n");
  EXPECT_THAT(ListDirectory(files_).value(), ElementsAre("filler", "log"));
  ASSERT_EQ(::unlink(Path("filler").c_str()), 0);
  Apply();
  EXPECT_TRUE(Read("data") == content);
  EXPECT_EQ(Read("log"), "one\n");
}

TEST_F(FileRollbackTest, WhatIsCutOffWaitsForTheRest) {
  Record("data", "0123456789", {.in_place = true, .content = true});
  Record("log", "one\n");
  Append("log", "two\n");
  ASSERT_EQ(::unlink(Path("data").c_str()), 0);
  std::vector<FileAction> plan = Plan();
  ASSERT_TRUE(PutFilesBack(Image(), rights_, &plan).ok());
  EXPECT_EQ(Read("data"), "0123456789");
  // Where the job does not come back after all nothing is lost, nor is anything left beside it.
  EXPECT_EQ(Read("log"), "one\ntwo\n");
  RemoveUselessTails(rights_, &plan);
  EXPECT_THAT(ListDirectory(files_).value(), ElementsAre("data", "log"));
  ASSERT_TRUE(CutFilesOff(rights_, &plan).ok());
  EXPECT_EQ(Read("log"), "one\n");
  EXPECT_EQ(Read(plan[1].report.tail_copy().substr(files_.size() + 1)), "two\n");
  // The job has begun to write.
  Append("log", "three\n");
  EXPECT_THAT(ListDirectory(files_).value(), testing::SizeIs(3));
}

TEST_F(FileRollbackTest, FoldersThatWereMadeInVainAreRemoved) {
  ASSERT_EQ(::mkdir(Path("folder").c_str(), 0755), 0);
  Record("folder/a", "0123456789", {.in_place = true, .content = true});
  Record("folder/long", "0123456789", {.in_place = true, .content = true});
  RemoveTree(Path("folder")).IgnoreError();
  std::vector<FileAction> plan = Plan();
  plan[1].name = "no/such";
  EXPECT_FALSE(ApplyRollback(Image(), rights_, &plan).ok());
  EXPECT_THAT(ListDirectory(files_).value(), IsEmpty());
}

TEST_F(SmallDiskTest, AFullDiskIsNoReasonNotToCutOffWhatIsNotKept) {
  Record("events", "x");
  Append("events", std::string("\0\1\2", 3));
  FillDisk();
  EXPECT_EQ(ApplyOne().action(), Report::TRUNCATED);
  EXPECT_EQ(Read("events"), "x");
}

// ---- what is a log?

TEST(LooksLikeTextTest, ByFirstAndLastPages) {
  auto folder = TemporaryDirectory::Make("/tmp", "rk_tail_test.").value();
  const std::string path = folder.path() + "/file";
  auto is_text = [&](const std::string& content) {
    EXPECT_TRUE(WriteFileAtomically(path, content).ok());
    UniqueFd fd = OpenFile(path, O_RDONLY).value();
    return LooksLikeText(fd.get(), 1, content.size());
  };
  EXPECT_TRUE(is_text("\1step 5, loss 0.25\r\n\x1b[32mgreen\x1b[0m\tGrüße\n"));
  EXPECT_FALSE(is_text(std::string("xa\0b", 4)));
  EXPECT_FALSE(is_text("x\x02"));
  EXPECT_FALSE(is_text("x" + std::string(100000, 'a') + '\1'));
  EXPECT_FALSE(is_text("x")) << "there is nothing";
}

}  // namespace
}  // namespace rekindle::restore
