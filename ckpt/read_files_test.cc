#include "ckpt/read_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/file_beginning.h"
#include "criu/test_images.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

class ReadFilesTest : public testing::Test {
 protected:
  std::string Make(const std::string& name, const std::string& content) {
    std::string path = folder_.path() + "/" + name;
    EXPECT_TRUE(WriteFileAtomically(path, content).ok());
    return path;
  }
  // Long before the freeze.
  static constexpr int64_t kOld = 1'000'000'000;
  std::string MakeOld(const std::string& name) {
    std::string path = Make(name, "12345");
    const timespec times[] = {{1, 0}, {1, 0}};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    return path;
  }
  void Has(const std::string& path, uint64_t size, uint32_t flags = O_RDONLY) {
    files_.push_back({static_cast<uint32_t>(files_.size() + 1), path, size, flags});
    v1::NeededFile* needed = manifest_.add_files();
    needed->set_path(path);
    needed->set_size(size);
    needed->set_has_size(true);
    needed->set_written(flags != O_RDONLY);
  }
  ReadFiles Open(ReadableFiles readable = {}) {
    return ReadFiles::Open({{"files.img", criu::MakeFiles(files_)}}, &readable);
  }
  uint64_t BeginningOf(const std::string& path, uint64_t bytes) {
    return FileBeginning(OpenFile(path, O_RDONLY)->get(), bytes).value();
  }

  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_read_files_test.").value();
  std::vector<criu::TestFile> files_;
  v1::JobManifest manifest_;
};

TEST_F(ReadFilesTest, WhatTheyBeginWithIsTakenAsTheFreezeHadThem) {
  const std::string log = Make("log", "one\n"), empty = Make("empty", "");
  Has(log, 4);
  Has(log, 4);  // open twice
  Has(empty, 0);
  ReadFiles open = Open();
  const UniqueFd writer = OpenFile(log, O_WRONLY | O_APPEND).value();
  ASSERT_EQ(::write(writer.get(), "two\n", 4), 4);
  ASSERT_EQ(::rename(empty.c_str(), (empty + ".old").c_str()), 0);
  open.AddTo(&manifest_);
  EXPECT_EQ(manifest_.files(0).beginning(), BeginningOf(log, 4));
  EXPECT_EQ(manifest_.files(1).beginning(), BeginningOf(log, 4));
  EXPECT_EQ(manifest_.files(2).beginning(), BeginningOf(empty + ".old", 0));
}

TEST_F(ReadFilesTest, WhatIsWrittenAnewInPlaceHasNothingThatTheJobHasRead) {
  const std::string edited = MakeOld("edited");
  Has(edited, 5);
  ReadFiles open = Open();
  const UniqueFd writer = OpenFile(edited, O_WRONLY).value();
  const time_t later = ::time(nullptr) + 60;  // whichever clock's tick it was
  const timespec times[] = {{later, 0}, {later, 0}};
  ASSERT_EQ(::write(writer.get(), "54321", 5), 5);
  ASSERT_EQ(::futimens(writer.get(), times), 0);
  open.AddTo(&manifest_);
  EXPECT_EQ(manifest_.files(0).beginning(), 0u);
}

TEST_F(ReadFilesTest, OthersHaveNone) {
  const std::string cut = Make("cut", "12345");
  ASSERT_EQ(::mkfifo((folder_.path() + "/pipe").c_str(), 0600), 0);
  Has(Make("written", "12345"), 5, O_WRONLY);
  Has(cut, 5);
  Has(folder_.path() + "/gone", 5);
  Has(folder_.path() + "/pipe", 0);
  Has("/proc/self/status", 0);
  ReadFiles open = Open();
  ASSERT_EQ(::truncate(cut.c_str(), 4), 0);
  open.AddTo(&manifest_);
  for (const v1::NeededFile& file : manifest_.files()) EXPECT_EQ(file.beginning(), 0u) << file.path();
}

TEST_F(ReadFilesTest, NotOfFilesThatTheOwnerMayNotRead) {
  Has(Make("secret", "12345"), 5);
  Open(ReadableFiles(::geteuid() + 1, {})).AddTo(&manifest_);
  EXPECT_EQ(manifest_.files(0).beginning(), 0u);
}

TEST_F(ReadFilesTest, OfManyTheFirstOnesAreReadAndOthersKnownByTheirTimes) {
  for (int i = 0; i < 400; ++i) Has(MakeOld(std::to_string(i)), 5);
  Open().AddTo(&manifest_);
  int read = 0, known = 0;
  for (const v1::NeededFile& file : manifest_.files()) {
    read += file.beginning() != 0 && file.middle() != 0 ? 1 : 0;
    known += file.inode() != 0 && file.modified_ns() == kOld ? 1 : 0;
  }
  EXPECT_EQ(read, 256);
  EXPECT_EQ(known, 400);
}

TEST_F(ReadFilesTest, WhatIsWrittenToAfterTheFreezeIsKnownByWhatItHadThen) {
  for (int i = 0; i < 100; ++i) Has(MakeOld(std::to_string(i)), 5);
  ReadFiles open = Open();
  for (int i = 0; i < 100; ++i) Make(std::to_string(i), "edits");
  open.AddTo(&manifest_);
  int known = 0;
  for (const v1::NeededFile& file : manifest_.files())
    known += file.beginning() != 0 || file.inode() != 0 ? 1 : 0;
  EXPECT_EQ(known, 64) << "those that were opened then";
}

TEST_F(ReadFilesTest, ImagesThatCanNotBeReadHaveNone) {
  Has(Make("log", "12345"), 5);
  ReadableFiles all;
  ReadFiles::Open({}, &all).AddTo(&manifest_);
  ReadFiles::Open({{"files.img", "damaged"}}, &all).AddTo(&manifest_);
  EXPECT_EQ(manifest_.files(0).beginning(), 0u);
}

}  // namespace
}  // namespace rekindle::ckpt
