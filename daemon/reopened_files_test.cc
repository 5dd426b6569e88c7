#include "daemon/reopened_files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int64_t kSecond = 1'000'000'000;
constexpr char kLines[] = "step,loss\n1,0.5\n2,0.4\n";

class ReopenedFilesTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }

  // As it was when the job ended: written after the image.
  void Write(const std::string& name, const std::string& content, int64_t modified_ns = 0) const {
    const UniqueFd file(::open(Path(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_TRUE(file.valid()) << name;
    ASSERT_TRUE(WriteFully(file.get(), content.data(), content.size(), name).ok());
    SetTime(file.get(), modified_ns != 0 ? modified_ns : image_ns_ + kSecond);
  }
  // As the job does it once it has gone back.
  void Append(const std::string& name, const std::string& content) const {
    const UniqueFd file(::open(Path(name).c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    ASSERT_TRUE(file.valid()) << name;
    ASSERT_TRUE(WriteFully(file.get(), content.data(), content.size(), name).ok());
    SetTime(file.get(), image_ns_ + 20 * kSecond);
  }
  static void SetTime(int file, int64_t ns) {
    const timespec times[2] = {{0, UTIME_OMIT}, {ns / kSecond, ns % kSecond}};
    ASSERT_EQ(::futimens(file, times), 0);
  }

  ReopenedFiles::Options Options() const {
    ReopenedFiles::Options options;
    options.user = {::geteuid(), ::getegid(), {}};
    options.folders = {folder_.path()};
    options.image_unix_ns = image_ns_;
    options.ended_unix_ns = image_ns_ + 10 * kSecond;
    return options;
  }
  std::vector<std::string> Find(ReopenedFiles::Options options) {
    files_.LookFor(std::move(options));
    std::vector<std::string> names;
    for (const std::string& path : files_.Candidates(absl::InfiniteDuration()))
      names.push_back(path.substr(folder_.path().size() + 1));
    return names;
  }
  // Of a look that begins now: what an earlier one found was taken.
  std::vector<std::string> AwaitAppended(const std::string& control) {
    std::vector<std::string> names;
    const Deadline deadline(absl::Seconds(60));
    while (!deadline.passed() && std::find(names.begin(), names.end(), control) == names.end()) {
      absl::SleepFor(absl::Milliseconds(1));
      for (const auto& [path, is_newer] : files_.AppendedAgain()) {
        names.push_back(path.substr(folder_.path().size() + 1));
        if (is_newer) newer_.push_back(names.back());
      }
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "reopened-").value();
  const int64_t image_ns_ = UnixNanos() / kSecond * kSecond - 1000 * kSecond;
  ReopenedFiles files_;
  std::vector<std::string> newer_;  // than the image, of those that were appended to
};

TEST_F(ReopenedFilesTest, WhatWasWrittenBetweenTheImageAndTheEnd) {
  ASSERT_EQ(::mkdir(Path("runs").c_str(), 0700), 0);
  ASSERT_EQ(::mkdir(Path(".cache").c_str(), 0700), 0);
  Write("metrics.csv", kLines);
  Write("runs/events.out.tfevents.1.host.example.12.0", std::string("\0\1\2\0 \xff", 6));
  Write("runs/events.out.tfevents.1.host.example.13.0", std::string("\0\1\2\0 \xff", 6));
  Write("before.txt", kLines, image_ns_ - kSecond);
  Write("of-others.txt", kLines, image_ns_ + 15 * kSecond);
  Write("weights.pt", std::string("PK\3\4\0\0", 6));
  Write("empty.txt", "");
  Write(".hidden", kLines);
  Write(".cache/log", kLines);
  Write("log.rekindle-tail-20261122T120001Z", kLines);
  Write("data.db-wal", kLines);
  Write("open.log", kLines);
  Write("ignored.txt", kLines);
  Write("tracked.txt", kLines);
  ReopenedFiles::Options options = Options();
  options.in_image = {Path("open.log")};
  options.pids = {12};
  options.ignored = {Path("ignored.txt")};
  options.tracked = {Path("track*")};
  EXPECT_THAT(Find(options), ElementsAre("metrics.csv", "runs/events.out.tfevents.1.host.example.12.0"));
  options.folders.clear();
  EXPECT_THAT(Find(options), IsEmpty());
  EXPECT_THAT(files_.AppendedAgain(), IsEmpty());
}

TEST_F(ReopenedFilesTest, OnlyWhatIsAppendedToAgainIsTold) {
  for (const char* name :
       {"log.txt", "state.json", "whole.csv", "grown.csv", "replaced.txt", "left.txt", "gone.txt"})
    Write(name, kLines);
  Write("runs.tfevents", kLines);
  ASSERT_EQ(Find(Options()).size(), 8u);
  Append("log.txt", "1,0.5\n");
  Write("state.json", "{\"step\": 1, \"and\": \"another text that is as long, or longer\"}\n",
        image_ns_ + 20 * kSecond);
  // As one that is written as a whole with all that it had: it begins with less, or the same.
  Write("whole.csv", "step,loss\n1,0.5\n", image_ns_ + 20 * kSecond);
  Write("grown.csv", kLines, image_ns_ + 20 * kSecond);
  Write("new", absl::StrCat(kLines, "3,0.3\n"), image_ns_ + 20 * kSecond);
  ASSERT_EQ(::rename(Path("new").c_str(), Path("replaced.txt").c_str()), 0);
  ASSERT_EQ(::unlink(Path("gone.txt").c_str()), 0);
  Append("runs.tfevents", std::string("\0\0\0", 3));
  EXPECT_THAT(AwaitAppended("log.txt"), ElementsAre("log.txt"));

  // The others are known by now, but for the one of which nothing was seen.
  Append("whole.csv", "2,0.4\n3,0.3\n4,0.2\n");
  Append("grown.csv", "3,0.3\n");
  Append("log.txt", "2,0.4\n");
  Append("left.txt", "1,0.5\n");
  EXPECT_THAT(AwaitAppended("left.txt"), ElementsAre("left.txt"));
}

TEST_F(ReopenedFilesTest, WhichWereMadeAfterTheImage) {
  Write("older.txt", kLines);
  if (BornUnixNanos(AT_FDCWD, Path("older.txt"), 0) == 0)
    GTEST_SKIP() << "needs a file system that tells when files were made";
  // By whose ticks the kernel tells that.
  const auto pass = [] {
    for (const int64_t until = UnixNanos() + kSecond / 20; UnixNanos() < until;) {
    }
  };
  pass();
  ReopenedFiles::Options options = Options();
  options.image_unix_ns = UnixNanos();
  options.ended_unix_ns = INT64_MAX;
  pass();
  Write("newer.txt", kLines, options.image_unix_ns + 1);
  Write("older.txt", kLines, options.image_unix_ns + 1);
  ASSERT_EQ(Find(options).size(), 2u);
  Append("older.txt", "1,0.5\n");
  Append("newer.txt", "1,0.5\n");
  EXPECT_THAT(AwaitAppended("newer.txt"), ElementsAre("newer.txt", "older.txt"));
  EXPECT_THAT(newer_, ElementsAre("newer.txt"));
}

TEST_F(ReopenedFilesTest, WhatOthersAppendIsNew) {
  for (const char* name : {"ours.csv", "theirs.csv", "their.log"})
    Write(name, absl::StrCat("saving\n", kLines, "saving\n"));
  ASSERT_EQ(Find(Options()).size(), 3u);
  Append("theirs.csv", "3,0.3\n");
  Append("their.log", "saving\n");
  Append("ours.csv", "saving\n1,0.5\n");
  EXPECT_THAT(AwaitAppended("ours.csv"), ElementsAre("ours.csv"));
}

TEST_F(ReopenedFilesTest, WhatIsWrittenOnceTheJobMayBeBackIsNotLookedAt) {
  Write("log.txt", kLines, UnixNanos() + kSecond);
  EXPECT_THAT(Find(Options()), IsEmpty());
  ReopenedFiles::Options options = Options();
  options.ended_unix_ns = INT64_MAX;
  EXPECT_THAT(Find(options), IsEmpty());
}

TEST_F(ReopenedFilesTest, WhatTheImageSeesTo) {
  v1::JobManifest manifest;
  manifest.set_working_directory("/work/here");
  manifest.add_processes()->set_pid(12);
  manifest.add_track_paths("/work/here/*.txt");
  v1::WrittenFile* log = manifest.add_written_files();
  log->set_path("/logs/job.log");
  log->set_inode(7);
  log->set_born_ns(8);
  manifest.add_written_files()->set_path("/work/here/out");
  v1::WrittenFile* memory = manifest.add_written_files();
  memory->set_path("/dev/shm/psm_1");
  memory->set_shared_memory(true);
  v1::Rollback rollback;
  rollback.add_ignore_paths("/work/here/kept");
  ReopenedFiles::Options options = PlacesOf(manifest, rollback);
  EXPECT_THAT(options.folders, ElementsAre("/work/here", "/logs"));
  EXPECT_THAT(options.tracked, ElementsAre("/work/here/*.txt"));
  EXPECT_THAT(options.ignored, ElementsAre("/work/here/kept"));
  EXPECT_TRUE(options.in_image.contains("/work/here/out"));
  EXPECT_THAT(options.pids, ElementsAre(12));
  EXPECT_TRUE(options.inodes_in_image.contains({7, 8}));
  rollback.set_mode(v1::Rollback::NONE);
  EXPECT_THAT(PlacesOf(manifest, rollback).folders, IsEmpty());
  rollback.set_mode(v1::Rollback::APPEND);
  log->set_in_own_mounts(true);
  EXPECT_THAT(PlacesOf(manifest, rollback).folders, IsEmpty());
}

TEST_F(ReopenedFilesTest, AnothersLogIsThatOnes) {
  const std::set<std::string> paths = {Path("log.txt"), Path("another")};
  Write("log.txt", kLines);
  UniqueFd file(::open(Path("log.txt").c_str(), O_RDONLY | O_CLOEXEC));
  constexpr NamesOfFiles kTrusted = NamesOfFiles::kTrusted, kChecked = NamesOfFiles::kChecked;
  EXPECT_THAT(WrittenByOthers(paths, {}, kTrusted), IsEmpty());
  file.Reset(::open(Path("log.txt").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  EXPECT_THAT(WrittenByOthers(paths, {}, kTrusted), ElementsAre(Pair(Path("log.txt"), ::getpid())));
  EXPECT_THAT(WrittenByOthers(paths, {}, kChecked), ElementsAre(Pair(Path("log.txt"), ::getpid())));
  EXPECT_THAT(WrittenByOthers(paths, {::getpid()}, kChecked), IsEmpty());
}

TEST_F(ReopenedFilesTest, AChildThatIsStillOursIsNoOther) {
  const std::set<std::string> paths = {Path("log.txt")};
  Write("log.txt", kLines);
  const UniqueFd file(::open(Path("log.txt").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_THAT(WrittenByOthers(paths, {::getpid()}, NamesOfFiles::kChecked), IsEmpty());
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  SubprocessOptions another;
  another.argv = {"sleep", "1000"};
  another.descriptors = {{file.get(), 5}};
  auto started = Subprocess::Start(another);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_THAT(WrittenByOthers(paths, {::getpid()}, NamesOfFiles::kChecked),
              ElementsAre(Pair(Path("log.txt"), started->pid())));
  ::kill(started->pid(), SIGKILL);
  EXPECT_TRUE(started->Wait().ok());
}

}  // namespace
}  // namespace rekindle::daemon
