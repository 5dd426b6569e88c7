#include "daemon/job_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/file.h"

namespace rekindle::daemon {
namespace {

class JobFileTest : public testing::Test {
 protected:
  JobFileTest() : folder_(TemporaryDirectory::Make("/tmp", "job-file-").value()) {}

  std::string path() const { return JobFile::PathOf(folder_.path(), "train"); }
  JobFile Create() { return JobFile::Create(path(), ::geteuid(), ::getegid()).value(); }
  rekindle_job_file Read() { return JobFile::ReadAt(path()).value(); }
  // What the job's hook does.
  void WriteJob(uint64_t step) {
    rekindle_job_file_job job = {};
    job.step = step;
    UniqueFd fd = OpenFile(path(), O_RDWR).value();
    ASSERT_EQ(::pwrite(fd.get(), &job, sizeof(job), offsetof(rekindle_job_file, job)),
              static_cast<ssize_t>(sizeof(job)));
  }
  ino_t Inode() {
    struct stat info;
    return ::stat(path().c_str(), &info) == 0 ? info.st_ino : 0;
  }

  const TemporaryDirectory folder_;
};

TEST_F(JobFileTest, TheLayoutIsThatOfThreeLines) {
  EXPECT_EQ(sizeof(rekindle_job_file), 192u);
  EXPECT_EQ(offsetof(rekindle_job_file, job), 64u);
  EXPECT_EQ(offsetof(rekindle_job_file, daemon), 128u);
}

TEST_F(JobFileTest, IsMadeForItsUserAlone) {
  JobFile file = Create();
  struct stat info;
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode, S_IFREG | 0600u);
  EXPECT_EQ(info.st_size, 192);
  ASSERT_EQ(::stat((folder_.path() + "/progress").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode, S_IFDIR | 0711u);
  const rekindle_job_file content = file.Read().value();
  EXPECT_EQ(content.job.unix_ns, 0);
  EXPECT_EQ(content.daemon.due, 0u);
}

TEST_F(JobFileTest, BelongsToTheJobsUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  JobFile::Create(path(), 65534, 65534).value();
  struct stat info;
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 65534u);
  EXPECT_EQ(info.st_gid, 65534u);
}

TEST_F(JobFileTest, ForgetsWhatTheJobSaidAndKeepsOurs) {
  JobFile file = Create();
  ASSERT_TRUE(file.SetDue().ok());
  const uint64_t due = Read().daemon.due;
  WriteJob(7);
  ASSERT_TRUE(file.ForgetJob().ok());
  EXPECT_EQ(Read().job.step, 0u);
  EXPECT_EQ(Read().daemon.due, due);
}

TEST_F(JobFileTest, IsKeptWithWhatTheJobSaid) {
  {
    JobFile file = Create();
    ASSERT_TRUE(file.MarkRestored().ok());
    ASSERT_TRUE(file.SetDue().ok());
  }
  const ino_t inode = Inode();
  const uint64_t restored = Read().daemon.restored;
  WriteJob(7);
  JobFile again = Create();
  EXPECT_EQ(Inode(), inode);
  const rekindle_job_file content = again.Read().value();
  EXPECT_EQ(content.job.step, 7u);
  EXPECT_EQ(content.daemon.restored, restored);
  // Nobody else would release whoever waits for the image of the daemon that is gone.
  EXPECT_EQ(content.daemon.released, content.daemon.due);
  EXPECT_EQ(content.daemon.taken, 0u);
  EXPECT_EQ(again.SetDue().value(), 2u);
}

TEST_F(JobFileTest, WhatIsNotOursIsReplaced) {
  const std::string other = folder_.path() + "/other";
  ASSERT_TRUE(WriteFileAtomically(other, std::string(192, 'x')).ok());
  Create();
  const auto replaced = [&](const char* what) {
    JobFile file = Create();
    EXPECT_TRUE(file.Read().ok()) << what;
    struct stat info;
    EXPECT_EQ(::lstat(path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode, S_IFREG | 0600u) << what;
    EXPECT_EQ(info.st_size, 192) << what;
    EXPECT_EQ(ReadFile(other).value(), std::string(192, 'x')) << what;
  };
  ASSERT_EQ(::truncate(path().c_str(), 100), 0);
  replaced("too short");
  ASSERT_EQ(::truncate(path().c_str(), 4096), 0);
  replaced("too long");
  ASSERT_EQ(::unlink(path().c_str()), 0);
  ASSERT_EQ(::link(other.c_str(), path().c_str()), 0);
  replaced("a second name of another file");
  ASSERT_EQ(::unlink(path().c_str()), 0);
  ASSERT_EQ(::symlink(other.c_str(), path().c_str()), 0);
  replaced("a link");
  ASSERT_EQ(::unlink(path().c_str()), 0);
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  replaced("a pipe");
  ASSERT_EQ(::chmod(path().c_str(), 0666), 0);
  replaced("open for all");
}

TEST_F(JobFileTest, ReadingWhatIsNoneSaysSo) {
  EXPECT_TRUE(absl::IsNotFound(JobFile::ReadAt(path()).status()));
  JobFile file = Create();
  ASSERT_EQ(::truncate(path().c_str(), 0), 0);
  EXPECT_TRUE(absl::IsDataLoss(file.Read().status()));
  ASSERT_TRUE(JobFile::Remove(path()).ok());
  EXPECT_TRUE(absl::IsNotFound(file.Read().status()));
  EXPECT_TRUE(absl::IsNotFound(file.SetDue().status()));
  EXPECT_TRUE(JobFile::Remove(path()).ok());
}

TEST_F(JobFileTest, DueReleasedAndTaken) {
  JobFile file = Create();
  EXPECT_EQ(file.SetDue().value(), 1u);
  ASSERT_TRUE(file.Release(true).ok());
  EXPECT_EQ(file.SetDue().value(), 2u);
  rekindle_job_file_daemon said = Read().daemon;
  EXPECT_EQ(said.due, 2u);
  EXPECT_EQ(said.released, 1u);
  EXPECT_EQ(said.taken, 1u);
  ASSERT_TRUE(file.Release(false).ok());
  ASSERT_TRUE(file.Release(true).ok());  // there is nothing left to release
  said = Read().daemon;
  EXPECT_EQ(said.released, 2u);
  EXPECT_EQ(said.taken, 1u);
}

TEST_F(JobFileTest, ThatAnImageIsStoredIsToldAndNotAtEachCall) {
  JobFile file = Create();
  ASSERT_TRUE(file.SetDue().ok());
  constexpr uint64_t kCalls = 1000;
  for (uint64_t call = 0; call < kCalls; ++call) ASSERT_TRUE(file.KeepWaiting().ok());
  EXPECT_GE(Read().daemon.storing, 1u);
  EXPECT_LT(Read().daemon.storing, kCalls);
  EXPECT_EQ(Read().daemon.due, 1u);
}

TEST_F(JobFileTest, TheDaemonsWritesLeaveTheJobsPart) {
  JobFile file = Create();
  WriteJob(5);
  ASSERT_TRUE(file.SetDue().ok());
  ASSERT_TRUE(file.MarkRestored().ok());
  EXPECT_EQ(Read().job.step, 5u);
}

TEST_F(JobFileTest, EveryRestoreHasALargerNumberInNewFilesToo) {
  uint64_t last = 0;
  for (int i = 0; i < 6; ++i) {
    if (i % 2 == 0) {
      ASSERT_TRUE(JobFile::Remove(path()).ok());
    }
    JobFile file = Create();
    ASSERT_TRUE(file.MarkRestored().ok());
    EXPECT_GT(Read().daemon.restored, last);
    last = Read().daemon.restored;
  }
}

TEST_F(JobFileTest, AChangeIsNoticed) {
  JobFile file = Create();
  while (file.WaitForChange(absl::ZeroDuration())) {
  }
  WriteJob(1);
  EXPECT_TRUE(file.WaitForChange(absl::ZeroDuration()));
  EXPECT_FALSE(file.WaitForChange(absl::ZeroDuration()));
  std::thread job([&] { WriteJob(2); });
  EXPECT_TRUE(file.WaitForChange(absl::InfiniteDuration()));
  job.join();
  EXPECT_EQ(Read().job.step, 2u);
}

// The kernel gives all of root's processes 128 together.
TEST_F(JobFileTest, ManyTakeOneInstanceOfInotify) {
  constexpr int kFiles = 30;
  std::vector<JobFile> files;
  for (int i = 0; i < kFiles; ++i)
    files.push_back(JobFile::Create(path() + std::to_string(i), ::geteuid(), ::getegid()).value());
  int instances = 0;
  const std::vector<std::string> descriptors = ListDirectory("/proc/self/fd").value();
  for (const std::string& fd : descriptors) {
    char target[64] = {};
    const ssize_t n = ::readlink(("/proc/self/fd/" + fd).c_str(), target, sizeof target - 1);
    instances += n > 0 && std::string(target) == "anon_inode:inotify";
  }
  EXPECT_LE(instances, 1);
  // Each learns of its own file's changes, whoever reads the events.
  for (JobFile& file : files) {
    while (file.WaitForChange(absl::ZeroDuration())) {
    }
  }
  ASSERT_TRUE(files[3].SetDue().ok());
  ASSERT_TRUE(files[7].SetDue().ok());
  for (int i = 0; i < kFiles; ++i)
    EXPECT_EQ(files[i].WaitForChange(absl::ZeroDuration()), i == 3 || i == 7) << i;
  std::vector<std::thread> waiting;
  for (int i = 0; i < kFiles; ++i)
    waiting.emplace_back([&file = files[i]] { EXPECT_TRUE(file.WaitForChange(absl::InfiniteDuration())); });
  for (JobFile& file : files) ASSERT_TRUE(file.ForgetJob().ok());
  for (std::thread& thread : waiting) thread.join();
}

// A daemon that supervises the job again, beside the one that has ended.
TEST_F(JobFileTest, ThoseOfOneFileEachLearnOfIt) {
  std::optional<JobFile> first = Create();
  JobFile second = Create();
  for (JobFile* file : {&*first, &second}) {
    while (file->WaitForChange(absl::ZeroDuration())) {
    }
  }
  WriteJob(1);
  EXPECT_TRUE(second.WaitForChange(absl::ZeroDuration()));
  EXPECT_TRUE(first->WaitForChange(absl::ZeroDuration()));
  first.reset();
  WriteJob(2);
  EXPECT_TRUE(second.WaitForChange(absl::ZeroDuration()));
}

TEST_F(JobFileTest, WhoDoesNotWaitIsTold) {
  absl::Mutex mutex;
  int times = 0;
  JobFile file = Create();
  JobFile other = Create();  // of the same
  ASSERT_TRUE(file.OnChange([&] {
    absl::MutexLock lock(&mutex);
    ++times;
  }));
  const auto await_told = [&] {
    absl::MutexLock lock(&mutex);
    const auto told = [&] { return times > 0; };
    mutex.Await(absl::Condition(&told));
  };
  for (uint64_t step = 1; step < 4; ++step) {
    while (file.WaitForChange(absl::ZeroDuration())) {
    }
    {
      absl::MutexLock lock(&mutex);
      times = 0;
    }
    // Who waits is told as well, whoever reads the events.
    std::thread waits([&] { EXPECT_TRUE(other.WaitForChange(absl::InfiniteDuration())); });
    WriteJob(step);
    await_told();
    EXPECT_TRUE(file.WaitForChange(absl::ZeroDuration()));
    waits.join();
  }
}

}  // namespace
}  // namespace rekindle::daemon
