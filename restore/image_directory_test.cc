#include "restore/image_directory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "criu/test_images.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rekindle/v1/image_layout.h"
#include "restore/pages_file.h"
#include "restore/restore.h"

namespace rekindle::restore {
namespace {

using store::kMiB;
using store::kPageSize;
using store::StatusOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kHeap = 0x7f0000000000;

// An image of a job of two tasks as a capture stores it: task 70 has a large heap (withheld from CRIU) and a
// little more, task 71 little memory; one piece of shared memory; one pages image stored by file offset.
class ImageDirectoryTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    Add("inventory.img", "an inventory");
    Add("empty.img", "");
    Add("pstree.img", criu::MakePstree({{70, 0, 70, 70, {70, 72}}, {71, 70, 70, 70, {71}}}));
    Add("mm-70.img",
        criu::MakeMm({criu::AnonymousArea(0x10000, 8 * kPageSize), criu::AnonymousArea(kHeap, 4 * kMiB)}));
    Add("mm-71.img", criu::MakeMm({criu::AnonymousArea(0x40000, 8 * kPageSize)}));
    AddPages(1, "mem/70", "pagemap-70.img", {{0x10000, 3}, {kHeap, 600}, {kHeap + 620 * kPageSize, 400}});
    AddPages(2, "mem/71", "pagemap-71.img", {{0x40000, 2}, {0x44000, 1}});
    AddPages(3, "shm/9", "pagemap-shmem-9.img", {{0, 5}});
    AddPages(4, "pages/4", "pagemap-shmem-10.img", {{0x9000, 2}, {0x1000, 1}});
    manifest_.set_format(1);
    image_.blobs[v1::kJobManifestObject] = manifest_.SerializeAsString();
    RK_ASSERT_OK(image_.Commit(*store_, "job:1"));
    auto reader = store_->OpenImage("job:1");
    RK_ASSERT_OK(reader);
    reader_ = *std::move(reader);
  }

  void Add(const std::string& name, const std::string& content) {
    files_[name] = content;
    image_.blobs[v1::kCriuFilePrefix + name] = content;
  }

  // Pages of random bytes with a zero page among them, in an object and in the pages image that CRIU wrote.
  void AddPages(uint32_t id, const std::string& object, const std::string& pagemap_file,
                const std::vector<std::pair<uint64_t, uint64_t>>& entries) {
    criu::Pagemap pagemap;
    pagemap.pages_id = id;
    std::string& pages = files_[absl::StrCat("pages-", id, ".img")];
    for (auto [address, count] : entries) {
      std::string part = store::MakePages(count, address + id);
      if (count > 2) memset(&part[kPageSize], 0, kPageSize);
      uint64_t at = absl::StartsWith(object, v1::kRawPagesPrefix) ? pages.size() : address;
      image_.objects[object][at] = part;
      pages += part;
      pagemap.entries.push_back({address, count, criu::kPagePresent, 0});
      pagemap.entries.push_back({address + count * kPageSize, 1, 0, 0});  // a hole
    }
    Add(pagemap_file, criu::SerializePagemap(pagemap));
    v1::PagesObject* entry = manifest_.add_pages();
    entry->set_pages_id(id);
    entry->set_object(object);
    entry->set_pagemap_file(pagemap_file);
  }

  std::string runtime() const { return folder_->path() + "/run"; }

  std::map<std::string, std::string> files_;  // the CRIU image directory that was captured
  store::TestImage image_;
  v1::JobManifest manifest_;
  std::unique_ptr<store::ImageReader> reader_;
};

std::map<std::string, std::string> FilesIn(const std::string& directory) {
  std::map<std::string, std::string> files;
  std::vector<std::string> names = ListDirectory(directory).value();
  for (const std::string& name : names) files[name] = ReadFile(directory + "/" + name).value();
  return files;
}

std::vector<std::string> Differences(const std::map<std::string, std::string>& a,
                                     const std::map<std::string, std::string>& b) {
  std::vector<std::string> names;
  for (const auto& [name, content] : a) {
    if (!b.contains(name) || b.at(name) != content) names.push_back(name);
  }
  for (const auto& [name, content] : b) {
    if (!a.contains(name)) names.push_back(name);
  }
  return names;
}

TEST_F(ImageDirectoryTest, ExportIsByteForByteWhatWasCaptured) {
  std::string directory = folder_->path() + "/export";
  auto result = ExportCriuDirectory(*store_, "job:1", directory, ::geteuid(), nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(Differences(files_, FilesIn(directory)), IsEmpty());
  uint64_t bytes = 0;
  for (const auto& [name, content] : files_) bytes += content.size();
  EXPECT_EQ(result->files, files_.size());
  EXPECT_EQ(result->bytes, bytes);
}

TEST_F(ImageDirectoryTest, ExportRefusesAFolderThatIsNotEmptyAndLeavesItAlone) {
  std::string directory = folder_->path() + "/export";
  RK_ASSERT_OK(MakeDirectories(directory));
  RK_ASSERT_OK(WriteFileAtomically(directory + "/precious", "data"));
  absl::Status status = ExportCriuDirectory(*store_, "job:1", directory, ::geteuid(), nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory));
  EXPECT_THAT(ListDirectory(directory).value(), ElementsAre("precious"));
}

TEST_F(ImageDirectoryTest, AreasThatOverlapAreNotServed) {
  RK_ASSERT_OK(ReadTaskMemories(*reader_, manifest_).status());
  Add("mm-71.img",
      criu::MakeMm({criu::AnonymousArea(0x47000, kPageSize), criu::AnonymousArea(0x40000, 8 * kPageSize)}));
  RK_ASSERT_OK(image_.Commit(*store_, "job:2"));
  auto reader = store_->OpenImage("job:2");
  RK_ASSERT_OK(reader);
  const absl::Status refused = ReadTaskMemories(**reader, manifest_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("process 71 overlap at 0x47000"));
}

TEST_F(ImageDirectoryTest, FailedExportLeavesNothing) {
  // The manifest speaks of pages that the image does not hold.
  manifest_.mutable_pages(1)->set_object("mem/99");
  image_.blobs[v1::kJobManifestObject] = manifest_.SerializeAsString();
  RK_ASSERT_OK(image_.Commit(*store_, "broken:1"));
  std::string directory = folder_->path() + "/export";
  EXPECT_FALSE(ExportCriuDirectory(*store_, "broken:1", directory, ::geteuid(), nullptr).ok());
  EXPECT_FALSE(PathExists(directory));
  RK_ASSERT_OK(MakeDirectories(directory));
  EXPECT_FALSE(ExportCriuDirectory(*store_, "broken:1", directory, ::geteuid(), nullptr).ok());
  EXPECT_THAT(ListDirectory(directory).value(), IsEmpty());
}

// Does something once some pages are written, before the rest is.
class InTheMiddle final : public RestoreObserver {
 public:
  explicit InTheMiddle(std::function<void()> act) : act_(std::move(act)) {}
  void OnProgress(const RestoreProgress&) override {
    if (act_) std::exchange(act_, nullptr)();
  }

 private:
  std::function<void()> act_;
};

TEST_F(ImageDirectoryTest, CancelledExportLeavesNothing) {
  const std::string directory = folder_->path() + "/export";
  std::atomic<bool> cancel{false};
  InTheMiddle cancels([&] { cancel = true; });
  const absl::Status status =
      ExportCriuDirectory(*store_, "job:1", directory, ::geteuid(), &cancels, &cancel).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_FALSE(PathExists(directory));
}

constexpr uint64_t kLeftToOthers = 16u << 20;  // of a file system in memory

// A file system in memory, of this size, while it lives.
class SmallMemory {
 public:
  SmallMemory(const std::string& path, uint64_t bytes) : path_(path) {
    EXPECT_EQ(::mount("none", path.c_str(), "tmpfs", 0, absl::StrCat("size=", bytes).c_str()), 0);
  }
  ~SmallMemory() { ::umount2(path_.c_str(), MNT_DETACH); }
  SmallMemory(const SmallMemory&) = delete;
  SmallMemory& operator=(const SmallMemory&) = delete;

 private:
  const std::string path_;
};

TEST_F(ImageDirectoryTest, ExportWritesToNewFilesOnly) {
  const std::string directory = folder_->path() + "/export", victim = folder_->path() + "/victim";
  RK_ASSERT_OK(WriteFileAtomically(victim, "precious"));
  InTheMiddle plants([&] { ASSERT_EQ(::symlink(victim.c_str(), (directory + "/pages-4.img").c_str()), 0); });
  absl::Status status = ExportCriuDirectory(*store_, "job:1", directory, ::geteuid(), &plants).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory + "/pages-4.img"));
  EXPECT_EQ(ReadFile(victim).value(), "precious");
  // What was not its own is left.
  EXPECT_THAT(ListDirectory(directory).value(), ElementsAre("pages-4.img"));
}

TEST_F(ImageDirectoryTest, ExportStaysInTheFolderWhoseNameLeadsElsewhereMeanwhile) {
  const std::string directory = folder_->path() + "/export", other = folder_->path() + "/other";
  RK_ASSERT_OK(MakeDirectories(other));
  InTheMiddle swaps([&] {
    ASSERT_EQ(::rename(directory.c_str(), (directory + ".moved").c_str()), 0);
    ASSERT_EQ(::symlink(other.c_str(), directory.c_str()), 0);
  });
  RK_ASSERT_OK(ExportCriuDirectory(*store_, "job:1", directory, ::geteuid(), &swaps));
  EXPECT_THAT(ListDirectory(other).value(), IsEmpty());
  EXPECT_THAT(Differences(files_, FilesIn(directory + ".moved")), IsEmpty());
  // Such a name is refused from the beginning.
  absl::Status status = ExportCriuDirectory(*store_, "job:1", directory, ::geteuid(), nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("symbolic link"));
}

TEST_F(ImageDirectoryTest, ExportTrustsNoFolderToWhichOthersWrite) {
  const std::string directory = folder_->path() + "/export";
  RK_ASSERT_OK(MakeDirectories(directory));
  auto refused = [&](uid_t caller) {
    absl::Status status = ExportCriuDirectory(*store_, "job:1", directory, caller, nullptr).status();
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return !status.ok();
  };
  for (const mode_t mode : {0775, 0707, 01777}) {
    ASSERT_EQ(::chmod(directory.c_str(), mode), 0);
    EXPECT_TRUE(refused(::geteuid())) << mode;
  }
  ASSERT_EQ(::chmod(directory.c_str(), 0755), 0);
  if (::geteuid() == 0) {
    constexpr uid_t kOther = 65534;
    ASSERT_EQ(::chown(directory.c_str(), kOther, kOther), 0);
    EXPECT_TRUE(refused(0));
    EXPECT_TRUE(refused(kOther + 1));
    EXPECT_FALSE(refused(kOther));
  } else {
    EXPECT_FALSE(refused(::geteuid()));
  }
}

TEST_F(ImageDirectoryTest, ExportHasAnInventoryOnlyWhenAllElseIsThere) {
  const std::string directory = folder_->path() + "/export";
  std::vector<std::string> names;
  InTheMiddle looks([&] { names = ListDirectory(directory).value(); });
  RK_ASSERT_OK(ExportCriuDirectory(*store_, "job:1", directory, ::geteuid(), &looks));
  EXPECT_THAT(names, ::testing::Contains("pages-1.img"));
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("inventory.img")));
  EXPECT_TRUE(PathExists(directory + "/inventory.img"));
}

TEST_F(ImageDirectoryTest, ExportOfAnImageThatHoldsNoJobSaysSo) {
  store::TestImage other;
  other.blobs["a"] = "b";
  RK_ASSERT_OK(other.Commit(*store_, "other:1"));
  absl::Status status =
      ExportCriuDirectory(*store_, "other:1", folder_->path() + "/export", ::geteuid(), nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds no job"));
}

TEST_F(ImageDirectoryTest, ManifestOfANewerFormatIsRefused) {
  manifest_.set_format(2);
  image_.blobs[v1::kJobManifestObject] = manifest_.SerializeAsString();
  RK_ASSERT_OK(image_.Commit(*store_, "newer:1"));
  auto reader = store_->OpenImage("newer:1");
  RK_ASSERT_OK(reader);
  absl::Status status = ReadJobManifest(**reader).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("install a newer one"));
}

TEST_F(ImageDirectoryTest, FileNameThatLeavesTheFolderIsRefused) {
  store::TestImage hostile;
  hostile.blobs["criu/../escaped"] = "content";
  RK_ASSERT_OK(hostile.Commit(*store_, "hostile:1"));
  auto reader = store_->OpenImage("hostile:1");
  RK_ASSERT_OK(reader);
  std::string directory = folder_->path() + "/out";
  RK_ASSERT_OK(MakeDirectories(directory));
  auto make = [&](const std::string& name) { return OpenFile(directory + "/" + name, O_WRONLY | O_CREAT); };
  EXPECT_EQ(WriteCriuFiles(**reader, make, nullptr).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(PathExists(folder_->path() + "/escaped"));
}

TEST_F(ImageDirectoryTest, LayOutWithholdsTheHeapAndNothingElse) {
  std::atomic<uint64_t> done{0};
  std::string path;
  {
    auto directory = ImageDirectory::Make(*reader_, manifest_, runtime(), PagesWanted::kEager, &done);
    ASSERT_TRUE(directory.ok()) << directory.status();
    path = directory->path();
    std::map<std::string, std::string> laid_out = FilesIn(path);
    EXPECT_EQ(laid_out.erase("lock"), 1u);
    EXPECT_THAT(Differences(files_, laid_out), ElementsAre("pagemap-70.img", "pages-1.img"));
    EXPECT_TRUE(laid_out["pages-1.img"] == files_["pages-1.img"].substr(0, 3 * kPageSize));
    criu::Pagemap kept = criu::ParsePagemap(laid_out["pagemap-70.img"]).value();
    EXPECT_EQ(kept.present_pages(), 3u);
    EXPECT_EQ(kept.pages_id, 1u);

    ASSERT_THAT(directory->withheld(), SizeIs(1));
    EXPECT_EQ(directory->withheld()[0].pid, 70);
    EXPECT_EQ(directory->withheld()[0].bytes, 1000 * kPageSize);
    ASSERT_THAT(directory->tree(), SizeIs(2));
    EXPECT_THAT(directory->tree()[0].threads, ElementsAre(70, 72));
    // 3 + 3 + 5 + 3 pages are laid out, two of them zero.
    EXPECT_EQ(done, 12 * kPageSize);
  }
  EXPECT_FALSE(PathExists(path));
}

TEST_F(ImageDirectoryTest, FolderOfADeadRestoreIsRemovedAndThatOfALivingOneIsNot) {
  RK_ASSERT_OK(MakeDirectories(runtime()));
  std::string note = folder_->path() + "/path-of-the-dead";
  reader_.reset();
  store_.reset();
  pid_t dead = store::StartChild([&]() -> std::string {
    Reopen();
    auto image = store_->OpenImage("job:1").value();
    std::atomic<uint64_t> done{0};
    auto directory = ImageDirectory::Make(*image, manifest_, runtime(), PagesWanted::kEager, &done);
    if (!directory.ok()) return directory.status().ToString();
    if (!WriteFileAtomically(note, directory->path()).ok()) return "note";
    ::kill(::getpid(), SIGKILL);
    return "alive";
  });
  ASSERT_TRUE(WIFSIGNALED(store::WaitForChild(dead)));
  std::string left = ReadFile(note).value();
  ASSERT_TRUE(PathExists(left));

  Reopen();
  auto image = store_->OpenImage("job:1").value();
  std::atomic<uint64_t> done{0};
  auto living = ImageDirectory::Make(*image, manifest_, runtime(), PagesWanted::kEager, &done);
  ASSERT_TRUE(living.ok()) << living.status();
  EXPECT_FALSE(PathExists(left));
  auto another = ImageDirectory::Make(*image, manifest_, runtime(), PagesWanted::kEager, &done);
  ASSERT_TRUE(another.ok()) << another.status();
  EXPECT_TRUE(PathExists(living->path() + "/pstree.img"));
}

TEST_F(ImageDirectoryTest, WhatDoesNotFitIsInMemoryOfItsOwn) {
  RK_ASSERT_OK(MakeDirectories(runtime()));
  SmallMemory small(runtime(), kLeftToOthers);
  std::atomic<uint64_t> done{0};
  std::string path;
  {
    auto directory = ImageDirectory::Make(*reader_, manifest_, runtime(), PagesWanted::kEager, &done);
    ASSERT_TRUE(directory.ok()) << directory.status();
    path = directory->path();
    // Under that name for others as well, and not a link: whoever has only the folder may be in other mounts.
    EXPECT_THAT(path, testing::StartsWith(absl::StrCat("/proc/", ::getpid(), "/fd/")));
    EXPECT_THAT(Differences(files_, FilesIn(path)), ElementsAre("pagemap-70.img", "pages-1.img"));
    struct stat info;
    ASSERT_EQ(::lstat((path + "/pages-1.img").c_str(), &info), 0);
    EXPECT_TRUE(S_ISREG(info.st_mode));
    EXPECT_THAT(ListDirectory(directory->name()).value(), ElementsAre("lock"));
    RK_ASSERT_OK(WriteFileAtomically(path + "/restore.log", "why it failed"));
    const std::string kept = KeepRestoreLog(runtime(), path, directory->name());
    EXPECT_EQ(ReadFile(kept + "/restore.log").value(), "why it failed");
    EXPECT_THAT(kept, testing::StartsWith(runtime() + "/failed-restore-"));
    RK_ASSERT_OK(RemoveTree(kept));
  }
  EXPECT_FALSE(PathExists(path + "/pstree.img"));
  EXPECT_THAT(ListDirectory(runtime()).value(), SizeIs(1));  // the lock of those that begin
}

TEST_F(ImageDirectoryTest, WhatIsLazyGoesToSharedMemoryWhereItDoesNotFit) {
  RK_ASSERT_OK(MakeDirectories(runtime()));
  SmallMemory small(runtime(), kLeftToOthers);
  std::atomic<uint64_t> done{0};
  const auto make = [&](const store::ImageReader& image) {
    return ImageDirectory::Make(image, manifest_, runtime(), PagesWanted::kLazy, &done);
  };
  std::string path;
  {
    auto directory = make(*reader_);
    ASSERT_TRUE(directory.ok()) << directory.status();
    path = directory->path();
    EXPECT_THAT(path, testing::StartsWith("/dev/shm/"));
    EXPECT_TRUE(PathExists(path + "/pstree.img"));
  }
  EXPECT_FALSE(PathExists(path));

  // Of one that has died it is removed like any other.
  reader_.reset();
  store_.reset();
  const std::string note = folder_->path() + "/path-of-the-dead";
  const pid_t dead = store::StartChild([&]() -> std::string {
    Reopen();
    auto directory = make(*store_->OpenImage("job:1").value());
    if (!directory.ok()) return directory.status().ToString();
    if (!WriteFileAtomically(note, directory->path()).ok()) return "note";
    ::kill(::getpid(), SIGKILL);
    return "alive";
  });
  ASSERT_TRUE(WIFSIGNALED(store::WaitForChild(dead)));
  path = ReadFile(note).value();
  ASSERT_TRUE(PathExists(path));
  RemoveDeadRestores(runtime());
  EXPECT_FALSE(PathExists(path));
}

TEST_F(ImageDirectoryTest, KeptLogsHoldTheLogAndNoImages) {
  std::atomic<uint64_t> done{0};
  std::vector<std::string> kept;
  for (int i = 0; i < 10; ++i) {
    auto directory = ImageDirectory::Make(*reader_, manifest_, runtime(), PagesWanted::kEager, &done);
    ASSERT_TRUE(directory.ok()) << directory.status();
    RK_ASSERT_OK(WriteFileAtomically(directory->path() + "/restore.log", "why it failed"));
    kept.push_back(KeepRestoreLog(runtime(), directory->path(), directory->name()));
  }
  EXPECT_THAT(ListDirectory(kept.back()).value(), ElementsAre("restore.log"));
  EXPECT_EQ(ReadFile(kept.back() + "/restore.log").value(), "why it failed");
  EXPECT_THAT(ListDirectory(runtime()).value(), SizeIs(8 + 1));  // and the lock of those that begin
}

TEST_F(ImageDirectoryTest, PagesFileOfAShorterPagemapHasItsPagesOnly) {
  criu::Pagemap some;
  some.entries = {{kHeap + 2 * kPageSize, 3, criu::kPagePresent, 0},
                  {kHeap + 620 * kPageSize, 1, criu::kPagePresent, 0}};
  std::string path = folder_->path() + "/pages";
  std::atomic<uint64_t> done{0};
  auto file = OpenFile(path, O_WRONLY | O_CREAT);
  RK_ASSERT_OK(file);
  RK_ASSERT_OK(WritePagesFile(*reader_, manifest_.pages(0), some, file->get(), path, &done));
  const std::string& all = files_["pages-1.img"];
  EXPECT_TRUE(ReadFile(path).value() ==
              all.substr((3 + 2) * kPageSize, 3 * kPageSize) + all.substr(603 * kPageSize, kPageSize));
  EXPECT_EQ(done, 4 * kPageSize);

  const std::atomic<bool> cancel{true};
  absl::Status status = WritePagesFile(*reader_, manifest_.pages(0), some, file->get(), path, &done, &cancel);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(done, 4 * kPageSize);

  // What the image does not hold is an error, never zeros.
  some.entries = {{kHeap + 600 * kPageSize, 1, criu::kPagePresent, 0}};
  status = WritePagesFile(*reader_, manifest_.pages(0), some, file->get(), path, &done);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
}

}  // namespace
}  // namespace rekindle::restore
