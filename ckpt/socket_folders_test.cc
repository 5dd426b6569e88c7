#include "ckpt/socket_folders.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_user.h"
#include "base/unique_fd.h"
#include "criu/test_images.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SocketFoldersTest : public testing::Test {
 protected:
  SocketFolders Look(const std::vector<criu::pb::UnixSocket>& sockets) {
    auto found = LookAtSocketFolders({{"files.img", criu::MakeUnixSockets(sockets)}}, folder_.path(), user_);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *std::move(found) : SocketFolders();
  }
  std::vector<std::string> PathsOf(const std::vector<criu::pb::UnixSocket>& sockets) {
    std::vector<std::string> paths;
    for (const v1::SocketFolder& folder : Look(sockets).folders) paths.push_back(folder.path());
    return paths;
  }
  void Make(const std::string& name, mode_t mode) {
    ASSERT_EQ(::mkdir((folder_.path() + name).c_str(), 0700), 0);
    ASSERT_EQ(::chmod((folder_.path() + name).c_str(), mode), 0);
  }

  void Bind(const std::string& name, uid_t owner) {
    const std::string path = folder_.path() + name;
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::chown(path.c_str(), owner, owner), 0);
  }

  uid_t user_ = kNobody;
  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_socket_folders_test.").value();
};

TEST_F(SocketFoldersTest, AsTheyAre) {
  Make("/run", 01777);
  Make("/run/app", 02750);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown((folder_.path() + "/run/app").c_str(), 12, 34), 0);
  }
  ASSERT_EQ(::chmod((folder_.path() + "/run/app").c_str(), 02750), 0);
  const std::vector<v1::SocketFolder> folders = Look({criu::ListeningSocket("/run/app/s")}).folders;
  ASSERT_THAT(folders, SizeIs(3));
  EXPECT_EQ(folders[0].path(), "/");
  EXPECT_EQ(folders[1].path(), "/run");
  EXPECT_EQ(folders[1].mode(), 01777u);
  struct stat info;
  struct statfs file_system;
  ASSERT_EQ(::stat((folder_.path() + "/run/app").c_str(), &info), 0);
  ASSERT_EQ(::statfs((folder_.path() + "/run/app").c_str(), &file_system), 0);
  const v1::SocketFolder& app = folders[2];
  EXPECT_EQ(app.path(), "/run/app");
  EXPECT_EQ(app.mode(), 02750u);
  EXPECT_EQ(app.uid(), info.st_uid);
  EXPECT_EQ(app.gid(), info.st_gid);
  EXPECT_EQ(app.device(), info.st_dev);
  EXPECT_EQ(app.inode(), info.st_ino);
  EXPECT_EQ(app.file_system(), static_cast<uint64_t>(file_system.f_type));
  EXPECT_FALSE(app.gone());
}

TEST_F(SocketFoldersTest, EachOnceWithAllAbove) {
  Make("/a", 0700);
  Make("/a/b", 0700);
  Make("/a-c", 0700);
  EXPECT_THAT(PathsOf({criu::ListeningSocket("//a/./b//s"), criu::ListeningSocket("/a/b/t"),
                       criu::ListeningSocket("/a-c/s"), criu::ListeningSocket("/s")}),
              ElementsAre("/", "/a", "/a-c", "/a/b"));
}

TEST_F(SocketFoldersTest, OfRelativeNames) {
  Make("/a", 0700);
  Make("/a/b", 0700);
  EXPECT_THAT(PathsOf({criu::ListeningSocket("b/s", "/a")}), ElementsAre("/", "/a", "/a/b"));
}

TEST_F(SocketFoldersTest, LinksAreFollowedInTheJobsRoot) {
  Make("/real", 0750);
  ASSERT_EQ(::symlink("/real", (folder_.path() + "/link").c_str()), 0);
  const std::vector<v1::SocketFolder> folders = Look({criu::ListeningSocket("/link/s")}).folders;
  ASSERT_THAT(folders, SizeIs(2));
  EXPECT_EQ(folders[1].path(), "/link");
  EXPECT_EQ(folders[1].mode(), 0750u);
}

TEST_F(SocketFoldersTest, ThoseThatAreGone) {
  criu::pb::UnixSocket nameless = criu::ListeningSocket("/x/y/s"),
                       relative = criu::ListeningSocket("s", "/r");
  nameless.set_deleted(true);
  relative.set_deleted(true);
  const std::vector<v1::SocketFolder> folders =
      Look({nameless, relative, criu::ListeningSocket("/moved/f/s")}).folders;
  ASSERT_THAT(folders, SizeIs(4)) << "for a nameless one CRIU makes them";
  EXPECT_FALSE(folders[0].gone());
  const char* const paths[] = {"/", "/moved", "/moved/f", "/r"};
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(folders[i].path(), paths[i]);
    EXPECT_TRUE(folders[i].gone());
  }
}

TEST_F(SocketFoldersTest, NamesThatDoNotSayWhereTheyLead) {
  Make("/a", 0700);
  EXPECT_THAT(PathsOf({criu::ListeningSocket("/a/../b/s"), criu::ListeningSocket("a/s")}), IsEmpty());
}

TEST_F(SocketFoldersTest, SocketsThatRootHasPutThereForTheUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  Make("/run", 0755);
  Make("/tmp", 01777);
  Make("/theirs", 0755);
  ASSERT_EQ(::chown((folder_.path() + "/theirs").c_str(), kNobody, kNobody), 0);
  for (const char* name : {"/run/s", "/run/gone", "/tmp/s", "/theirs/s"}) Bind(name, kNobody);
  Bind("/run/of-root", 0);
  ASSERT_TRUE(WriteFileAtomically(folder_.path() + "/run/file", "").ok());
  ASSERT_EQ(::chown((folder_.path() + "/run/file").c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(::symlink("/theirs/s", (folder_.path() + "/run/link").c_str()), 0);
  std::vector<criu::pb::UnixSocket> sockets;
  for (const char* name : {"/run/s", "/run/gone", "/tmp/s", "/theirs/s", "/run/of-root", "/run/file",
                           "/run/link", "/run/nowhere"}) {
    sockets.push_back(criu::ListeningSocket(name));
  }
  sockets[1].set_deleted(true);
  sockets.push_back(criu::ListeningSocket("s", "/run"));
  EXPECT_THAT(Look(sockets).placed, ElementsAre("/run/s"));
  user_ = 0;
  EXPECT_THAT(Look(sockets).placed, IsEmpty()) << "root needs none";
}

TEST_F(SocketFoldersTest, SomeAtMost) {
  std::vector<criu::pb::UnixSocket> sockets;
  for (int i = 0; i < 1100; ++i) sockets.push_back(criu::ListeningSocket(absl::StrCat("/", i, "/s")));
  const SocketFolders found = Look(sockets);
  EXPECT_LE(found.folders.size(), 1000u);
  EXPECT_GT(found.folders.size(), 900u);
  EXPECT_THAT(found.warnings, SizeIs(1));
}

TEST_F(SocketFoldersTest, ImagesThatHaveNoneOrCanNotBeRead) {
  EXPECT_THAT(PathsOf({}), IsEmpty());
  EXPECT_THAT(LookAtSocketFolders({}, "/", 1).value().folders, IsEmpty());
  EXPECT_TRUE(absl::IsDataLoss(LookAtSocketFolders({{"files.img", "damaged"}}, "/", 1).status()));
}

}  // namespace
}  // namespace rekindle::ckpt
