#include "restore/touched_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "dedup_store/store.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;
using ::testing::ElementsAre;

TEST(TouchedFilesTest, ReadsWhatItHasWritten) {
  const std::vector<TouchedFile> files = {{"/lib/a", {{0, kPageSize}, {3 * kPageSize, 2 * kPageSize}}},
                                          {"/lib/\"b\n", {}},
                                          {"/lib/c", {}, FileIdentity{1, 2, 3, -4, ~uint64_t{0} / 2}}};
  EXPECT_EQ(DecodeTouchedFiles(EncodeTouchedFiles(files)).value(), files);
  EXPECT_EQ(DecodeTouchedFiles(EncodeTouchedFiles({})).value(), std::vector<TouchedFile>());
  const std::string good = EncodeTouchedFiles(files);
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeTouchedFiles(good.substr(0, size)).status())) << size;
  }
  EXPECT_EQ(CheckedOf(files), (FileIdentities::Checked{{"/lib/c", *files[2].checked}}));
  for (const char* bad :
       {"{\"files\":[{\"path\":\"/a\",\"ranges\":[],\"checked\":[1,2,3,4]}]}", "[]", "{\"files\":[{}]}",
        "{\"files\":[{\"path\":1,\"ranges\":[]}]}", "{\"files\":[{\"path\":\"/a\",\"ranges\":[[1]]}]}"}) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeTouchedFiles(bad).status())) << bad;
  }
}

class MappedFileTest : public ::testing::Test {
 protected:
  static constexpr size_t kPages = 64;
  void SetUp() override {
    // On a disk: what is in a tmpfs always is in memory.
    const std::string content(kPages * kPageSize, 'x');
    UniqueFd file = *OpenFile(path(), O_RDWR | O_CREAT);
    ASSERT_TRUE(WriteFully(file.get(), content.data(), content.size(), path()).ok());
    ASSERT_EQ(::fsync(file.get()), 0);
    Evict();
  }
  std::string path() const { return directory_.path() + "/data"; }
  void Evict() const {
    UniqueFd file = *OpenFile(path(), O_RDONLY);
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  char* Map(int protection, int flags) const {
    UniqueFd file = *OpenFile(path(), O_RDONLY);
    void* memory = ::mmap(nullptr, kPages * kPageSize, protection, flags, file.get(), 0);
    EXPECT_NE(memory, MAP_FAILED);
    ::madvise(memory, kPages * kPageSize, MADV_RANDOM);  // nothing is read around what is touched
    return static_cast<char*>(memory);
  }
  std::vector<bool> InMemory() const {
    char* memory = Map(PROT_READ, MAP_SHARED);
    std::vector<unsigned char> there(kPages);
    EXPECT_EQ(::mincore(memory, kPages * kPageSize, there.data()), 0);
    ::munmap(memory, kPages * kPageSize);
    std::vector<bool> result;
    for (unsigned char page : there) result.push_back((page & 1) != 0);
    return result;
  }
  TemporaryDirectory directory_ = *TemporaryDirectory::Make("/var/tmp", "rekindle-test-");
};

TEST_F(MappedFileTest, FindsWhatWasReadAndWritten) {
  char* memory = Map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
  volatile char got = memory[2 * kPageSize];
  (void)got;
  memory[40 * kPageSize] = 'y';
  memory[41 * kPageSize] = 'y';
  absl::StatusOr<std::vector<TouchedFile>> files = FindTouchedFiles(::getpid());
  ::munmap(memory, kPages * kPageSize);
  ASSERT_TRUE(files.ok()) << files.status();
  std::erase_if(*files, [this](const TouchedFile& file) { return file.path != path(); });
  ASSERT_EQ(files->size(), 1u);
  EXPECT_THAT((*files)[0].ranges, ElementsAre(TouchedFile::Range{2 * kPageSize, kPageSize},
                                              TouchedFile::Range{40 * kPageSize, 2 * kPageSize}));
}

// Nothing is known of it then; an empty list would say that it had touched nothing.
TEST(TouchedFilesTest, OfAProcessThatHasEnded) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(0);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(absl::IsNotFound(FindTouchedFiles(child).status())) << "it is a zombie";
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(absl::IsNotFound(FindTouchedFiles(child).status()));
}

TEST_F(MappedFileTest, BringsThemIntoMemory) {
  if (InMemory() != std::vector<bool>(kPages, false)) GTEST_SKIP() << "nothing can be put out of memory here";
  {
    FilePrefetch prefetch(
        {{path(), {{8 * kPageSize, 4 * kPageSize}}}, {"/dev/zero", {{0, kPageSize}}}, {"/nowhere", {}}});
  }
  std::vector<bool> expected(kPages, false);
  std::fill_n(expected.begin() + 8, 4, true);
  // They are asked for; the disk brings them.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (InMemory() != expected && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(InMemory(), expected);
}

}  // namespace
}  // namespace rekindle::restore
