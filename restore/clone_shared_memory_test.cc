#include "restore/clone_shared_memory.h"

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "rekindle/v1/image_layout.h"
#include "restore/file_rollback_testing.h"

namespace rekindle::restore {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CloneSharedMemoryTest : public FileRollbackTest {
 protected:
  void SetUp() override {
    FileRollbackTest::SetUp();
    for (const char* copy : {"/one", "/two"}) {
      ASSERT_TRUE(MakeDirectories(files_ + copy + "/dev/shm").ok());
    }
  }

  // As the job has it at `path`.
  v1::WrittenFile& RecordShared(const std::string& path, const std::string& content) {
    const std::string name = "file" + std::to_string(manifest_.written_files_size());
    Record(name, content, {.in_place = true, .content = true, .is_new = false, .shared_memory = true});
    v1::WrittenFile& file = *manifest_.mutable_written_files()->rbegin();
    file.set_path(path);
    return file;
  }
};

TEST_F(CloneSharedMemoryTest, EachCopyGetsWhatTheImageHas) {
  std::string sparse(5 * kPage, '\0');
  sparse[3 * kPage + 7] = 'x';
  RecordShared("/dev/shm/a", "content").set_mode(0604);
  RecordShared("/dev/shm/folder/below/b", sparse);
  RecordShared("/dev/shm/none", "");
  Record("no memory", "x", {.in_place = true, .content = true});
  auto memory = CloneSharedMemory::Read(Image(), manifest_);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_THAT(memory->paths(), ElementsAre("/dev/shm/a", "/dev/shm/folder/below/b", "/dev/shm/none"));
  EXPECT_GE(memory->bytes(), 2 * kPage);
  EXPECT_LE(memory->bytes(), 3 * kPage);
  for (const std::string copy : {"one", "two"}) {
    absl::Status made = memory->MakeIn(files_ + "/" + copy);
    ASSERT_TRUE(made.ok()) << made;
    EXPECT_EQ(Read(copy + "/dev/shm/a"), "content");
    EXPECT_EQ(Stat(copy + "/dev/shm/a").st_mode & 07777, 0604u);
    EXPECT_EQ(Read(copy + "/dev/shm/folder/below/b"), sparse);
    EXPECT_LT(Stat(copy + "/dev/shm/folder/below/b").st_blocks * 512, 5 * int64_t{kPage});
    EXPECT_EQ(Read(copy + "/dev/shm/none"), "");
  }
  Rewrite("one/dev/shm/a", 0, "CON");
  EXPECT_EQ(Read("two/dev/shm/a"), "content");
  EXPECT_EQ(memory->MakeIn(files_ + "/one").code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CloneSharedMemoryTest, WhatHadNoNameLosesItAgain) {
  const std::string nameless = absl::StrCat(v1::kNamelessPrefix, "70.1.2");
  RecordShared(nameless, "content").set_nameless(true);
  RecordShared("/dev/shm/a", "content").set_nameless(true);  // no restore makes that
  auto memory = CloneSharedMemory::Read(Image(), manifest_);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_TRUE(memory->MakeIn(files_ + "/one").ok());
  EXPECT_EQ(Read("one" + nameless), "content");
  memory->RemoveNameless(files_ + "/one");
  EXPECT_EQ(Read("one" + nameless), "(none)");
  EXPECT_EQ(Read("one/dev/shm/a"), "content");
}

TEST_F(CloneSharedMemoryTest, WithoutItsContentThereIsNoCopy) {
  RecordShared("/dev/shm/a", "content").clear_content_object();
  auto memory = CloneSharedMemory::Read(Image(), manifest_);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr("/dev/shm/a"));
}

TEST_F(CloneSharedMemoryTest, NothingIsMadeElsewhere) {
  RecordShared("/dev/shm/../../a", "content");
  EXPECT_TRUE(absl::IsDataLoss(CloneSharedMemory::Read(Image(), manifest_).status()));
  manifest_.mutable_written_files(0)->set_path("/etc/a");
  EXPECT_TRUE(absl::IsDataLoss(CloneSharedMemory::Read(Image(), manifest_).status()));
}

TEST_F(CloneSharedMemoryTest, MostJobsHaveNone) {
  Record("file", "x", {.in_place = true, .content = true});
  auto memory = CloneSharedMemory::Read(Image(), manifest_);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_TRUE(memory->empty());
  EXPECT_TRUE(memory->MakeIn("/nowhere").ok());
}

}  // namespace
}  // namespace rekindle::restore
