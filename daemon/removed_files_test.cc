#include "daemon/removed_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A moment, with what happened to files before it told from what happens after it.
int64_t Moment() {
  constexpr int64_t kApart = 50'000'000;
  const auto pass = [](int64_t until) {
    timespec now;
    do {
      ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
    } while (Nanos(now) < until);
  };
  pass(UnixNanos() + kApart);
  const int64_t moment = UnixNanos();
  pass(moment + kApart);
  return moment;
}

class RemovedFilesTest : public testing::Test {
 protected:
  RemovedFiles::Options Options() const {
    RemovedFiles::Options options;
    options.job = "job";
    options.folders = {Path("")};
    options.folders[0].pop_back();
    options.user.uid = ::geteuid();
    options.user.gid = ::getegid();
    options.since_unix_ns = since_;
    return options;
  }
  void SetUp() override { ASSERT_EQ(::mkdir((place_.path() + "/run").c_str(), 0755), 0); }
  std::string Path(const std::string& name) const { return absl::StrCat(place_.path(), "/run/", name); }
  std::string Kept() const { return absl::StrCat(place_.path(), "/", KeptFolderBeside("job", "run")); }
  std::string KeptInside() const { return Path(KeptFolderOf("job")); }
  void Write(const std::string& name, const std::string& content) const {
    ASSERT_TRUE(WriteFileAtomically(Path(name), content).ok());
  }

  const TemporaryDirectory place_ = TemporaryDirectory::Make("/tmp", "removed-").value();
  const int64_t since_ = Moment();
};

TEST_F(RemovedFilesTest, WhatIsRemovedAfterTheImageComesBackWithItsFolder) {
  RemovedFiles removed(Options());
  ASSERT_EQ(::mkdir(Path("step-1").c_str(), 0750), 0);
  Write("step-1/model.pt", "weights");
  Write("other", "stays");
  EXPECT_THAT(removed.Keep(), IsEmpty());
  const int64_t image = Moment();
  ASSERT_TRUE(RemoveTree(Path("step-1")).ok());
  const std::vector<v1::FileRollback> done = removed.PutBack(image);
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].path(), Path("step-1/model.pt"));
  EXPECT_EQ(done[0].action(), v1::FileRollback::MADE_AGAIN);
  EXPECT_EQ(ReadFile(Path("step-1/model.pt")).value(), "weights");
  // It is removed once more, and the next life goes on from the same image.
  ASSERT_TRUE(RemoveTree(Path("step-1")).ok());
  EXPECT_THAT(removed.PutBack(image), SizeIs(1));
  EXPECT_EQ(ReadFile(Path("step-1/model.pt")).value(), "weights");
}

TEST_F(RemovedFilesTest, WhatNobodyWaitsForIsDoneBeforeWhatComesNext) {
  RemovedFiles removed(Options());
  Write("model.pt", "weights");
  removed.KeepMeanwhile();
  removed.Forget(INT64_MIN);
  EXPECT_TRUE(PathExists(Kept()));
  const int64_t image = Moment();
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  EXPECT_THAT(removed.PutBack(image), SizeIs(1));
}

TEST_F(RemovedFilesTest, WhatNobodyWaitedForIsToldLater) {
  Write("model.pt", std::string(1 << 20, 'w'));
  RemovedFiles::Options options = Options();
  RemovedFiles(options).Keep();
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  options.share_of_free = UINT32_MAX;
  RemovedFiles removed(options);
  removed.KeepMeanwhile();
  EXPECT_THAT(removed.Keep(), ElementsAre(HasSubstr("1 file of 1.0 MiB that the job has removed below")));
}

TEST_F(RemovedFilesTest, WhatWasGoneBeforeTheImageStaysGone) {
  RemovedFiles removed(Options());
  Write("model.pt", "weights");
  removed.Keep();
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  const int64_t image = Moment();
  EXPECT_THAT(removed.PutBack(image), IsEmpty());
  EXPECT_FALSE(PathExists(Path("model.pt")));
}

TEST_F(RemovedFilesTest, WhatIsWrittenToWhenItHasNoNameAnyMoreStaysGone) {
  RemovedFiles removed(Options());
  Write("model.pt", "weights");
  const UniqueFd open = OpenFile(Path("model.pt"), O_WRONLY).value();
  removed.Keep();
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  removed.Keep();
  const int64_t image = Moment();
  ASSERT_TRUE(WriteFully(open.get(), "more", 4, "model.pt").ok());
  EXPECT_THAT(removed.PutBack(image), IsEmpty());
  removed.Forget(image);
  EXPECT_FALSE(PathExists(Kept()));
}

TEST_F(RemovedFilesTest, WhatIsRemovedAgainComesBackFromALaterImage) {
  RemovedFiles removed(Options());
  Write("model.pt", "weights");
  removed.Keep();
  const int64_t first = Moment();
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  ASSERT_THAT(removed.PutBack(first), SizeIs(1));
  const int64_t second = Moment();
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  EXPECT_THAT(removed.PutBack(second), SizeIs(1));
}

// A copy of the folders has times of its own.
TEST_F(RemovedFilesTest, WhatWasGoneBeforeTheImageStaysGoneWhereTheFolderWasCopied) {
  Write("before", "removed before the image");
  Write("after", "removed after it");
  const int64_t earlier = Moment();
  int64_t image;
  {
    RemovedFiles removed(Options());
    removed.Keep();
    ASSERT_EQ(::unlink(Path("before").c_str()), 0);
    image = Moment();
    removed.Keep();
    ASSERT_EQ(::unlink(Path("after").c_str()), 0);
    removed.Forget(earlier, /*ended=*/true);
  }
  const std::vector<std::string> kept = ListDirectory(Kept()).value();
  ASSERT_THAT(kept, SizeIs(2));
  for (const std::string& name : kept) ASSERT_EQ(::chmod((Kept() + "/" + name).c_str(), 0640), 0);
  RemovedFiles removed(Options());
  const std::vector<v1::FileRollback> done = removed.PutBack(image);
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_EQ(done[0].path(), Path("after"));
  // It has its name again, which counts from now on.
  ASSERT_EQ(::unlink(Path("after").c_str()), 0);
  const int64_t later = Moment();
  removed.Keep();
  removed.Forget(later);
  EXPECT_FALSE(PathExists(Kept()));
}

TEST_F(RemovedFilesTest, WhatWasMadeAfterTheImageStaysGone) {
  RemovedFiles removed(Options());
  const int64_t image = Moment();
  Write("model.pt", "weights");
  removed.Keep();
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  EXPECT_THAT(removed.PutBack(image), IsEmpty());
}

TEST_F(RemovedFilesTest, HasTheNameThatItHadInTheImage) {
  RemovedFiles removed(Options());
  Write("model.tmp", "weights");
  removed.Keep();
  const int64_t first = Moment();
  ASSERT_EQ(::rename(Path("model.tmp").c_str(), Path("model.pt").c_str()), 0);
  removed.Keep();
  const int64_t second = Moment();
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  ASSERT_THAT(removed.PutBack(second), SizeIs(1));
  EXPECT_TRUE(PathExists(Path("model.pt")));
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  ASSERT_THAT(removed.PutBack(first), SizeIs(1));
  EXPECT_TRUE(PathExists(Path("model.tmp")));
}

TEST_F(RemovedFilesTest, ANewerFileOfTheNameDoesAsWell) {
  RemovedFiles removed(Options());
  Write("last.pt", "older");
  removed.Keep();
  const int64_t image = Moment();
  Write("last.pt", "newer");
  EXPECT_THAT(removed.PutBack(image), IsEmpty());
  EXPECT_EQ(ReadFile(Path("last.pt")).value(), "newer");
  removed.Forget(image);
  EXPECT_FALSE(PathExists(Kept())) << "it takes up room for nothing";
}

TEST_F(RemovedFilesTest, IsKeptForAsLongAsAnImageMayNeedIt) {
  RemovedFiles removed(Options());
  Write("model.pt", "weights");
  removed.Keep();
  const int64_t image = Moment();
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  const int64_t next = Moment();
  removed.Forget(image);
  EXPECT_TRUE(PathExists(Kept()));
  removed.Forget(next);
  EXPECT_FALSE(PathExists(Kept()));
  Write("model.pt", "weights");
  removed.Keep();
  EXPECT_TRUE(PathExists(Kept()));
  removed.ForgetAll();
  EXPECT_FALSE(PathExists(Kept()));
  EXPECT_TRUE(PathExists(Path("model.pt")));
}

TEST_F(RemovedFilesTest, NobodyTakesTheSecondNamesForCheckpoints) {
  RemovedFiles removed(Options());
  Write("100%.pt", "weights");
  removed.Keep();
  const std::vector<std::string> names = ListDirectory(Kept()).value();
  ASSERT_THAT(names, SizeIs(1));
  EXPECT_FALSE(absl::EndsWith(names[0], ".pt"));
  const int64_t image = Moment();
  ASSERT_EQ(::unlink(Path("100%.pt").c_str()), 0);
  ASSERT_THAT(removed.PutBack(image), SizeIs(1));
  EXPECT_TRUE(PathExists(Path("100%.pt")));
}

// Trainings read the steps of their checkpoints from all names that they find.
TEST_F(RemovedFilesTest, NothingIsFoundInTheFolderButWhatTheJobHasThere) {
  RemovedFiles removed(Options());
  Write("step-1.pt", "weights");
  removed.Keep();
  EXPECT_TRUE(PathExists(Kept()));
  EXPECT_THAT(ListDirectory(Path("")).value(), ElementsAre("step-1.pt"));
}

TEST_F(RemovedFilesTest, WhatEarlierVersionsHaveKeptComesBackAndGoes) {
  Write("model.pt", "weights");
  RemovedFiles(Options()).Keep();
  ASSERT_EQ(::rename(Kept().c_str(), KeptInside().c_str()), 0);
  Write("newer.pt", "weights");
  RemovedFiles removed(Options());
  removed.Keep();
  EXPECT_THAT(ListDirectory(Kept()).value(), ElementsAre(HasSubstr("@newer.pt.")));
  const int64_t image = Moment();
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  ASSERT_EQ(::unlink(Path("newer.pt").c_str()), 0);
  EXPECT_THAT(removed.PutBack(image), SizeIs(2));
  EXPECT_EQ(ReadFile(Path("model.pt")).value(), "weights");
  removed.ForgetAll();
  EXPECT_FALSE(PathExists(Kept()));
  EXPECT_FALSE(PathExists(KeptInside()));
}

TEST_F(RemovedFilesTest, WhereSomebodyHasTheNameBesideTheyAreKeptInside) {
  Write("model.pt", "weights");
  const std::string others = place_.path() + "/others";
  ASSERT_EQ(::mkdir(others.c_str(), 0700), 0);
  ASSERT_EQ(::symlink("others", Kept().c_str()), 0);
  RemovedFiles removed(Options());
  removed.Keep();
  EXPECT_THAT(ListDirectory(others).value(), IsEmpty());
  EXPECT_THAT(ListDirectory(KeptInside()).value(), ElementsAre(HasSubstr("@model.pt.")));
  ASSERT_EQ(::unlink(Kept().c_str()), 0);
  if (::geteuid() == 0) {
    ASSERT_EQ(::mkdir(Kept().c_str(), 0777), 0);
    ASSERT_EQ(::chown(Kept().c_str(), 1, 1), 0);
    Write("newer.pt", "weights");
    removed.Keep();
    EXPECT_THAT(ListDirectory(Kept()).value(), IsEmpty());
    EXPECT_THAT(ListDirectory(KeptInside()).value(), SizeIs(2));
  }
  removed.ForgetAll();
  EXPECT_FALSE(PathExists(KeptInside()));
}

TEST_F(RemovedFilesTest, WhatBelongsToAFolderThatIsGoneGoesAtTheEnd) {
  Write("model.pt", "weights");
  RemovedFiles removed(Options());
  removed.Keep();
  ASSERT_TRUE(RemoveTree(Path("")).ok());
  EXPECT_TRUE(PathExists(Kept()));
  removed.ForgetAll();
  EXPECT_FALSE(PathExists(Kept()));
}

TEST(KeptFolderBeside, NoTwoAreTheSame) {
  EXPECT_NE(KeptFolderBeside("a", "b.c"), KeptFolderBeside("a.b", "c"));
  EXPECT_NE(KeptFolderBeside("a", "b"), KeptFolderOf("a.b"));
}

TEST_F(RemovedFilesTest, TakesUpNoMoreOfTheDiskThanItsShare) {
  RemovedFiles::Options options = Options();
  options.share_of_free = UINT32_MAX;
  RemovedFiles removed(options);
  Write("model.pt", std::string(1 << 20, 'w'));
  EXPECT_THAT(removed.Keep(), ElementsAre(HasSubstr("1 file of 1.0 MiB below")));
  EXPECT_FALSE(PathExists(Kept()));
  // The disk has filled up since.
  EXPECT_THAT(RemovedFiles(Options()).Keep(), IsEmpty());
  EXPECT_TRUE(PathExists(Kept()));
  EXPECT_THAT(removed.Keep(), ElementsAre(HasSubstr("beyond what is kept")));
  EXPECT_THAT(ListDirectory(Kept()).value(), IsEmpty());
  // So that what is removed already would be missing.
  EXPECT_THAT(RemovedFiles(Options()).Keep(), IsEmpty());
  ASSERT_EQ(::unlink(Path("model.pt").c_str()), 0);
  EXPECT_THAT(removed.Keep(), ElementsAre(HasSubstr("1 file of 1.0 MiB that the job has removed below")));
  EXPECT_THAT(ListDirectory(Kept()).value(), IsEmpty());
}

TEST_F(RemovedFilesTest, LeavesAloneWhatIsNotTheJobs) {
  RemovedFiles::Options options = Options();
  ASSERT_EQ(::mkdir(Path("data").c_str(), 0755), 0);
  Write("data/ignored", "x");
  Write("base.db-wal", "of a database a part is of no use");
  Write("log.rekindle-tail-1", "ours");
  Write("older", "x");
  ASSERT_EQ(::symlink("older", Path("link").c_str()), 0);
  const timespec old[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, Path("data").c_str(), old, 0), 0);
  options.ignored = {Path("data")};
  options.since_unix_ns = Moment();
  Write("kept", "x");
  Write("base.db-wal", "x");
  RemovedFiles removed(options);
  removed.Keep();
  EXPECT_THAT(ListDirectory(Kept()).value(), ElementsAre(HasSubstr("@kept.")));
}

TEST(RemovedFilesOf, LooksBelowTheFoldersThatWereNamed) {
  v1::SupervisedJobRecord record;
  record.set_name("job");
  record.set_working_directory("/home/me/code");
  EXPECT_THAT(RemovedFilesOf(record).folders, IsEmpty());
  for (const char* path : {"/scratch/run/sub", "/scratch/run/", "/scratch/runs"})
    record.mutable_policy()->add_keep_removed(path);
  EXPECT_THAT(RemovedFilesOf(record).folders, ElementsAre("/scratch/run", "/scratch/runs"));
  record.mutable_policy()->mutable_rollback()->set_mode(v1::Rollback::NONE);
  EXPECT_THAT(RemovedFilesOf(record).folders, IsEmpty());
}

TEST_F(RemovedFilesTest, OfOneThatHasEndedOnlyWhatIsGoneStaysKept) {
  Write("there", "x");
  Write("gone", "y");
  RemovedFiles removed(Options());
  removed.Keep();
  ASSERT_EQ(::unlink(Path("gone").c_str()), 0);
  removed.Forget(0, /*ended=*/true);
  EXPECT_THAT(ListDirectory(Kept()).value(), ElementsAre(HasSubstr("@gone.")));
}

}  // namespace
}  // namespace rekindle::daemon
