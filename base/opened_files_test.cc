#include "base/opened_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/file.h"
#include "base/test_child.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

class OpenedFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"read", "written", "both", "place", "mapped", "shared", "gone"})
      ASSERT_TRUE(WriteFileAtomically(Path(name), std::string(8192, 'x')).ok());
    ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0600), 0);
    ASSERT_EQ(::mkdir(Path("there").c_str(), 0700), 0);
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rekindle-opened.").value();
};

// Of all entries with that name.
int AccessTo(const std::vector<OpenedFile>& files, const std::string& name) {
  int access = -1;
  for (const OpenedFile& file : files) {
    if (file.name == name) access = std::max(access, 0) | file.access;
  }
  return access;
}

TEST_F(OpenedFilesTest, WhatEachIsOpenFor) {
  TestChild child([&] {
    const auto map = [&](const std::string& name, int flags, int protection, int kind) {
      const int fd = ::open(Path(name).c_str(), flags);
      const bool mapped = ::mmap(nullptr, 8192, protection, kind, fd, 0) != MAP_FAILED;
      return ::close(fd) == 0 && mapped;
    };
    return ::open(Path("read").c_str(), O_RDONLY) >= 0 && ::open(Path("written").c_str(), O_WRONLY) >= 0 &&
           ::open(Path("both").c_str(), O_RDWR) >= 0 && ::open(Path("place").c_str(), O_PATH) >= 0 &&
           ::open(Path("fifo").c_str(), O_RDWR) >= 0 && ::open(Path("gone").c_str(), O_RDWR) >= 0 &&
           ::open("/dev/null", O_RDWR) >= 0 && ::chdir(Path("there").c_str()) == 0 &&
           ::unlink(Path("gone").c_str()) == 0 &&
           map("mapped", O_RDONLY, PROT_READ | PROT_WRITE, MAP_PRIVATE) &&
           map("shared", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED);
  });
  ASSERT_TRUE(child.prepared());
  ASSERT_TRUE(child.Stop());
  auto files = FilesOpenedBy(child.pid(), OpenedFilesOf::kMappingsToo);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(AccessTo(*files, Path("read")), R_OK);
  EXPECT_EQ(AccessTo(*files, Path("written")), W_OK);
  EXPECT_EQ(AccessTo(*files, Path("both")), R_OK | W_OK);
  EXPECT_EQ(AccessTo(*files, Path("place")), 0);
  EXPECT_EQ(AccessTo(*files, Path("fifo")), R_OK | W_OK);
  EXPECT_EQ(AccessTo(*files, Path("there")), X_OK);
  EXPECT_EQ(AccessTo(*files, Path("mapped")), X_OK);
  EXPECT_EQ(AccessTo(*files, Path("shared")), R_OK | W_OK);
  EXPECT_EQ(AccessTo(*files, "/dev/null"), -1) << "a device";
  const auto gone = std::find_if(files->begin(), files->end(), [&](const OpenedFile& file) {
    return file.name == Path("gone") + " (deleted)";
  });
  ASSERT_NE(gone, files->end());
  EXPECT_EQ(gone->links, 0u);

  auto fewer = FilesOpenedBy(child.pid(), OpenedFilesOf::kDescriptorsAndFolders);
  ASSERT_TRUE(fewer.ok());
  EXPECT_EQ(AccessTo(*fewer, Path("both")), R_OK | W_OK);
  EXPECT_EQ(AccessTo(*fewer, Path("shared")), -1);
}

TEST_F(OpenedFilesTest, AnIdentityIsThatOfTheFileAndNotOfItsName) {
  auto file = OpenFile(Path("read"), O_RDONLY);
  ASSERT_TRUE(file.ok());
  TestChild child([&] { return ::open(Path("read").c_str(), O_RDONLY) >= 0; });
  ASSERT_TRUE(child.prepared());
  ASSERT_TRUE(child.Stop());
  ASSERT_EQ(::rename(Path("read").c_str(), Path("moved").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("read"), "another").ok());
  auto files = FilesOpenedBy(child.pid(), OpenedFilesOf::kDescriptorsAndFolders);
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(AccessTo(*files, Path("read")), -1);
  const auto moved = std::find_if(files->begin(), files->end(), [&](const OpenedFile& opened) {
    return opened.name == Path("moved") && opened.access == R_OK;
  });
  ASSERT_NE(moved, files->end());
  EXPECT_EQ(moved->identity, IdentityOf(file->get()).value());
}

TEST_F(OpenedFilesTest, AProcessThatHasEnded) {
  TestChild child;
  child.Kill();
  ASSERT_TRUE(child.AwaitEnd());
  EXPECT_FALSE(FilesOpenedBy(child.pid(), OpenedFilesOf::kDescriptorsAndFolders).ok());
}

}  // namespace
}  // namespace rekindle
