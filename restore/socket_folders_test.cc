#include "restore/socket_folders.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/test_user.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "restore/compatibility.h"

namespace rekindle::restore {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Names = SocketFolders::Names;

const Owner kUser{kNobody, kNobody, {}};

// Names begin in a folder of the test's.
class SocketFoldersTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    ASSERT_EQ(::chmod(root_.path().c_str(), 0755), 0);
    manifest_.set_job_id(absl::StrCat(ThisBootId(), "/1/2"));
    Folder("/", 0755, 0);
  }

  std::string Path(const std::string& name) const { return root_.path() + name; }
  struct stat Stat(const std::string& name) const {
    struct stat info = {};
    EXPECT_EQ(::lstat(Path(name).c_str(), &info), 0) << name;
    return info;
  }
  bool Exists(const std::string& name) const { return PathExists(Path(name)); }

  // Makes it, unless it is there, and has the image know of it as it is.
  v1::SocketFolder* Folder(const std::string& name, mode_t mode, uid_t owner) {
    (void)::mkdir(Path(name).c_str(), 0700);
    EXPECT_EQ(::chown(Path(name).c_str(), owner, owner), 0);
    EXPECT_EQ(::chmod(Path(name).c_str(), mode), 0);
    const struct stat info = Stat(name);
    struct statfs file_system;
    EXPECT_EQ(::statfs(Path(name).c_str(), &file_system), 0);
    v1::SocketFolder* folder = manifest_.add_socket_folders();
    folder->set_path(name);
    folder->set_mode(info.st_mode & 07777);
    folder->set_uid(info.st_uid);
    folder->set_gid(info.st_gid);
    folder->set_device(info.st_dev);
    folder->set_inode(info.st_ino);
    folder->set_file_system(static_cast<uint64_t>(file_system.f_type));
    return folder;
  }
  v1::SocketFolder* Gone(const std::string& name, mode_t mode, uid_t owner) {
    v1::SocketFolder* folder = Folder(name, mode, owner);
    EXPECT_EQ(::rmdir(Path(name).c_str()), 0);
    return folder;
  }
  // As of another file system than these tests have theirs on, one that stays when the machine starts anew.
  void OnDisk(uint64_t kind = 0xEF53) {
    struct statfs file_system;
    ASSERT_EQ(::statfs(root_.path().c_str(), &file_system), 0);
    if (static_cast<uint64_t>(file_system.f_type) != kind) GTEST_SKIP() << "needs a file system on a disk";
  }

  absl::StatusOr<SocketFolders> Make(const std::optional<Owner>& user = {}, Names names = Names::kOfOneJob) {
    return SocketFolders::Make(manifest_, root_.path(), user, names);
  }
  // Makes them for good.
  absl::Status MakeAndKeep(const std::optional<Owner>& user = {}) {
    auto made = Make(user);
    if (made.ok()) made->Keep();
    return made.status();
  }
  void Bind(const std::string& name) {
    sockets_.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, Path(name).c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(sockets_.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }

  TemporaryDirectory root_ = TemporaryDirectory::Make("/tmp", "rk_sf.").value();
  v1::JobManifest manifest_;
  std::vector<UniqueFd> sockets_;
};

TEST_F(SocketFoldersTest, AsTheyWere) {
  Folder("/tmp", 01777, 0);
  Gone("/tmp/a", 02750, 12);
  Folder("/tmp/b", 0711, 0);
  Gone("/tmp/b/c", 0700, 34);
  ASSERT_EQ(::rmdir(Path("/tmp/b").c_str()), 0);
  ASSERT_TRUE(MakeAndKeep().ok()) << MakeAndKeep();
  EXPECT_EQ(Stat("/tmp/a").st_mode & 07777, 02750u);
  EXPECT_EQ(Stat("/tmp/a").st_uid, 12u);
  EXPECT_EQ(Stat("/tmp/a").st_gid, 12u);
  EXPECT_EQ(Stat("/tmp/b").st_mode & 07777, 0711u);
  EXPECT_EQ(Stat("/tmp/b/c").st_uid, 34u);
}

TEST_F(SocketFoldersTest, WhatIsThereStaysAsItIs) {
  Folder("/run", 0700, 12)->set_mode(0755);
  ASSERT_TRUE(MakeAndKeep().ok());
  EXPECT_EQ(Stat("/run").st_mode & 07777, 0700u);
  EXPECT_TRUE(Make().value().empty());
}

TEST_F(SocketFoldersTest, GoAgainWhenTheRestoreFails) {
  Folder("/run", 0755, 0);
  Gone("/run/a", 0755, 0);
  Folder("/run/b", 0755, 0);
  Gone("/run/b/c", 0755, 0);
  ASSERT_EQ(::rmdir(Path("/run/b").c_str()), 0);
  {
    auto made = Make();
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_TRUE(Exists("/run/a") && Exists("/run/b/c"));
    Bind("/run/b/c/s");
    ASSERT_TRUE(WriteFileAtomically(Path("/run/a/file"), "").ok());
  }
  EXPECT_FALSE(Exists("/run/b")) << "a socket in it was CRIU's doing";
  EXPECT_TRUE(Exists("/run/a/file"));
}

TEST_F(SocketFoldersTest, OfCopiesOnlyWhatIsEmpty) {
  Gone("/a", 0755, 0);
  Gone("/b", 0755, 0);
  {
    auto made = Make({}, Names::kOfCopies);
    ASSERT_TRUE(made.ok()) << made.status();
    Bind("/a/s");
  }
  EXPECT_TRUE(Exists("/a/s")) << "it may be another copy's";
  EXPECT_FALSE(Exists("/b"));
}

TEST_F(SocketFoldersTest, WhatTheJobDidNotHaveIsThereForAWhile) {
  v1::SocketFolder* folder = manifest_.add_socket_folders();
  folder->set_path("/gone");
  folder->set_gone(true);
  Gone("/a", 0755, 0);
  for (const Names names : {Names::kOfOneJob, Names::kOfCopies}) {
    auto made = Make({}, names);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(Stat("/gone").st_mode & 07777, 0700u);
    Bind(absl::StrCat("/gone/", names == Names::kOfOneJob ? "s" : "t"));
    made->RemovePassing();
    EXPECT_EQ(Exists("/gone"), names == Names::kOfCopies) << "another copy may need it";
    EXPECT_TRUE(Exists("/a"));
    made->Keep();
  }
}

TEST_F(SocketFoldersTest, NoneOnAFileSystemThatIsNotMounted) {
  Gone("/mnt", 0755, 0)->set_device(1);
  EXPECT_THAT(MakeAndKeep().message(), AllOf(HasSubstr("/mnt"), HasSubstr(kMakeFolder)));
  EXPECT_FALSE(Exists("/mnt"));
}

TEST_F(SocketFoldersTest, NoneInAnotherFileSystem) {
  Gone("/a", 0755, 0);
  manifest_.mutable_socket_folders(0)->set_file_system(1);
  EXPECT_THAT(MakeAndKeep().message(), AllOf(HasSubstr("/a"), HasSubstr(kMakeFolder)));
  ASSERT_EQ(::chmod(root_.path().c_str(), 01777), 0);
  EXPECT_TRUE(MakeAndKeep().ok()) << "where everybody may have something no file system is mounted";
}

TEST_F(SocketFoldersTest, AfterTheMachineWasStartedAnew) {
  OnDisk();
  if (IsSkipped()) return;
  Gone("/a", 0755, 0);
  manifest_.set_job_id("another/1/2");
  const v1::SocketFolder root = manifest_.socket_folders(0);
  for (v1::SocketFolder& folder : *manifest_.mutable_socket_folders()) folder.set_device(77);
  manifest_.mutable_socket_folders(0)->set_inode(root.inode() + 1);
  EXPECT_THAT(MakeAndKeep().message(), HasSubstr(kMakeFolder));
  manifest_.mutable_socket_folders(0)->set_inode(root.inode());
  EXPECT_TRUE(MakeAndKeep().ok()) << "the folder above is the same, whatever its device";
}

TEST_F(SocketFoldersTest, InMemoryAfterTheMachineWasStartedAnew) {
  ASSERT_EQ(::mkdir(Path("/run").c_str(), 0755), 0);
  if (::mount("none", Path("/run").c_str(), "tmpfs", 0, nullptr) != 0) GTEST_SKIP() << "needs to mount";
  Folder("/run", 0755, 0);
  Gone("/run/app", 0750, 12);
  manifest_.set_job_id("another/1/2");
  for (v1::SocketFolder& folder : *manifest_.mutable_socket_folders()) folder.set_inode(12345);
  for (int i = 1; i < 3; ++i) manifest_.mutable_socket_folders(i)->set_device(77);
  const absl::Status made = MakeAndKeep();
  EXPECT_TRUE(made.ok()) << made;
  EXPECT_EQ(::umount(Path("/run").c_str()), 0);
  EXPECT_THAT(MakeAndKeep().message(), HasSubstr(kMakeFolder)) << "the disk below it is not the place";
}

TEST_F(SocketFoldersTest, ALinkThatLeadsNowhereIsNotFollowed) {
  Gone("/a", 0755, 0);
  ASSERT_EQ(::symlink("/elsewhere", Path("/a").c_str()), 0);
  EXPECT_THAT(MakeAndKeep().message(), AllOf(HasSubstr("/a"), HasSubstr("something else")));
  EXPECT_FALSE(Exists("/elsewhere"));
}

TEST_F(SocketFoldersTest, AFileInItsPlace) {
  Gone("/a", 0755, 0);
  ASSERT_TRUE(WriteFileAtomically(Path("/a"), "").ok());
  const absl::Status refused = MakeAndKeep();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("something else"));
}

TEST_F(SocketFoldersTest, LinksLeadNowhereOutOfTheRoot) {
  const auto outside = TemporaryDirectory::Make("/tmp", "rk_sf_outside.").value();
  Folder("/real", 0755, 0);
  ASSERT_EQ(::symlink("/real", Path("/link").c_str()), 0);
  v1::SocketFolder* link = manifest_.add_socket_folders();
  *link = manifest_.socket_folders(1);
  link->set_path("/link");
  Gone("/real/app", 0750, 0)->set_path("/link/app");
  ASSERT_TRUE(MakeAndKeep().ok()) << MakeAndKeep();
  EXPECT_TRUE(Exists("/real/app"));
  ASSERT_EQ(::rmdir(Path("/real/app").c_str()), 0);
  ASSERT_EQ(::unlink(Path("/link").c_str()), 0);
  ASSERT_EQ(::symlink(outside.path().c_str(), Path("/link").c_str()), 0);
  EXPECT_FALSE(MakeAndKeep().ok());
  EXPECT_FALSE(PathExists(outside.path() + "/app"));
}

// A service that is root makes them for a user.
class SocketFoldersOfUserTest : public SocketFoldersTest {};

TEST_F(SocketFoldersOfUserTest, TheyAreTheUsers) {
  Folder("/tmp", 01777, 0);
  Gone("/tmp/mine", 0751, kNobody);
  Gone("/tmp/roots", 01777, 0);
  ASSERT_TRUE(MakeAndKeep(kUser).ok()) << MakeAndKeep(kUser);
  EXPECT_EQ(Stat("/tmp/mine").st_uid, kNobody);
  EXPECT_EQ(Stat("/tmp/mine").st_gid, kNobody);
  EXPECT_EQ(Stat("/tmp/mine").st_mode & 07777, 0751u);
  EXPECT_EQ(Stat("/tmp/roots").st_uid, kNobody);
  EXPECT_EQ(Stat("/tmp/roots").st_mode & 07777, 0700u) << "nobody else gets rights that root's had given";
}

TEST_F(SocketFoldersOfUserTest, NotWhereTheUserMayMakeNone) {
  Folder("/run", 0755, 0);
  Gone("/run/app", 0750, kNobody);
  Folder("/tmp", 01777, 0);
  Gone("/tmp/first", 0700, kNobody);
  Folder("/closed", 0700, 0);
  const absl::Status refused = MakeAndKeep(kUser);
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("/run/app"), HasSubstr("uid 65534"), HasSubstr(kMakeFolder),
                                       HasSubstr("gid 65534, with mode 0750")));
  EXPECT_FALSE(Exists("/run/app"));
  EXPECT_FALSE(Exists("/tmp/first")) << "what was made before goes again";
}

TEST_F(SocketFoldersOfUserTest, NotBehindAnothersLink) {
  Folder("/home", 0700, 0);
  Folder("/tmp", 01777, 0);
  Folder("/tmp/x", 0755, kNobody);
  Gone("/tmp/x/app", 0755, kNobody);
  ASSERT_EQ(::rmdir(Path("/tmp/x").c_str()), 0);
  ASSERT_EQ(::symlink("/home", Path("/tmp/x").c_str()), 0);
  EXPECT_FALSE(MakeAndKeep(kUser).ok());
  EXPECT_FALSE(Exists("/home/app"));
}

TEST_F(SocketFoldersOfUserTest, AnotherHasMadeItMeanwhile) {
  Folder("/tmp", 01777, 0);
  Folder("/tmp/x", 0755, kNobody);
  ASSERT_TRUE(MakeAndKeep(kUser).ok());
  ASSERT_EQ(::chown(Path("/tmp/x").c_str(), 12, 12), 0);
  for (const auto& user : {std::optional<Owner>(), std::optional<Owner>(kUser)}) {
    const absl::Status refused = MakeAndKeep(user);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(refused.message(), AllOf(HasSubstr("/tmp/x"), HasSubstr("uid 12"), HasSubstr("remove it")));
  }
  manifest_.mutable_socket_folders(2)->set_uid(12);
  EXPECT_TRUE(MakeAndKeep(kUser).ok()) << "it always was";
}

TEST_F(SocketFoldersOfUserTest, RemovedWithTheUsersRights) {
  Folder("/tmp", 01777, 0);
  Gone("/tmp/x", 0700, kNobody);
  {
    auto made = Make(kUser);
    ASSERT_TRUE(made.ok()) << made.status();
    ASSERT_EQ(::rmdir(Path("/tmp/x").c_str()), 0);
    ASSERT_EQ(::mkdir(Path("/tmp/x").c_str(), 0700), 0);
  }
  EXPECT_TRUE(Exists("/tmp/x")) << "root's";
}

}  // namespace
}  // namespace rekindle::restore
