#include "ckpt/temporary_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr TemporaryLimits kLimits = {uint64_t{3} << 20, 100};

// A process whose /tmp and /dev/shm are its own, once `fill` has run there.
class Owner {
 public:
  explicit Owner(const std::function<bool()>& fill) {
    int told[2];
    EXPECT_EQ(::pipe(told), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::umask(0);
      char said = 'n';
      if (::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
          ::mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777") == 0 &&
          ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777") == 0) {
        said = fill() ? 'y' : 'f';
      }
      if (::write(told[1], &said, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    EXPECT_EQ(::read(told[0], &said_, 1), 1);
    ::close(told[0]);
    ::close(told[1]);
  }
  ~Owner() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  bool may() const { return said_ != 'n'; }  // make mounts
  bool filled() const { return said_ == 'y'; }
  std::string root() const { return absl::StrCat("/proc/", pid_, "/root"); }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  char said_ = '?';
};

bool Make(const char* path, const std::string& content, off_t offset = 0) {
  const int file = ::open(path, O_WRONLY | O_CREAT | O_EXCL, 0640);
  return file >= 0 &&
         ::pwrite(file, content.data(), content.size(), offset) == static_cast<ssize_t>(content.size()) &&
         ::close(file) == 0;
}

std::vector<std::string> Paths(const TakenTemporaryFiles& taken) {
  std::vector<std::string> paths;
  for (const v1::TemporaryFile& file : taken.record.files()) paths.push_back(file.path());
  return paths;
}

#define SKIP_UNLESS_MOUNTS(owner)                             \
  if (!(owner).may()) GTEST_SKIP() << "mounts can't be made"; \
  ASSERT_TRUE((owner).filled())

TEST(TemporaryFiles, AllKinds) {
  const Owner owner([] {
    const int deleted = ::open("/tmp/deleted", O_RDWR | O_CREAT, 0600);
    return Make("/tmp/a", "of a") && ::mkdir("/tmp/folder", 0700) == 0 &&
           ::chmod("/tmp/folder", 02750) == 0 && Make("/tmp/folder/b", "b", 8192) &&
           ::link("/tmp/a", "/tmp/folder/again") == 0 && ::symlink("nowhere", "/tmp/link") == 0 &&
           ::mkfifo("/tmp/queue", 0600) == 0 && ::mknod("/tmp/socket", S_IFSOCK | 0600, 0) == 0 &&
           Make("/dev/shm/memory", "m") && Make("/dev/shm/without", "no") && deleted >= 0 &&
           ::unlink("/tmp/deleted") == 0 && ::mkdir("/tmp/way", 0700) == 0 &&
           ::mkdir("/tmp/way/to", 0700) == 0 &&
           ::mount("/usr", "/tmp/way/to", nullptr, MS_BIND, nullptr) == 0 && ::mkdir("/tmp/z", 0700) == 0 &&
           ::chown("/tmp/a", 12, 34) == 0;
  });
  SKIP_UNLESS_MOUNTS(owner);
  ASSERT_TRUE(CheckTemporaryFiles(owner.root(), {}, kLimits).ok());
  const auto taken = TakeTemporaryFiles(owner.root(), {"/dev/shm/without"}, kLimits);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_THAT(Paths(*taken), ElementsAre("/tmp/a", "/tmp/folder", "/tmp/folder/again", "/tmp/folder/b",
                                         "/tmp/link", "/tmp/queue", "/tmp/z", "/dev/shm/memory"));
  EXPECT_TRUE(taken->record.shared_memory());
  const auto& files = taken->record.files();
  EXPECT_EQ(files[0].mode(), S_IFREG | 0640U);
  EXPECT_EQ(files[0].uid(), 12U);
  EXPECT_EQ(files[0].gid(), 34U);
  EXPECT_NE(files[0].modified_ns(), 0);
  EXPECT_EQ(files[1].mode(), S_IFDIR | 02750U);
  EXPECT_EQ(files[2].target(), "/tmp/a");
  EXPECT_EQ(files[2].extents_size(), 0);
  ASSERT_EQ(files[3].extents_size(), 1) << "it has a hole";
  EXPECT_EQ(files[3].extents(0).offset(), 8192U);
  EXPECT_EQ(files[3].extents(0).length(), 1U);
  EXPECT_EQ(files[3].size(), 8193U);
  EXPECT_EQ(files[4].target(), "nowhere");
  EXPECT_TRUE(S_ISFIFO(files[5].mode()));
  EXPECT_EQ(taken->contents, "of abm");
}

TEST(TemporaryFiles, NothingOfTheMachines) {
  auto there = TemporaryDirectory::Make("/dev/shm", "rk-temporary-files-");
  ASSERT_TRUE(there.ok()) << there.status();
  const auto taken = TakeTemporaryFiles("/proc/self/root", {}, kLimits);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_THAT(Paths(*taken), IsEmpty());
  EXPECT_FALSE(taken->record.shared_memory());
}

TEST(TemporaryFiles, NotMoreThanThereIsRoomFor) {
  const Owner much([] {
    return ::mkdir("/tmp/cache", 0700) == 0 && Make("/tmp/cache/much", std::string(kLimits.bytes, 'x')) &&
           Make("/tmp/little", "x");
  });
  SKIP_UNLESS_MOUNTS(much);
  for (const absl::Status& refused : {CheckTemporaryFiles(much.root(), {}, kLimits),
                                      TakeTemporaryFiles(much.root(), {}, kLimits).status()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("/tmp/cache"));
    EXPECT_THAT(refused.message(), HasSubstr("3.0 MiB"));
  }
  const Owner many([] {
    bool made = ::mkdir("/dev/shm/many", 0700) == 0;
    for (size_t i = 0; i < kLimits.files; ++i)
      made = made && Make(absl::StrCat("/dev/shm/many/", i).c_str(), "");
    return made;
  });
  ASSERT_TRUE(many.filled());
  const absl::Status refused = CheckTemporaryFiles(many.root(), {}, kLimits);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("101 files"));
  EXPECT_THAT(refused.message(), HasSubstr("/dev/shm/many"));
  const Owner sparse([] { return Make("/tmp/sparse", "end", int64_t{4} << 30); });
  ASSERT_TRUE(sparse.filled());
  const auto taken = TakeTemporaryFiles(sparse.root(), {}, kLimits);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->contents, "end");
}

// It goes into the image in another way.
TEST(TemporaryFiles, ThereIsRoomForSharedMemory) {
  const Owner owner([] {
    const std::string much(kLimits.bytes + 1, 'x');
    if (!Make("/dev/shm/mapped", much) || !Make("/dev/shm/left", "x")) return false;
    const int file = ::open("/dev/shm/mapped", O_RDWR);
    return ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) != MAP_FAILED &&
           ::close(file) == 0;
  });
  SKIP_UNLESS_MOUNTS(owner);
  EXPECT_TRUE(CheckTemporaryFiles(owner.root(), {owner.pid()}, kLimits).ok());
  EXPECT_FALSE(CheckTemporaryFiles(owner.root(), {}, kLimits).ok());
  TemporaryLimits little = kLimits;
  little.mapped_bytes = kLimits.bytes;
  const absl::Status refused = CheckTemporaryFiles(owner.root(), {owner.pid(), owner.pid()}, little);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("/dev/shm/mapped"));
}

TEST(TemporaryFiles, WaysToWhatIsMountedAreNothingOfItsOwn) {
  const Owner owner([] {
    return ::mkdir("/dev/shm/way", 0700) == 0 && ::mkdir("/dev/shm/way/to", 0700) == 0 &&
           ::mount("/usr", "/dev/shm/way/to", nullptr, MS_BIND, nullptr) == 0;
  });
  SKIP_UNLESS_MOUNTS(owner);
  const auto taken = TakeTemporaryFiles(owner.root(), {}, kLimits);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_THAT(Paths(*taken), IsEmpty());
  EXPECT_FALSE(taken->record.shared_memory());
}

// Its text goes to who may read UTF-8 only.
TEST(TemporaryFiles, TooDeepFoldersAreNamedInPlainText) {
  const Owner owner([] {
    std::string path = "/tmp";
    for (int i = 0; i < 65; ++i) {
      path += "/\xff";
      if (::mkdir(path.c_str(), 0700) != 0) return false;
    }
    return true;
  });
  SKIP_UNLESS_MOUNTS(owner);
  const absl::Status refused = CheckTemporaryFiles(owner.root(), {}, kLimits);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("/tmp/\\xff/"));
}

TEST(TemporaryFiles, FoldersThatAreLinks) {
  const auto linked = [](bool with_files) {
    return [with_files] {
      return ::umount("/dev/shm") == 0 && ::mount("tmpfs", "/dev", "tmpfs", 0, "mode=755") == 0 &&
             ::mkdir("/dev/target", 01777) == 0 && ::symlink("target", "/dev/shm") == 0 &&
             ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777") == 0 &&
             (!with_files || Make("/dev/shm/memory", "m"));
    };
  };
  const Owner empty(linked(false));
  SKIP_UNLESS_MOUNTS(empty);
  EXPECT_TRUE(CheckTemporaryFiles(empty.root(), {}, kLimits).ok());
  const Owner full(linked(true));
  ASSERT_TRUE(full.filled());
  const absl::Status refused = CheckTemporaryFiles(full.root(), {}, kLimits);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("/dev/shm is a symbolic link (to target)"));
}

}  // namespace
}  // namespace rekindle::ckpt
