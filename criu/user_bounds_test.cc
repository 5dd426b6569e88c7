// The library that keeps CRIU to the rights of a job's user, called as CRIU calls it, in a process of its
// own.
#include "criu/user_bounds.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_user.h"
#include "base/unique_fd.h"
#include "criu/restore_preload.h"

namespace rekindle::criu {
namespace {

constexpr int kWrongRights = 200, kNoLibrary = 201;

class Library {
 public:
  Library() : handle_(::dlopen(REKINDLE_CRIU_BOUNDS, RTLD_NOW | RTLD_LOCAL)) {}
  bool loaded() const { return handle_ != nullptr; }

  template <typename... Arguments>
  int Call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(handle_, name));
    return function(arguments...);
  }

 private:
  void* handle_;
};

class UserBoundsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
    // /tmp is everybody's; of /run all folders on the way are root's.
    for (auto [pattern, folder] : {std::pair("/tmp/rekindle-bounds.XXXXXX", &shared_),
                                   std::pair("/run/rekindle-bounds.XXXXXX", &roots_)}) {
      std::string made = pattern;
      ASSERT_NE(::mkdtemp(made.data()), nullptr) << pattern;
      ASSERT_EQ(::chmod(made.c_str(), 0755), 0);
      *folder = made;
    }
    for (const char* folder : {"/theirs", "/closed"}) ASSERT_EQ(::mkdir((shared_ + folder).c_str(), 0755), 0);
    ASSERT_EQ(::chown(Theirs("").c_str(), kNobody, kNobody), 0);
    Write(Closed("file"));
    Write(Theirs("file"));
    Write(Theirs("own"));
    ASSERT_EQ(::chown(Theirs("own").c_str(), kNobody, kNobody), 0);
    Write(roots_ + "/file");
    // What the user may do at any moment.
    ASSERT_EQ(::symlink((shared_ + "/closed").c_str(), Theirs("link").c_str()), 0);
    ASSERT_EQ(::symlink(roots_.c_str(), Theirs("run").c_str()), 0);
    ASSERT_EQ(::symlink(Closed("file").c_str(), Theirs("socket").c_str()), 0);
    ASSERT_TRUE(WriteBounds(Bounds(), {kNobody, kNobody, {kNobody, 12345}}, {}).ok());
  }
  void TearDown() override {
    for (const std::string& folder : {shared_, roots_}) {
      if (!folder.empty()) RemoveTree(folder).IgnoreError();
    }
  }

  static void Write(const std::string& path) { ASSERT_TRUE(WriteFileAtomically(path, "text", 0600).ok()); }
  std::string Theirs(const std::string& name) const { return shared_ + "/theirs/" + name; }
  std::string Closed(const std::string& name) const { return shared_ + "/closed/" + name; }
  std::string Bounds() const { return shared_ + "/" + kBoundsFile; }
  static uid_t OwnerOf(const std::string& path) {
    struct stat info = {};
    return ::lstat(path.c_str(), &info) == 0 ? info.st_uid : 12345678;
  }
  static dev_t DeviceOf(const std::string& path) {
    struct stat info = {};
    return ::stat(path.c_str(), &info) == 0 ? info.st_dev : 0;
  }
  static bool Exists(const std::string& path) {
    struct stat info;
    return ::lstat(path.c_str(), &info) == 0;
  }

  // 0, or the error.
  int Do(const std::function<int(const Library&)>& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv(USER_BOUNDS_VARIABLE, Bounds().c_str(), 1);
      const Library library;
      if (!library.loaded()) ::_exit(kNoLibrary);
      gid_t before[64], after[64];
      const int groups = ::getgroups(64, before);
      errno = 0;
      const int error = work(library) < 0 ? errno : 0;
      const bool as_before = static_cast<uid_t>(::setfsuid(static_cast<uid_t>(-1))) == 0 &&
                             static_cast<gid_t>(::setfsgid(static_cast<gid_t>(-1))) == ::getegid() &&
                             ::getgroups(64, after) == groups &&
                             std::memcmp(before, after, sizeof(gid_t) * static_cast<size_t>(groups)) == 0 &&
                             ::access("/proc/self/fd", R_OK) == 0;
      ::_exit(as_before ? error : kWrongRights);
    }
    EXPECT_GT(child, 0) << std::strerror(errno);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  int Bind(const std::string& path) {
    return Do([&](const Library& library) {
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
      const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      return library.Call<int, const sockaddr*, socklen_t>(
          "bind", fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    });
  }
  static void BindAsRoot(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << path;
  }
  int MakeGhost(const std::string& path) {
    return Do([&](const Library& library) {
      return library.Call<const char*, int, mode_t>("open64", path.c_str(), O_WRONLY | O_CREAT | O_EXCL,
                                                    0600);
    });
  }
  int ChangeOwner(const std::string& path, uid_t owner) {
    return Do([&](const Library& library) {
      return library.Call<int, const char*, uid_t, gid_t, int>("fchownat", AT_FDCWD, path.c_str(), owner,
                                                               owner, 0);
    });
  }

  std::string shared_, roots_;
};

TEST_F(UserBoundsTest, WhatIsTheUsers) {
  EXPECT_EQ(Bind(Theirs("new")), 0);
  EXPECT_EQ(OwnerOf(Theirs("new")), kNobody);
  EXPECT_EQ(ChangeOwner(Theirs("new"), kNobody), 0);
  EXPECT_EQ(MakeGhost(Theirs("f.cr.1.ghost")), 0);
  EXPECT_EQ(OwnerOf(Theirs("f.cr.1.ghost")), kNobody);
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<const char*, const char*>("rename", Theirs("f.cr.1.ghost").c_str(),
                                                            Theirs("moved").c_str());
            }),
            0);
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<int, const char*, int, const char*, int>(
                  "linkat", AT_FDCWD, Theirs("moved").c_str(), AT_FDCWD, Theirs("second").c_str(), 0);
            }),
            0);
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<int, const char*, mode_t, int>("fchmodat", AT_FDCWD,
                                                                 Theirs("moved").c_str(), 0640, 0);
            }),
            0);
  EXPECT_EQ(
      Do([&](const Library& library) { return library.Call<const char*>("unlink", Theirs("file").c_str()); }),
      0)
      << "root's file in his folder";
  EXPECT_EQ(Do([&](const Library& library) {
              const std::string folder = Theirs("folder");
              if (library.Call<int, const char*, mode_t>("mkdirat", AT_FDCWD, folder.c_str(), 0755) != 0)
                return -1;
              return library.Call<const char*>("rmdir", folder.c_str());
            }),
            0);
}

TEST_F(UserBoundsTest, ALinkInPlaceOfAFolderLeadsNowhere) {
  for (const std::string& folder : {Theirs("link"), Theirs("run")}) {
    const std::string path = folder + "/new";
    // Between file systems the kernel asks for nothing else first.
    const int across = DeviceOf(folder) == DeviceOf(Theirs("own")) ? EACCES : EXDEV;
    EXPECT_EQ(Bind(path), EACCES);
    EXPECT_EQ(MakeGhost(folder + "/f.cr.1.ghost"), EACCES);
    EXPECT_EQ(Do([&](const Library& library) {
                return library.Call<int, const char*, int>("unlinkat", AT_FDCWD, (folder + "/file").c_str(),
                                                           0);
              }),
              EACCES);
    EXPECT_EQ(Do([&](const Library& library) {
                return library.Call<const char*, mode_t, dev_t>("mknod", path.c_str(), S_IFIFO | 0600, 0);
              }),
              EACCES);
    EXPECT_EQ(Do([&](const Library& library) {
                return library.Call<const char*, const char*>("symlink", "/etc/passwd", path.c_str());
              }),
              EACCES);
    EXPECT_EQ(Do([&](const Library& library) {
                return library.Call<int, const char*, mode_t>("mkdirat", AT_FDCWD, path.c_str(), 0755);
              }),
              EACCES);
    EXPECT_EQ(Do([&](const Library& library) {
                return library.Call<const char*, const char*>("rename", (folder + "/file").c_str(),
                                                              Theirs("moved").c_str());
              }),
              across);
    EXPECT_EQ(Do([&](const Library& library) {
                return library.Call<int, const char*, int, const char*, int>(
                    "linkat", AT_FDCWD, Theirs("own").c_str(), AT_FDCWD, path.c_str(), 0);
              }),
              across);
    EXPECT_EQ(ChangeOwner(folder + "/file", kNobody), EPERM);
    const timeval times[2] = {{1, 0}, {1, 0}};
    EXPECT_EQ(Do([&](const Library& library) {
                return library.Call<const char*, const timeval*>("lutimes", (folder + "/file").c_str(),
                                                                 times);
              }),
              EPERM);
    EXPECT_FALSE(Exists(path));
    EXPECT_TRUE(Exists(folder + "/file"));
  }
  EXPECT_EQ(OwnerOf(Closed("file")), 0u);
  EXPECT_EQ(OwnerOf(roots_ + "/file"), 0u);
}

TEST_F(UserBoundsTest, ALinkInPlaceOfASocketThatWasJustBound) {
  EXPECT_EQ(ChangeOwner(Theirs("socket"), kNobody), EPERM);
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<int, const char*, mode_t, int>("fchmodat", AT_FDCWD,
                                                                 Theirs("socket").c_str(), 0666, 0);
            }),
            EPERM);
  EXPECT_EQ(OwnerOf(Closed("file")), 0u);
}

TEST_F(UserBoundsTest, WhereOnlyRootHasAHandInIt) {
  EXPECT_EQ(MakeGhost(roots_ + "/f.cr.1.ghost"), 0);
  EXPECT_EQ(ChangeOwner(roots_ + "/f.cr.1.ghost", kNobody), 0);
  EXPECT_EQ(OwnerOf(roots_ + "/f.cr.1.ghost"), kNobody);
  EXPECT_EQ(ChangeOwner(roots_ + "/file", kNobody), EPERM);
  ASSERT_EQ(::mkdir((roots_ + "/folder").c_str(), 0755), 0);
  EXPECT_EQ(ChangeOwner(roots_ + "/folder", kNobody), EPERM);
  EXPECT_EQ(OwnerOf(roots_ + "/folder"), 0u);
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<const char*>("unlink", (roots_ + "/f.cr.1.ghost").c_str());
            }),
            0);
  EXPECT_EQ(Do([&](const Library& library) {
              const UniqueFd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
              return library.Call<int, const char*, int>("unlinkat", root.get(),
                                                         (roots_ + "/file").c_str() + 1, 0);
            }),
            0);
  EXPECT_FALSE(Exists(roots_ + "/file"));
  // Relative to a folder that CRIU has opened by a name of the user's.
  Write(roots_ + "/file");
  EXPECT_EQ(Do([&](const Library& library) {
              if (::chdir(Theirs("run").c_str()) != 0) return -1;
              return library.Call<int, const char*, int>("unlinkat", AT_FDCWD, "file", 0);
            }),
            EACCES);
  EXPECT_EQ(Do([&](const Library& library) {
              const UniqueFd folder(::open(Theirs("run").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
              return library.Call<int, const char*, int>("unlinkat", folder.get(), "file", 0);
            }),
            EACCES);
  // One that others may write to is not only root's.
  ASSERT_EQ(::chmod(roots_.c_str(), 0775), 0);
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<const char*>("unlink", (roots_ + "/file").c_str());
            }),
            EACCES);
}

// What a job calls its socket says nothing of what was where, if it saw another file system there.
TEST_F(UserBoundsTest, ASocketInAFolderOfRootsThatWasNotSeenThere) {
  const std::string name = roots_ + "/socket", parked = name + ".criu-sk-ghost";
  const auto unlink = [&](const std::string& path) {
    return Do([&](const Library& library) {
      return library.Call<int, const char*, int>("unlinkat", AT_FDCWD, path.c_str(), 0);
    });
  };
  EXPECT_EQ(Bind(name), EACCES);
  EXPECT_FALSE(Exists(name));
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<int, const char*, mode_t>("mkdirat", AT_FDCWD, (roots_ + "/new").c_str(),
                                                            0755);
            }),
            EACCES);
  ASSERT_EQ(::mkdir((roots_ + "/empty").c_str(), 0755), 0);
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<const char*>("rmdir", (roots_ + "/empty").c_str());
            }),
            EACCES);
  BindAsRoot(name);
  EXPECT_EQ(unlink(name), EACCES) << "a service's";
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<const char*, const char*>("rename", name.c_str(), parked.c_str());
            }),
            EACCES);
  EXPECT_TRUE(Exists(name));

  ASSERT_TRUE(WriteBounds(Bounds(), {kNobody, kNobody, {}}, {"/other", name}).ok());
  EXPECT_EQ(unlink(name), EACCES) << "it is root's now";
  ASSERT_EQ(::chown(name.c_str(), kNobody, kNobody), 0);
  EXPECT_EQ(unlink(name), 0);
  EXPECT_EQ(Bind(name), 0);
  EXPECT_EQ(ChangeOwner(name, kNobody), 0);
  EXPECT_EQ(OwnerOf(name), kNobody);
  EXPECT_EQ(Bind(roots_ + "/sock"), EACCES);
  EXPECT_EQ(Bind(roots_ + "/socket2"), EACCES);

  ASSERT_EQ(::unlink(name.c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(Bounds(), absl::StrCat(kNobody, " ", kNobody, "\n\n", name)).ok());
  EXPECT_EQ(Bind(name), EACCES) << "who knows what is missing of it";
}

TEST_F(UserBoundsTest, InFileSystemsThatAreTheCopysAloneRootDoesIt) {
  ASSERT_EQ(::mkdir(Closed("folder").c_str(), 0700), 0);
  ASSERT_EQ(::symlink(roots_.c_str(), Closed("out").c_str()), 0);
  ASSERT_EQ(::symlink((roots_ + "/file").c_str(), Closed("link").c_str()), 0);
  const auto unlink = [&](const std::string& path) {
    return Do([&](const Library& library) { return library.Call<const char*>("unlink", path.c_str()); });
  };
  EXPECT_EQ(MakeGhost(Closed("folder/file.cr.1.ghost")), EACCES);
  EXPECT_EQ(unlink(Closed("file")), EACCES);

  ASSERT_TRUE(WriteBounds(Bounds(), {kNobody, kNobody, {}}, {}, {"/nowhere", shared_ + "/closed"}).ok());
  EXPECT_EQ(MakeGhost(Closed("folder/file.cr.1.ghost")), 0);
  EXPECT_EQ(OwnerOf(Closed("folder/file.cr.1.ghost")), 0u);
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<int, const char*, int, const char*, int>(
                  "linkat", AT_FDCWD, Closed("folder/file.cr.1.ghost").c_str(), AT_FDCWD,
                  Closed("named").c_str(), 0);
            }),
            0);
  EXPECT_EQ(unlink(Closed("folder/file.cr.1.ghost")), 0);
  EXPECT_EQ(unlink(Closed("file")), 0);
  EXPECT_EQ(Bind(Closed("folder/socket")), 0);
  EXPECT_EQ(ChangeOwner(Closed("folder/socket"), kNobody), 0);
  EXPECT_EQ(OwnerOf(Closed("folder/socket")), kNobody);

  // Links lead out of it, or may have been put there.
  EXPECT_EQ(MakeGhost(Closed("out/file.cr.1.ghost")), EACCES);
  EXPECT_EQ(unlink(Closed("out/file")), EACCES);
  EXPECT_EQ(unlink(Theirs("link/named")), EACCES);
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<int, const char*, mode_t, int>("fchmodat", AT_FDCWD, Closed("link").c_str(),
                                                                 0666, 0);
            }),
            EPERM);
  EXPECT_EQ(MakeGhost(Closed("folder/../../file.cr.1.ghost")), EACCES);
  EXPECT_EQ(MakeGhost(shared_ + "/closed-too.cr.1.ghost"), EACCES);

  // So does what is mounted there.
  ASSERT_EQ(::mkdir(Closed("folder/mounted").c_str(), 0755), 0);
  if (::mount("tmpfs", Closed("folder/mounted").c_str(), "tmpfs", 0, "mode=755") != 0)
    GTEST_SKIP() << "mounts can't be made";
  EXPECT_EQ(ChangeOwner(Closed("folder/mounted"), kNobody), EACCES);
  EXPECT_EQ(OwnerOf(Closed("folder/mounted")), 0u);
  EXPECT_EQ(MakeGhost(Closed("folder/mounted/file.cr.1.ghost")), EACCES);
  EXPECT_EQ(::umount2(Closed("folder/mounted").c_str(), MNT_DETACH), 0);
}

TEST_F(UserBoundsTest, CriusOwnFilesAreNotBounded) {
  EXPECT_EQ(Do([&](const Library& library) {
              return library.Call<const char*, int, mode_t>("open64", Closed("restore.log").c_str(),
                                                            O_WRONLY | O_CREAT | O_TRUNC, 0600);
            }),
            0);
  EXPECT_EQ(Do([&](const Library& library) {
              const UniqueFd own(::open(Closed("file").c_str(), O_RDWR | O_CLOEXEC));
              return library.Call<int, const char*, uid_t, gid_t, int>("fchownat", own.get(), "", 0, 0,
                                                                       AT_EMPTY_PATH);
            }),
            0);
}

// As CRIU opens a job's file.
TEST_F(UserBoundsTest, AFileIsNotOpenedByAStrangersLink) {
  const auto open = [&](const std::string& path, const char* any_links = nullptr) {
    return Do([&](const Library& library) {
      if (any_links != nullptr) ::setenv(ANY_LINKS_VARIABLE, any_links, 1);
      const UniqueFd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
      const UniqueFd fd(library.Call<int, const char*, int>("openat", root.get(), path.c_str() + 1,
                                                            O_WRONLY | O_APPEND | O_CLOEXEC));
      return fd.valid() && (::fcntl(fd.get(), F_GETFL) & O_APPEND) != 0 ? 0 : -1;
    });
  };
  const std::string moved = roots_ + "/moved", to_root = Theirs("run/file"), by_root = moved + "/file";
  ASSERT_EQ(::symlink(shared_.c_str(), moved.c_str()), 0);
  ASSERT_EQ(::lchown(Theirs("run").c_str(), kNobody, kNobody), 0);
  Write(shared_ + "/file");
  EXPECT_EQ(open(to_root), 0) << "his own job, which is looked at afterwards";
  EXPECT_EQ(open(by_root), 0);
  ASSERT_TRUE(WriteBounds(Bounds(), {kNobody - 1, kNobody - 1, {}}, {}).ok());
  EXPECT_EQ(open(to_root), ELOOP);
  EXPECT_EQ(open(by_root), 0);
  ASSERT_EQ(::unlink(Bounds().c_str()), 0);
  EXPECT_EQ(open(to_root), ELOOP);
  EXPECT_EQ(open(to_root, "1"), 0);
  EXPECT_EQ(open(by_root), 0);
}

TEST_F(UserBoundsTest, WithoutTheFileItIsRootsJob) {
  ASSERT_EQ(::unlink(Bounds().c_str()), 0);
  EXPECT_EQ(Bind(Theirs("link/new")), 0);
  EXPECT_EQ(OwnerOf(Closed("new")), 0u);
}

TEST_F(UserBoundsTest, TheFileMayComeWithTheRequest) {
  ASSERT_EQ(::unlink(Bounds().c_str()), 0);
  Write(Closed("other"));
  EXPECT_EQ(Do([&](const Library& library) {
              if (library.Call<const char*>("unlink", Closed("file").c_str()) != 0) return -1;
              if (!WriteBounds(Bounds(), {kNobody, kNobody, {}}, {}).ok()) return -1;
              return library.Call<const char*>("unlink", (shared_ + "/closed/other").c_str());
            }),
            EACCES);
}

TEST_F(UserBoundsTest, AFileThatMakesNoSense) {
  for (const char* text :
       {"", "nobody", "65534", "65534 x\n", "65534 65534", "99999999999 1\n", "65534 65534 \n"}) {
    ASSERT_TRUE(WriteFileAtomically(Bounds(), text).ok());
    EXPECT_EQ(Do([&](const Library& library) {
                return library.Call<const char*>("unlink", Theirs("file").c_str());
              }),
              EPERM)
        << text;
  }
  EXPECT_TRUE(Exists(Theirs("file")));
}

}  // namespace
}  // namespace rekindle::criu
