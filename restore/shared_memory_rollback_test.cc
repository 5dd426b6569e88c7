#include <sys/mman.h>

#include "base/test_child.h"
#include "restore/file_rollback_testing.h"

namespace rekindle::restore {
namespace {

using ::testing::HasSubstr;

constexpr Recorded kSharedMemory = {
    .in_place = true, .content = true, .is_new = false, .shared_memory = true};

class SharedMemoryTest : public FileRollbackTest {
 protected:
  std::string parent_folder() const override {
    return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : FileRollbackTest::parent_folder();
  }
  void SetUp() override {
    FileRollbackTest::SetUp();
    rollback_.set_mode(v1::Rollback::NONE);
  }

  // Without a look at it: what Linux counts of that (RssShmem) comes late on many kernels.
  static bool Map(int file) {
    return ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) != MAP_FAILED;
  }
};

TEST_F(SharedMemoryTest, IsPutBackUnasked) {
  Record("memory", "as it was\nthen", kSharedMemory);
  Record("file", "as it was", {.in_place = true, .content = true});
  const ino_t inode = Stat("memory").st_ino;
  Rewrite("memory", 0, "as it is\nnow, which is more");
  Rewrite("file", 0, "now");
  Report report = ApplyOne();
  EXPECT_EQ(report.path(), Path("memory"));
  EXPECT_EQ(report.action(), Report::PUT_BACK);
  EXPECT_EQ(report.tail_copy(), "") << "a tail of memory is no text, whatever it looks like";
  EXPECT_EQ(Read("memory"), "as it was\nthen");
  EXPECT_EQ(Stat("memory").st_ino, inode);
  EXPECT_EQ(Read("file"), "nowit was");
  EXPECT_EQ(ApplyOne().action(), Report::UNCHANGED);
}

TEST_F(SharedMemoryTest, IsMadeAgainWhereItIsGoneOrAnother) {
  Record("memory", "as it was", kSharedMemory);
  ASSERT_EQ(::unlink(Path("memory").c_str()), 0);
  EXPECT_EQ(ApplyOne().action(), Report::MADE_AGAIN);
  EXPECT_EQ(Read("memory"), "as it was");
  EXPECT_EQ(Stat("memory").st_mode & 0777, 0640u);

  Replace("memory", "of another life, and longer");
  Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::MADE_AGAIN);
  EXPECT_EQ(report.tail_copy(), "");
  EXPECT_EQ(Read("memory"), "as it was");
}

TEST_F(SharedMemoryTest, IsLeftToThoseWhoUseIt) {
  if (parent_folder() != "/dev/shm") GTEST_SKIP() << "/dev/shm can't be written";
  Record("memory", "as it was", kSharedMemory);
  Rewrite("memory", 0, "NOW");
  UniqueFd file = OpenFile(Path("memory"), O_RDWR).value();
  TestChild other([&] { return Map(file.get()); });
  ASSERT_TRUE(other.prepared());
  Report report = ApplyOne();
  EXPECT_EQ(report.action(), Report::LEFT);
  EXPECT_THAT(report.why(), HasSubstr("process " + std::to_string(other.pid())));
  EXPECT_EQ(Read("memory"), "NOWit was");

  // Shorter than the job needs it, and it can't be made longer under another's feet.
  ASSERT_EQ(::truncate(Path("memory").c_str(), 2), 0);
  EXPECT_EQ(CheckPlan(Plan()).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SharedMemoryTest, PathsToIgnoreStay) {
  Record("memory", "as it was", kSharedMemory);
  Rewrite("memory", 0, "NOW");
  rollback_.add_ignore_paths(files_);
  EXPECT_EQ(ApplyOne().action(), Report::IGNORED);
  EXPECT_EQ(Read("memory"), "NOWit was");
  manifest_.mutable_written_files(0)->set_nameless(true);
  EXPECT_EQ(ApplyOne().action(), Report::PUT_BACK) << "what had no name is meant by no path";
}

}  // namespace
}  // namespace rekindle::restore
