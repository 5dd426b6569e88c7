#include "restore/file_identities.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "criu/build_id.h"

namespace rekindle::restore {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kLibrary[] = "/lib/x86_64-linux-gnu/libc.so.6",
               kOtherLibrary[] = "/lib/x86_64-linux-gnu/libm.so.6";

std::string BuildIdOf(const std::string& path) {
  absl::StatusOr<UniqueFd> file = OpenFile(path, O_RDONLY);
  return criu::ReadBuildId(file->get()).value();
}

class FileIdentitiesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Copy(kLibrary);
    file_.path = path();
    file_.build_id = BuildIdOf(kLibrary);
    text_.path = directory_.path() + "/text";
    std::filesystem::copy_file("/etc/passwd", text_.path);
  }
  void Copy(const std::string& from) {
    std::filesystem::copy_file(from, path(), std::filesystem::copy_options::overwrite_existing);
  }
  std::string path() const { return directory_.path() + "/library"; }

  TemporaryDirectory directory_ = *TemporaryDirectory::Make("/var/tmp", "rekindle-test-");
  criu::RegularFile file_, text_;
};

TEST_F(FileIdentitiesTest, KnowsTheSameFile) {
  absl::StatusOr<FileIdentities> checked = FileIdentities::Check({file_, text_, file_});
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_THAT(checked->known(), ElementsAre(path()));
  EXPECT_TRUE(checked->Unchanged());
  EXPECT_TRUE(FileIdentities().Unchanged());
}

TEST_F(FileIdentitiesTest, RefusesAnotherBuild) {
  Copy(kOtherLibrary);
  absl::Status status = FileIdentities::Check({file_}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path() + " is another build"));
}

TEST_F(FileIdentitiesTest, NoticesEveryChange) {
  const FileIdentities checked = *FileIdentities::Check({file_});
  ASSERT_TRUE(checked.Unchanged());
  // The same bytes in a new file, as a package's upgrade leaves them.
  const std::string next = path() + ".new";
  std::filesystem::copy_file(path(), next);
  ASSERT_EQ(::rename(next.c_str(), path().c_str()), 0);
  EXPECT_FALSE(checked.Unchanged());
  const FileIdentities again = *FileIdentities::Check({file_});
  UniqueFd file(::open(path().c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::pwrite(file.get(), "x", 1, 100000), 1);
  EXPECT_FALSE(again.Unchanged());
  const FileIdentities gone = *FileIdentities::Check({file_});
  ASSERT_EQ(::unlink(path().c_str()), 0);
  EXPECT_FALSE(gone.Unchanged());
}

// What it can't judge CRIU does.
TEST_F(FileIdentitiesTest, LeavesTheRestToCriu) {
  criu::RegularFile absent = file_, folder = file_, no_program = text_, ghost = file_;
  absent.path = path() + ".absent";
  folder.path = directory_.path();
  no_program.build_id = file_.build_id;
  ghost.ghost = true;
  absl::StatusOr<FileIdentities> checked = FileIdentities::Check({absent, folder, no_program, ghost});
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_THAT(checked->known(), IsEmpty());
}

TEST_F(FileIdentitiesTest, WhatWasCheckedBeforeIsNotOpenedAgain) {
  criu::RegularFile library = file_;
  library.path = kLibrary;  // whose last change is long ago
  const FileIdentities first = *FileIdentities::Check({library, file_});
  EXPECT_EQ(first.opened(), 2u);
  // This test's own copy may change again at the same moment.
  const FileIdentities::Checked lasting = first.Lasting();
  ASSERT_EQ(lasting.size(), 1u);
  ASSERT_EQ(lasting.count(kLibrary), 1u);
  const FileIdentities second = *FileIdentities::Check({library, file_}, lasting);
  EXPECT_EQ(second.opened(), 1u);
  EXPECT_THAT(second.known(), ElementsAre(kLibrary, path()));
  EXPECT_EQ(second.Lasting(), lasting);
  // Anything else about it, and it is looked at.
  for (int what = 0; what < 5; ++what) {
    FileIdentities::Checked other = lasting;
    FileIdentity& identity = other.begin()->second;
    (what == 0 ? identity.device : what == 1 ? identity.inode : identity.size) += what < 3 ? 1 : 0;
    (what == 3 ? identity.modified_ns : identity.changed_ns) += what < 3 ? 0 : 1;
    const FileIdentities third = *FileIdentities::Check({library}, other);
    EXPECT_EQ(third.opened(), 1u) << what;
    EXPECT_THAT(third.known(), ElementsAre(kLibrary));
  }
  // What a file was known as does not count for one that has another build by now.
  Copy(kOtherLibrary);
  struct stat before;
  ASSERT_EQ(::stat(path().c_str(), &before), 0);
  FileIdentity stale = FileIdentity::Of(before);
  --stale.changed_ns;
  EXPECT_EQ(FileIdentities::Check({file_}, {{path(), stale}}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(FileIdentitiesTest, ManyFiles) {
  std::vector<criu::RegularFile> files(200, file_);
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].path = absl::StrCat(path(), i);
    std::filesystem::copy_file(path(), files[i].path);
  }
  EXPECT_EQ(FileIdentities::Check(files)->known().size(), files.size());
  std::filesystem::copy_file(kOtherLibrary, files[150].path,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(std::string(FileIdentities::Check(files).status().message()), HasSubstr(files[150].path));
}

}  // namespace
}  // namespace rekindle::restore
