#include "restore/temporary_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "dedup_store/store_testing.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::restore {
namespace {

// The folder, mounted on itself.
class Mounted {
 public:
  explicit Mounted(std::string path) : path_(std::move(path)) {
    EXPECT_EQ(::mount(path_.c_str(), path_.c_str(), nullptr, MS_BIND, nullptr), 0);
  }
  ~Mounted() { ::umount2(path_.c_str(), MNT_DETACH); }
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;

 private:
  const std::string path_;
};

class TemporaryFilesTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
    auto root = TemporaryDirectory::Make("/tmp", "rk-temporary-files-");
    ASSERT_TRUE(root.ok());
    root_.emplace(*std::move(root));
    ASSERT_TRUE(MakeDirectories(root_->path() + "/tmp").ok() &&
                MakeDirectories(root_->path() + "/dev/shm").ok());
  }

  v1::TemporaryFile& Add(const std::string& path, uint32_t mode) {
    v1::TemporaryFile& file = *manifest_.mutable_temporary()->add_files();
    file.set_path(path);
    file.set_mode(mode);
    file.set_uid(::geteuid());
    file.set_gid(::getegid());
    file.set_modified_ns(1'000'000'007);
    return file;
  }
  void AddContent(v1::TemporaryFile& file, uint64_t offset, const std::string& content) {
    file.set_size(offset + content.size());
    v1::FileExtent& extent = *file.add_extents();
    extent.set_offset(offset);
    extent.set_length(content.size());
    image_.blobs[v1::kTemporaryContents] += content;
  }

  absl::StatusOr<std::shared_ptr<const TemporaryFiles>> Read() {
    image_.blobs["rekindle/job"] = "";
    const std::string reference = absl::StrCat("job:", ++images_);
    EXPECT_TRUE(image_.Commit(*store_, reference).ok());
    auto reader = store_->OpenImage(reference);
    EXPECT_TRUE(reader.ok()) << reader.status();
    return TemporaryFiles::Read(**reader, manifest_, {"/tmp/kept"});
  }

  std::string In(const std::string& path) const { return root_->path() + path; }
  struct stat At(const std::string& path) const {
    struct stat info {};
    EXPECT_EQ(::lstat(In(path).c_str(), &info), 0) << path;
    return info;
  }

  std::optional<TemporaryDirectory> root_;
  v1::JobManifest manifest_;
  store::TestImage image_;
  int images_ = 0;
};

TEST_F(TemporaryFilesTest, AsTheyWere) {
  Add("/tmp/folder", S_IFDIR | 02750).set_gid(12345);
  Add("/tmp/folder/link", S_IFLNK | 0777).set_target("../a");
  AddContent(Add("/tmp/folder/sparse", S_IFREG | 0640), 8192, "end");
  Add("/tmp/folder/again", S_IFREG | 0640).set_target("/tmp/folder/sparse");
  Add("/tmp/queue", S_IFIFO | 0600);
  AddContent(Add("/dev/shm/memory", S_IFREG | 0600), 0, "memory");
  manifest_.mutable_temporary()->set_shared_memory(true);
  const auto files = Read();
  ASSERT_TRUE(files.ok() && *files) << files.status();
  EXPECT_EQ((*files)->bytes(), 9U);
  ASSERT_TRUE((*files)->MakeIn(root_->path()).ok());
  EXPECT_EQ(ReadFile(In("/tmp/folder/sparse")).value_or(""), std::string(8192, '\0') + "end");
  EXPECT_EQ(At("/tmp/folder/sparse").st_ino, At("/tmp/folder/again").st_ino);
  EXPECT_EQ(At("/tmp/folder/sparse").st_mode, S_IFREG | 0640U);
  EXPECT_EQ(ReadFile(In("/dev/shm/memory")).value_or(""), "memory");
  EXPECT_EQ(ReadLink(In("/tmp/folder/link")).value_or(""), "../a");
  EXPECT_TRUE(S_ISFIFO(At("/tmp/queue").st_mode));
  EXPECT_EQ(At("/tmp/folder").st_mode, S_IFDIR | 02750U);
  EXPECT_EQ(At("/tmp/folder").st_gid, 12345U);
  EXPECT_EQ(At("/tmp/folder/sparse").st_gid, ::getegid());
  for (const v1::TemporaryFile& file : manifest_.temporary().files())
    EXPECT_EQ(Nanos(At(file.path()).st_mtim), 1'000'000'007) << file.path();
}

TEST_F(TemporaryFilesTest, WhatIsItsOwn) {
  manifest_.mutable_temporary();
  auto files = Read();
  ASSERT_TRUE(files.ok() && *files) << files.status();
  EXPECT_TRUE((*files)->Has("/var/tmp/a"));
  EXPECT_FALSE((*files)->Has("/tmp/kept/a"));
  EXPECT_TRUE((*files)->Has("/dev/shm/a"));
  manifest_.clear_temporary();
  files = Read();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(*files, nullptr);
}

TEST_F(TemporaryFilesTest, WhatIsRootsIsGivenToTheUser) {
  Add("/tmp/folder", S_IFDIR | 0700);
  AddContent(Add("/tmp/folder/file", S_IFREG | 0600), 0, "x");
  Add("/tmp/folder/link", S_IFLNK | 0777).set_target("/etc/shadow");
  AddContent(Add("/tmp/others", S_IFREG | 0600), 0, "x");
  manifest_.mutable_temporary()->mutable_files(3)->set_uid(54321);
  const auto files = Read();
  ASSERT_TRUE(files.ok() && *files) << files.status();
  ASSERT_TRUE((*files)->MakeIn(root_->path()).ok());
  ASSERT_TRUE((*files)->GiveTo({12345, 23456, {}}, root_->path()).ok());
  for (const char* path : {"/tmp/folder", "/tmp/folder/file", "/tmp/folder/link"}) {
    EXPECT_EQ(At(path).st_uid, 12345U) << path;
    EXPECT_EQ(At(path).st_gid, 23456U) << path;
  }
  EXPECT_EQ(At("/tmp/others").st_uid, 54321U);
  struct stat target {};
  ASSERT_EQ(::stat("/etc/shadow", &target), 0);
  EXPECT_EQ(target.st_uid, 0U);
}

TEST_F(TemporaryFilesTest, NoMoreThanThereCanBe) {
  v1::TemporaryFile& first = Add("/tmp/a", S_IFREG | 0600);
  AddContent(first, 0, "content");
  v1::TemporaryFile& endless = Add("/tmp/b", S_IFREG | 0600);
  endless.set_size(~uint64_t{0});
  v1::FileExtent& extent = *endless.add_extents();
  extent.set_length(~uint64_t{0} - 6);  // with the seven before it nothing
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
  manifest_.Clear();
  image_.blobs.clear();
  for (int i = 0; i < 20000; ++i) Add(absl::StrCat("/tmp/", i), S_IFREG | 0600);
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
}

TEST_F(TemporaryFilesTest, NothingElsewhere) {
  for (const char* path : {"/tmp/../etc/a", "/etc/a", "tmp/a", "/tmp//a", "/tmp/.", "/tmp", ""}) {
    manifest_.Clear();
    image_.blobs.clear();
    Add(path, S_IFREG | 0600);
    EXPECT_TRUE(absl::IsDataLoss(Read().status())) << path;
  }
  manifest_.Clear();
  Add("/tmp/a", S_IFREG | 0600).set_target("/etc/shadow");
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
  manifest_.Clear();
  v1::TemporaryFile& file = Add("/tmp/a", S_IFREG | 0600);
  AddContent(file, 0, "content");
  file.mutable_extents(0)->set_length(8);
  file.set_size(8);
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
  file.mutable_extents(0)->set_offset(~uint64_t{0});
  file.mutable_extents(0)->set_length(7);
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
}

TEST_F(TemporaryFilesTest, NothingInTheMachinesSharedMemory) {
  AddContent(Add("/dev/shm/a", S_IFREG | 04755), 0, "x");
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
  manifest_.mutable_temporary()->set_shared_memory(true);
  EXPECT_TRUE(Read().ok());
}

TEST_F(TemporaryFilesTest, NothingIsMadeOrChangedInWhatIsMountedThere) {
  ASSERT_TRUE(MakeDirectories(In("/tmp/way/kept/below")).ok());
  ASSERT_EQ(::chmod(In("/tmp/way/kept").c_str(), 0711), 0);
  const Mounted mounted(In("/tmp/way/kept"));
  Add("/tmp/way", S_IFDIR | 0750);
  Add("/tmp/way/kept", S_IFDIR | 0777).set_uid(12345);
  auto files = Read();
  ASSERT_TRUE(files.ok() && *files) << files.status();
  EXPECT_TRUE((*files)->MakeIn(root_->path()).ok());
  EXPECT_EQ(At("/tmp/way").st_mode, S_IFDIR | 0750U);
  EXPECT_EQ(At("/tmp/way/kept").st_mode, S_IFDIR | 0711U);
  EXPECT_EQ(At("/tmp/way/kept").st_uid, 0U);
  AddContent(Add("/tmp/way/kept/below/a", S_IFREG | 0600), 0, "x");
  files = Read();
  ASSERT_TRUE(files.ok() && *files) << files.status();
  const absl::Status refused = (*files)->MakeIn(root_->path());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), testing::HasSubstr("/tmp/way/kept/below/a"));
  EXPECT_FALSE(PathExists(In("/tmp/way/kept/below/a")));
}

TEST_F(TemporaryFilesTest, NothingIsMadeBehindALink) {
  ASSERT_EQ(::symlink("/", In("/tmp/a").c_str()), 0);
  AddContent(Add("/tmp/a", S_IFREG | 0600), 0, "x");
  const auto files = Read();
  ASSERT_TRUE(files.ok() && *files) << files.status();
  EXPECT_FALSE((*files)->MakeIn(root_->path()).ok());
  manifest_.Clear();
  image_.blobs.clear();
  AddContent(Add("/tmp/a/etc/rk-made", S_IFREG | 0600), 0, "x");
  const auto below = Read();
  ASSERT_TRUE(below.ok() && *below) << below.status();
  EXPECT_FALSE((*below)->MakeIn(root_->path()).ok());
}

}  // namespace
}  // namespace rekindle::restore
