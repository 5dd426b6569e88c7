#include "ckpt/readable_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/file.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

// This process is the job, and not the file's owner.
class ReadableFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto folder = TemporaryDirectory::Make(testing::TempDir(), "readable_files_test.");
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_ = std::make_unique<TemporaryDirectory>(*std::move(folder));
    path_ = folder_->path() + "/file";
    ASSERT_TRUE(WriteFileAtomically(path_, std::string(4096, 'x')).ok());
  }

  bool Readable() const {
    struct stat info;
    EXPECT_EQ(::stat(path_.c_str(), &info), 0);
    return ReadableFiles(::geteuid() + 1, {::getpid()}).Has(info);
  }

  std::unique_ptr<TemporaryDirectory> folder_;
  std::string path_;
};

TEST_F(ReadableFilesTest, DescriptorsThatCanReadCount) {
  EXPECT_FALSE(Readable());
  for (const int flags : {O_WRONLY, O_PATH}) {
    const UniqueFd file = OpenFile(path_, flags).value();
    EXPECT_FALSE(Readable()) << flags;
  }
  for (const int flags : {O_RDONLY, O_RDWR | O_APPEND}) {
    const UniqueFd file = OpenFile(path_, flags).value();
    EXPECT_TRUE(Readable()) << flags;
  }
  EXPECT_FALSE(Readable());
}

TEST_F(ReadableFilesTest, SharedMappingsCount) {
  for (const int flags : {MAP_PRIVATE, MAP_SHARED}) {
    UniqueFd file = OpenFile(path_, O_RDWR).value();
    void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, flags, file.get(), 0);
    ASSERT_NE(memory, MAP_FAILED);
    file.Reset();
    EXPECT_EQ(Readable(), flags == MAP_SHARED);
    ::munmap(memory, 4096);
  }
}

TEST_F(ReadableFilesTest, OnesOwnFilesAndRootsAll) {
  struct stat info;
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_TRUE(ReadableFiles(::geteuid(), {}).Has(info));
  EXPECT_TRUE(ReadableFiles().Has(info));
  EXPECT_FALSE(ReadableFiles(::geteuid() + 1, {}).Has(info));
}

}  // namespace
}  // namespace rekindle::ckpt
