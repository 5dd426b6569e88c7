#include "ckpt/lost_names.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "criu/test_images.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr uint64_t kLimit = 100;
constexpr char kRun[] = "01234567-89ab-4cde-8f01-23456789abcd";

// A job whose root folder is a temporary one, as that of a container.
class LostNamesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto folder = TemporaryDirectory::Make(testing::TempDir(), "lost_names_test.");
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_ = std::make_unique<TemporaryDirectory>(*std::move(folder));
    ASSERT_EQ(::mkdir(Path("/d").c_str(), 0700), 0);
    ASSERT_EQ(::mkdir(Path("/e").c_str(), 0700), 0);
    Make("/d/link_remap.7", "content");
    files_["files.img"] =
        criu::MakeFiles({{2, "/d/lost", 7, O_RDWR, 0}, {7, "/d/link_remap.7", 0, O_RDONLY, 0}});
    files_["remap-fpath.img"] = criu::MakeRemaps({{2, 7, 0}});
  }

  std::string Path(const std::string& inside) const { return folder_->path() + inside; }

  void Make(const std::string& name, const std::string& content) {
    ASSERT_TRUE(WriteFileAtomically(Path(name), content, 0640).ok());
  }
  void Link(const std::string& name) {
    ASSERT_EQ(::link(Path("/d/link_remap.7").c_str(), Path(name).c_str()), 0);
  }

  absl::StatusOr<LostNames> Look(ReadableFiles readable = {}) {
    return LookAtLostNames(files_, kRun, folder_->path(), "70.1", kLimit, &readable);
  }

  std::vector<std::string> NamesInImages() {
    std::vector<std::string> names;
    auto files = criu::ParseRegularFiles(files_["files.img"], files_["remap-fpath.img"]);
    EXPECT_TRUE(files.ok()) << files.status();
    for (const criu::RegularFile& file : *files) names.push_back(file.path + (file.ghost ? " (ghost)" : ""));
    return names;
  }

  std::unique_ptr<TemporaryDirectory> folder_;
  std::map<std::string, std::string> files_;
};

TEST_F(LostNamesTest, AnotherNameInTheFolderIsTaken) {
  Link("/d/z");
  Link("/d/b");
  Link("/d/link_remap.12");  // of another dump
  Make("/d/a", "content");   // another file
  auto names = Look();
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(names->warnings, IsEmpty());
  ASSERT_TRUE(PutIntoImages(*names, &files_).ok());
  EXPECT_THAT(NamesInImages(), ElementsAre("/d/b"));

  RemoveExtraNames(*names, folder_->path());
  EXPECT_NE(::access(Path("/d/link_remap.7").c_str(), F_OK), 0);
  EXPECT_EQ(::access(Path("/d/link_remap.12").c_str(), F_OK), 0);
}

TEST_F(LostNamesTest, EachOfSeveralInSeveralFoldersIsFound) {
  std::vector<criu::TestFile> files;
  std::vector<criu::TestRemap> remaps;
  for (uint32_t i = 0; i < 20; ++i) {
    const std::string folder = i % 2 == 0 ? "/d/" : "/e/";
    const std::string extra = absl::StrCat(folder, "link_remap.", 100 + i);
    Make(extra, absl::StrCat(i));
    for (const char* name : {"other", "another"}) {
      ASSERT_EQ(::link(Path(extra).c_str(), Path(absl::StrCat(folder, name, i)).c_str()), 0);
    }
    files.push_back({200 + i, absl::StrCat(folder, "lost", i), 7, O_RDONLY, 0});
    files.push_back({100 + i, extra, 0, O_RDONLY, 0});
    remaps.push_back({200 + i, 100 + i, 0});
  }
  files_["files.img"] = criu::MakeFiles(files);
  files_["remap-fpath.img"] = criu::MakeRemaps(remaps);
  auto names = Look();
  ASSERT_TRUE(names.ok()) << names.status();
  ASSERT_EQ(names->by_link.size(), 20u);
  for (uint32_t i = 0; i < 20; ++i) {
    const std::string folder = i % 2 == 0 ? "/d/" : "/e/";
    EXPECT_EQ(names->by_link[absl::StrCat(folder, "link_remap.", 100 + i)].name,
              absl::StrCat(folder, "another", i));
  }
}

TEST_F(LostNamesTest, OfAFileWithNamesElsewhereTheContentIsTaken) {
  Link("/e/other");
  ASSERT_EQ(::chmod(Path("/e/other").c_str(), 0604), 0);
  auto names = Look();
  ASSERT_TRUE(names.ok()) << names.status();
  ASSERT_EQ(names->by_link.size(), 1u);
  const criu::LinkReplacement& replacement = names->by_link["/d/link_remap.7"];
  EXPECT_EQ(replacement.content, "content");
  EXPECT_EQ(replacement.mode, S_IFREG | 0604u);
  EXPECT_EQ(replacement.uid, ::geteuid());
  EXPECT_THAT(names->warnings, ElementsAre(HasSubstr("/d/lost, which the job writes")));
  const std::map<std::string, std::string> before = files_;
  ASSERT_TRUE(PutIntoImages(names->WithoutContents(), &files_).ok());
  EXPECT_THAT(NamesInImages(), ElementsAre("/d/lost (ghost)"));
  EXPECT_THAT(files_["ghost-file-1.img"], Not(HasSubstr("content")));
  files_ = before;
  ASSERT_TRUE(PutIntoImages(*names, &files_).ok());
  EXPECT_THAT(NamesInImages(), ElementsAre("/d/lost (ghost)"));
  EXPECT_TRUE(criu::HasContent("ghost-file-1.img"));
  EXPECT_THAT(files_["ghost-file-1.img"], EndsWith("content"));
}

// As nameless_memory.c has it: a symbolic link to a descriptor, by a path of the job's.
TEST_F(LostNamesTest, SharedMemoryWithoutANameGetsOneForTheRestore) {
  ASSERT_EQ(::unlink(Path("/d/link_remap.7").c_str()), 0);
  ASSERT_EQ(::symlink("/proc/8/fd/9", Path("/d/link_remap.7").c_str()), 0);
  EXPECT_EQ(Look().status().code(), absl::StatusCode::kNotFound) << Look().status();
  for (const char* folder : {"/proc", "/proc/8", "/proc/8/fd"}) {
    ASSERT_EQ(::mkdir(Path(folder).c_str(), 0700), 0);
  }
  Make("/proc/8/fd/9", std::string(kLimit + 1, 'x'));
  struct stat info;
  ASSERT_EQ(::stat(Path("/proc/8/fd/9").c_str(), &info), 0);
  auto names = Look();
  ASSERT_TRUE(names.ok()) << names.status();
  const std::string name = absl::StrCat(v1::kNamelessPrefix, "70.1.", info.st_ino);
  EXPECT_THAT(names->nameless, ElementsAre(Pair(name, Path("/proc/8/fd/9"))));
  ASSERT_TRUE(PutIntoImages(*names, &files_).ok());
  EXPECT_THAT(NamesInImages(), ElementsAre(name));
}

// As a job's owner may do while it stands still, to have root read what he can't.
TEST_F(LostNamesTest, WhatSomebodyPutsInThePlaceOfALinkIsNotRead) {
  const ReadableFiles of_the_job(::geteuid() + 1, {});
  EXPECT_EQ(Look(of_the_job).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Look(ReadableFiles(::geteuid(), {})).ok()) << "his own file";
  const UniqueFd file = OpenFile(Path("/d/link_remap.7"), O_RDONLY).value();
  EXPECT_TRUE(Look(ReadableFiles(::geteuid() + 1, {::getpid()})).ok()) << "open in the job";

  Make("/e/secret", "secret");
  ASSERT_EQ(::unlink(Path("/d/link_remap.7").c_str()), 0);
  ASSERT_EQ(::symlink("/e/secret", Path("/d/link_remap.7").c_str()), 0);
  auto names = Look();
  EXPECT_EQ(names.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(names.status().message()), HasSubstr("leads to /e/secret"));

  ASSERT_EQ(::unlink(Path("/d/link_remap.7").c_str()), 0);
  ASSERT_EQ(::rmdir(Path("/d").c_str()), 0);
  Make("/e/link_remap.7", "secret");
  ASSERT_EQ(::symlink("e", Path("/d").c_str()), 0);
  EXPECT_TRUE(absl::IsNotFound(Look().status())) << Look().status();
}

TEST_F(LostNamesTest, NoMoreContentThanTheLimit) {
  Make("/d/link_remap.7", std::string(kLimit + 1, 'x'));
  EXPECT_EQ(Look().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(Look().status().message()), HasSubstr("/d/lost"));
  Make("/d/link_remap.7", std::string(kLimit, 'x'));
  EXPECT_TRUE(Look().ok());
}

// A file whose content is longer than it says, as one is that others write to meanwhile.
TEST_F(LostNamesTest, AFileThatGrowsWhileItIsRead) {
  absl::Status mounted, looked;
  std::thread elsewhere([&] {
    if (::unshare(CLONE_FS | CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("/proc/version", Path("/d/link_remap.7").c_str(), nullptr, MS_BIND, nullptr) != 0) {
      mounted = ErrnoStatus(errno, "mounting");
      return;
    }
    looked = Look().status();
  });
  elsewhere.join();
  if (!mounted.ok()) GTEST_SKIP() << mounted;
  EXPECT_TRUE(absl::IsAborted(looked)) << looked;
  EXPECT_THAT(std::string(looked.message()), HasSubstr("/d/lost"));
}

// As extra_names.c makes them; the one without a run's name is another dump's.
TEST_F(LostNamesTest, ExtraNamesOfTheRunGoBeforeOthers) {
  Make(absl::StrCat("/d/link_remap.7.", kRun), "of this run");
  auto names = Look();
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(names->by_link["/d/link_remap.7"].content, "of this run");
  RemoveExtraNames(*names, folder_->path());
  EXPECT_NE(::access(Path(absl::StrCat("/d/link_remap.7.", kRun)).c_str(), F_OK), 0);
  EXPECT_EQ(::access(Path("/d/link_remap.7").c_str(), F_OK), 0);
}

TEST_F(LostNamesTest, OfADeadRunOnlyItsExtraNamesAreRemoved) {
  const std::string left = Path(absl::StrCat("/d/link_remap.7.", kRun));
  const std::string work = Path("/e");
  Make(absl::StrCat("/d/link_remap.7.", kRun), "");
  Make(absl::StrCat("/d/other.", kRun), "");
  ASSERT_TRUE(WriteFileAtomically(
                  absl::StrCat(work, "/extra-names"),
                  absl::StrCat(".", left, "\n", Path("/d/link_remap.7"), "\n",
                               Path(absl::StrCat("/d/other.", kRun)), "\n/gone/link_remap.1.", kRun, "\n"),
                  0600)
                  .ok());
  RemoveLeftExtraNames(work, "", ::getpid());
  EXPECT_EQ(::access(left.c_str(), F_OK), 0);
  RemoveLeftExtraNames(work, kRun, ::getpid());
  EXPECT_NE(::access(left.c_str(), F_OK), 0);
  EXPECT_EQ(::access(Path("/d/link_remap.7").c_str(), F_OK), 0);
  EXPECT_EQ(::access(Path(absl::StrCat("/d/other.", kRun)).c_str(), F_OK), 0);
}

TEST_F(LostNamesTest, ExtraNamesThatNobodyLookedAtAreRefused) {
  const auto before = files_;
  EXPECT_EQ(PutIntoImages(LostNames(), &files_).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(files_, before);
  ASSERT_EQ(::unlink(Path("/d/link_remap.7").c_str()), 0);
  EXPECT_TRUE(absl::IsNotFound(Look().status()));

  files_.erase("remap-fpath.img");
  EXPECT_TRUE(PutIntoImages(LostNames(), &files_).ok());
  files_.clear();
  EXPECT_TRUE(Look().ok()) << "a job with no files at all";
}

}  // namespace
}  // namespace rekindle::ckpt
