#include "restore/lock_check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_child.h"
#include "base/unique_fd.h"
#include "criu/test_images.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rekindle/v1/image_layout.h"
#include "restore/test_patience.h"

namespace rekindle::restore {
namespace {

using criu::FileLock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

using Kind = FileLock::Kind;

FileLock Lock(Kind kind, bool exclusive, int64_t start = 0, int64_t length = 0) {
  FileLock lock;
  lock.kind = kind;
  lock.exclusive = exclusive;
  lock.start = start;
  lock.length = length;
  return lock;
}

// The descriptor stays open: a lock lives as long. False: somebody else's is in the way.
bool Take(const std::string& path, const FileLock& lock) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  if (lock.kind == Kind::kFlock) return ::flock(fd, (lock.exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0;
  struct flock wanted {};
  wanted.l_type = lock.exclusive ? F_WRLCK : F_RDLCK;
  wanted.l_whence = SEEK_SET;
  wanted.l_start = lock.start;
  wanted.l_len = lock.length;
  return ::fcntl(fd, lock.kind == Kind::kPosix ? F_SETLK : F_OFD_SETLK, &wanted) == 0;
}

class LockCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    auto folder = TemporaryDirectory::Make(testing::TempDir(), "rekindle_lock_test.");
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_ = std::make_unique<TemporaryDirectory>(*std::move(folder));
    path_ = folder_->path() + "/file";
    ASSERT_TRUE(WriteFileAtomically(path_, "content").ok());
  }

  absl::Status Check(const FileLock& wanted, absl::Duration patience = kShort, int cancel_fd = -1) const {
    return CheckLocksAreFree({{path_, wanted}}, cancel_fd, patience);
  }
  std::string Refusal(const FileLock& wanted) const {
    const absl::Status status = Check(wanted);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  }

  std::unique_ptr<TemporaryDirectory> folder_;
  std::string path_;
};

TEST_F(LockCheckTest, FreeLocksAreFreeAndAreLeftSo) {
  for (Kind kind : {Kind::kFlock, Kind::kPosix, Kind::kOfd}) {
    EXPECT_TRUE(Check(Lock(kind, true)).ok()) << Check(Lock(kind, true));
  }
  TestChild other(
      [&] { return Take(path_, Lock(Kind::kFlock, true)) && Take(path_, Lock(Kind::kOfd, true)); });
  EXPECT_TRUE(other.prepared()) << "the check has kept a lock";
}

TEST_F(LockCheckTest, RefusalNamesFileLockAndHolder) {
  TestChild holder([&] { return Take(path_, Lock(Kind::kFlock, true)); });
  ASSERT_TRUE(holder.prepared());
  EXPECT_THAT(Refusal(Lock(Kind::kFlock, true)),
              AllOf(StartsWith(kLocksInUse), HasSubstr(path_), HasSubstr("exclusive flock"),
                    HasSubstr(absl::StrCat("PID ", holder.pid(), " (")), HasSubstr("restore_test"),
                    HasSubstr("restore again")));
}

TEST_F(LockCheckTest, SharedLocksGoTogether) {
  for (Kind kind : {Kind::kFlock, Kind::kPosix, Kind::kOfd}) {
    TestChild holder([&] { return Take(path_, Lock(kind, false)); });
    ASSERT_TRUE(holder.prepared());
    EXPECT_TRUE(Check(Lock(kind, false)).ok()) << Check(Lock(kind, false));
    EXPECT_THAT(Refusal(Lock(kind, true)), HasSubstr("exclusive"));
  }
  for (Kind kind : {Kind::kFlock, Kind::kPosix, Kind::kOfd}) {
    TestChild holder([&] { return Take(path_, Lock(kind, true)); });
    ASSERT_TRUE(holder.prepared());
    EXPECT_THAT(Refusal(Lock(kind, false)), HasSubstr("shared"));
  }
}

TEST_F(LockCheckTest, OnlyRangesThatOverlapAreInTheWay) {
  // Bytes 10 to 19.
  TestChild holder([&] { return Take(path_, Lock(Kind::kPosix, true, 10, 10)); });
  ASSERT_TRUE(holder.prepared());
  EXPECT_TRUE(Check(Lock(Kind::kPosix, true, 0, 10)).ok());
  EXPECT_TRUE(Check(Lock(Kind::kPosix, true, 20, 0)).ok());
  EXPECT_THAT(Refusal(Lock(Kind::kPosix, true, 19, 1)), HasSubstr("POSIX lock of bytes 19 to 19"));
  EXPECT_THAT(Refusal(Lock(Kind::kPosix, false, 5, 0)), HasSubstr("POSIX lock from byte 5 on"));
  EXPECT_THAT(Refusal(Lock(Kind::kPosix, false)), HasSubstr("(shared POSIX lock) is locked by"));
}

TEST_F(LockCheckTest, PosixAndOfdLocksMeetEachOtherAndNoFlock) {
  for (auto [held, wanted] : {std::pair(Kind::kPosix, Kind::kOfd), {Kind::kOfd, Kind::kPosix}}) {
    TestChild holder([&, kind = held] { return Take(path_, Lock(kind, true)); });
    ASSERT_TRUE(holder.prepared());
    EXPECT_THAT(Refusal(Lock(wanted, true)), HasSubstr(absl::StrCat("PID ", holder.pid(), " (")));
    EXPECT_TRUE(Check(Lock(Kind::kFlock, true)).ok());
  }
  TestChild holder([&] { return Take(path_, Lock(Kind::kFlock, true)); });
  ASSERT_TRUE(holder.prepared());
  EXPECT_TRUE(Check(Lock(Kind::kPosix, true)).ok());
}

TEST_F(LockCheckTest, HolderThatInheritedTheLockIsNamed) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  pid_t taker, heir = 0;
  {
    TestChild parent([&] {
      if (!Take(path_, Lock(Kind::kFlock, true))) return false;
      const pid_t child = ::fork();
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, 0);
        for (;;) ::pause();
      }
      return child > 0 && WriteFully(ends[1], &child, sizeof child, "pipe").ok();
    });
    ASSERT_TRUE(parent.prepared());
    ASSERT_TRUE(ReadFully(ends[0], &heir, sizeof heir, "pipe").ok());
    taker = parent.pid();
  }
  EXPECT_THAT(Refusal(Lock(Kind::kFlock, false)), AllOf(HasSubstr(absl::StrCat("PID ", heir, " (")),
                                                        Not(HasSubstr(absl::StrCat("PID ", taker)))));
  ::kill(heir, SIGKILL);
}

TEST_F(LockCheckTest, ManyAreCounted) {
  constexpr int kFiles = 5;
  std::vector<JobLock> locks;
  for (int i = 0; i < kFiles; ++i) {
    locks.push_back({absl::StrCat(path_, i), Lock(Kind::kFlock, true)});
    ASSERT_TRUE(WriteFileAtomically(locks.back().path, "").ok());
  }
  TestChild holder([&] {
    for (const JobLock& lock : locks) {
      if (!Take(lock.path, lock.lock)) return false;
    }
    return true;
  });
  ASSERT_TRUE(holder.prepared());
  const absl::Status status = CheckLocksAreFree(locks, -1, kShort);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(path_ + "0"), HasSubstr("and 2 more"), Not(HasSubstr(path_ + "4"))));
}

TEST_F(LockCheckTest, WhatIsNoFileIsLeftToCriu) {
  const std::string fifo = folder_->path() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {folder_->path() + "/gone", folder_->path(), fifo}) {
    const absl::Status status = CheckLocksAreFree({{path, Lock(Kind::kFlock, true)}}, -1, kShort);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(LockCheckTest, OwnPosixLocksAreNotLostToTheCheck) {
  ASSERT_TRUE(Take(path_, Lock(Kind::kPosix, true, 10, 10)));
  EXPECT_THAT(Refusal(Lock(Kind::kPosix, true)), HasSubstr(absl::StrCat("PID ", ::getpid(), " (")));
  EXPECT_TRUE(Check(Lock(Kind::kPosix, true, 30, 10)).ok());
  TestChild other([&] { return Take(path_, Lock(Kind::kPosix, true)); });
  EXPECT_FALSE(other.prepared()) << "the check has given our lock away";
}

TEST_F(LockCheckTest, LocksOfWhatIsDyingAreWaitedFor) {
  TestChild holder([&] { return Take(path_, Lock(Kind::kFlock, true)); });
  ASSERT_TRUE(holder.prepared());
  const UniqueFd looks(::inotify_init1(IN_CLOEXEC));
  ASSERT_GE(::inotify_add_watch(looks.get(), path_.c_str(), IN_CLOSE), 0);
  std::thread killer([&] {
    inotify_event first;  // the check has found it taken
    EXPECT_EQ(::read(looks.get(), &first, sizeof first), static_cast<ssize_t>(sizeof first));
    holder.Kill();
  });
  const absl::Status status = Check(Lock(Kind::kFlock, true), kAsLongAsItTakes);
  killer.join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(LockCheckTest, WaitingCanBeCancelled) {
  TestChild holder([&] { return Take(path_, Lock(Kind::kFlock, true)); });
  ASSERT_TRUE(holder.prepared());
  UniqueFd cancel(::eventfd(1, EFD_CLOEXEC));
  const absl::Status status = Check(Lock(Kind::kFlock, true), kAsLongAsItTakes, cancel.get());
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
}

// ---- what an image says

class LocksOfJobTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    Add("files.img",
        criu::MakeFiles({{21, "/work/lock", 0, O_RDWR, 0}, {22, "/work/deleted", 0, O_RDWR, 0}}));
    Add("remap-fpath.img", criu::MakeGhosts({22}));
    Add("ids-70.img", criu::MakeIds(1));
    Add("ids-71.img", criu::MakeIds(2));
    Add("fdinfo-1.img", criu::MakeDescriptors({{3, 22}, {4, 21}}));
    Add("fdinfo-2.img", criu::MakeDescriptors({{3, 21}}));
  }

  void Add(const std::string& name, const std::string& content) {
    image_.blobs[v1::kCriuFilePrefix + name] = content;
  }
  void AddLock(pid_t pid, int fd) {
    FileLock lock = Lock(Kind::kPosix, true, fd, 1);
    lock.pid = pid;
    lock.fd = fd;
    locks_.push_back(lock);
    Add("filelocks.img", criu::MakeFileLocks(locks_));
  }
  std::vector<JobLock> Locks() {
    EXPECT_TRUE(image_.Commit(*store_, "job:1").ok());
    auto reader = store_->OpenImage("job:1");
    EXPECT_TRUE(reader.ok()) << reader.status();
    auto locks = reader.ok() ? LocksOfJob(**reader) : reader.status();
    EXPECT_TRUE(locks.ok()) << locks.status();
    return locks.value_or(std::vector<JobLock>());
  }

  std::vector<FileLock> locks_;
  store::TestImage image_;
};

TEST_F(LocksOfJobTest, AreFoundThroughEachProcesssOwnDescriptors) {
  AddLock(70, 4);
  AddLock(71, 3);
  const std::vector<JobLock> locks = Locks();
  ASSERT_THAT(locks, SizeIs(2));
  EXPECT_EQ(locks[0].path, "/work/lock");
  EXPECT_EQ(locks[0].lock.start, 4);
  EXPECT_EQ(locks[1].path, "/work/lock");
  EXPECT_EQ(locks[1].lock.start, 3);
}

TEST_F(LocksOfJobTest, DeletedFilesAreNobodyElses) {
  AddLock(70, 3);
  EXPECT_THAT(Locks(), IsEmpty());
}

TEST_F(LocksOfJobTest, ImageWithoutLocksHasNone) { EXPECT_THAT(Locks(), IsEmpty()); }

}  // namespace
}  // namespace rekindle::restore
