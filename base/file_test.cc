#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/test_child.h"
#include "base/test_descriptors.h"

namespace rekindle {
namespace {

TEST(FileTest, WriteFileAtomicallyReplacesTheWholeFileAndLeavesNoTemporary) {
  auto dir = TemporaryDirectory::Make("/tmp", "rk-file-");
  ASSERT_TRUE(dir.ok()) << dir.status();
  std::string path = dir->path() + "/f";
  ASSERT_TRUE(WriteFileAtomically(path, "a long first version").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "second").ok());
  EXPECT_EQ(*ReadFile(path), "second");
  EXPECT_EQ(ListDirectory(dir->path())->size(), 1u);
  struct stat info;
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(FileTest, ReplaceFileReplacesTheWholeFileAndLeavesNoTemporary) {
  auto dir = TemporaryDirectory::Make("/tmp", "rk-file-");
  ASSERT_TRUE(dir.ok()) << dir.status();
  const std::string path = dir->path() + "/f";
  ASSERT_TRUE(ReplaceFile(path, "a long first version").ok());
  ASSERT_TRUE(ReplaceFile(path, "second").ok());
  EXPECT_EQ(*ReadFile(path), "second");
  // Where it can't be replaced, what was there stays.
  ASSERT_TRUE(MakeDirectories(dir->path() + "/d/inside").ok());
  const absl::Status refused = ReplaceFile(dir->path() + "/d", "third");
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find(dir->path() + "/d"), std::string::npos) << refused;
  EXPECT_EQ(*ListDirectory(dir->path()), (std::vector<std::string>{"d", "f"}));
}

TEST(FileTest, AFileThatIsNotWrittenForWantOfDescriptorsHasRoomWhateverItsName) {
  auto dir = TemporaryDirectory::Make("/tmp", "rk-file-");
  ASSERT_TRUE(dir.ok()) << dir.status();
  absl::Status refused;
  {
    const FewDescriptorsLeft none;
    refused = ReplaceFile(dir->path() + "/No space left on device", "x");
  }
  EXPECT_EQ(ErrnoOf(refused), EMFILE);
  EXPECT_EQ(refused.message().find("Free some space"), std::string::npos) << refused;
}

TEST(FileTest, ErrorsNameThePathAndMapToTheirCode) {
  auto missing = ReadFile("/no/such/file");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("/no/such/file"), std::string::npos);
}

TEST(FileTest, ReadsFilesOfUnknownSize) {
  auto content = ReadFile("/proc/self/maps");
  ASSERT_TRUE(content.ok());
  EXPECT_GT(content->size(), 100u);
}

TEST(FileTest, AFileIsBornWhenItIsMade) {
  auto dir = TemporaryDirectory::Make("/tmp", "rk-file-");
  ASSERT_TRUE(dir.ok()) << dir.status();
  const std::string path = dir->path() + "/f", link = dir->path() + "/link";
  EXPECT_EQ(BornUnixNanos(AT_FDCWD, path, 0), 0) << "it is not there";
  ASSERT_TRUE(WriteFileAtomically(path, "x").ok());
  const int64_t born = BornUnixNanos(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
  if (born == 0) GTEST_SKIP() << "the file system does not tell";
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  UniqueFd fd = OpenFile(path, O_PATH).value();
  EXPECT_EQ(BornUnixNanos(fd.get(), "", AT_EMPTY_PATH), born);
  EXPECT_GT(born, 1'000'000'000);
  ASSERT_EQ(::symlink(path.c_str(), link.c_str()), 0);
  EXPECT_EQ(BornUnixNanos(AT_FDCWD, link, 0), born);
}

TEST(FileTest, TemporaryDirectoryRemovesItsTreeButNotWhatLinksPointTo) {
  auto outside = TemporaryDirectory::Make("/tmp", "rk-out-");
  ASSERT_TRUE(WriteFileAtomically(outside->path() + "/keep", "x").ok());
  std::string path;
  {
    auto dir = TemporaryDirectory::Make("/tmp", "rk-in-");
    path = dir->path();
    ASSERT_TRUE(MakeDirectories(path + "/a/b/c").ok());
    ASSERT_EQ(::symlink(outside->path().c_str(), (path + "/a/link").c_str()), 0);
  }
  EXPECT_FALSE(PathExists(path));
  EXPECT_TRUE(PathExists(outside->path() + "/keep"));
}

TEST(FileTest, TreesAreRemovedWithoutADescriptorLeft) {
  auto directory = TemporaryDirectory::Make("/tmp", "rekindle-file-");
  ASSERT_TRUE(directory.ok());
  const std::string tree = directory->path() + "/-rf tree";
  ASSERT_TRUE(MakeDirectories(tree + "/in/it").ok());
  ASSERT_TRUE(WriteFileAtomically(tree + "/in/file", "content").ok());
  UniqueFd others[8];  // of which another process has none
  for (UniqueFd& other : others) other = OpenFile(tree, O_PATH).value();
  {
    FewDescriptorsLeft none;
    EXPECT_EQ(RemoveTree(tree), absl::OkStatus());
    EXPECT_EQ(RemoveTree(tree), absl::OkStatus());
  }
  EXPECT_FALSE(PathExists(tree));
}

TEST(FileTest, MakeDirectoriesSaysWhenAFileIsInTheWay) {
  auto dir = TemporaryDirectory::Make("/tmp", "rk-file-");
  ASSERT_TRUE(WriteFileAtomically(dir->path() + "/f", "x").ok());
  EXPECT_FALSE(MakeDirectories(dir->path() + "/f").ok());
}

TEST(FileTest, TheSizeOfWhatIsNotThereIsZero) {
  auto dir = TemporaryDirectory::Make("/tmp", "rk-file-");
  const std::string path = dir->path() + "/f";
  EXPECT_EQ(FileSize(path), 0u);
  EXPECT_EQ(FileSize(""), 0u);
  ASSERT_TRUE(WriteFileAtomically(path, "abc").ok());
  ASSERT_EQ(::symlink(path.c_str(), (dir->path() + "/link").c_str()), 0);
  EXPECT_EQ(FileSize(dir->path() + "/link"), 3u);
}

TEST(FileTest, AnOpenedFileIsAtItsPathUntilItIsRemovedOrReplaced) {
  auto dir = TemporaryDirectory::Make("/tmp", "rk-file-");
  const std::string path = dir->path() + "/file";
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  auto file = OpenFile(path, O_RDONLY);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(IsFileAt(*file, path));
  ASSERT_TRUE(WriteFileAtomically(path, "two").ok());
  EXPECT_FALSE(IsFileAt(*file, path));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  EXPECT_FALSE(IsFileAt(*file, path));
  EXPECT_FALSE(IsFileAt(UniqueFd(), "/"));
}

TEST(FileTest, ALockedFileHasItsNameAndItsContentAndIsLocked) {
  auto dir = TemporaryDirectory::Make("/tmp", "rk-file-");
  const std::string path = dir->path() + "/mark";
  {
    auto mark = MakeLockedFile(path, "who");
    ASSERT_TRUE(mark.ok()) << mark.status();
    EXPECT_EQ(*ReadFile(path), "who");
    EXPECT_EQ(ListDirectory(dir->path())->size(), 1u);
    EXPECT_TRUE(absl::IsUnavailable(LockFile(path, LOCK_EX | LOCK_NB).status()));
    auto other = OpenFile(path, O_RDWR);
    ASSERT_TRUE(other.ok()) << other.status();
    for (absl::Duration patience : {absl::ZeroDuration(), absl::Milliseconds(5)}) {
      const absl::StatusOr<bool> locked = LockWithin(*other, LOCK_SH, patience, path);
      EXPECT_TRUE(locked.ok() && !*locked) << locked.status();
    }
  }
  EXPECT_TRUE(LockFile(path, LOCK_EX | LOCK_NB).ok());
  EXPECT_TRUE(absl::IsNotFound(MakeLockedFile(dir->path() + "/gone/mark", "").status()));
}

TEST(FileTest, WhoWaitsLongForALockSaysForWhom) {
  auto dir = TemporaryDirectory::Make("/tmp", "rk-file-");
  ASSERT_TRUE(dir.ok()) << dir.status();
  const std::string path = dir->path() + "/lock";
  TestChild holder([&path] {
    static auto lock = LockFile(path, LOCK_EX);
    return lock.ok();
  });
  ASSERT_TRUE(holder.prepared());
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd log(ends[0]), standard_error(::dup(STDERR_FILENO));
  ASSERT_EQ(::dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  ::close(ends[1]);
  absl::StatusOr<UniqueFd> lock = absl::UnknownError("not taken");
  std::thread waits([&] { lock = LockFile(path, LOCK_EX); });
  std::string said(4096, '\0');
  const ssize_t size = ::read(log.get(), said.data(), said.size());
  ::dup2(standard_error.get(), STDERR_FILENO);
  holder.Kill();
  waits.join();
  EXPECT_TRUE(lock.ok()) << lock.status();
  ASSERT_GT(size, 0);
  said.resize(static_cast<size_t>(size));
  EXPECT_NE(said.find(path), std::string::npos) << said;
  EXPECT_NE(said.find(absl::StrCat("process ", holder.pid(), " (")), std::string::npos) << said;
}

// As Node.js makes its children's.
TEST(FileTest, WriteFullyWaitsForAFullPipeThatWaitsForNobody) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  UniqueFd reader(ends[0]), writer(ends[1]);
  ASSERT_EQ(::fcntl(reader.get(), F_SETFL, 0), 0);
  const std::string content(1 << 20, 'x');
  std::string read(content.size(), '\0');
  std::thread reads([&] { ReadFully(reader.get(), read.data(), read.size(), "pipe").IgnoreError(); });
  EXPECT_TRUE(WriteFully(writer.get(), content.data(), content.size(), "pipe").ok());
  writer.Reset();
  reads.join();
  EXPECT_TRUE(read == content);
}

TEST(FileTest, ReadFullyReportsAnEarlyEnd) {
  auto dir = TemporaryDirectory::Make("/tmp", "rk-file-");
  ASSERT_TRUE(WriteFileAtomically(dir->path() + "/f", "abc").ok());
  auto fd = OpenFile(dir->path() + "/f", O_RDONLY);
  char buffer[8];
  EXPECT_EQ(ReadFully(fd->get(), buffer, sizeof buffer, "f").code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace rekindle
