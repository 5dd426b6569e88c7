// Real CRIU, and a job with a named socket, restored with the rights of a user who may change the socket's
// folder.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/file.h"
#include "base/subprocess.h"
#include "base/test_user.h"
#include "criu/installation.h"
#include "criu/restore_session.h"
#include "criu/test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::HasSubstr;

// Listens, says so, and answers whoever comes with what is in a file that has lost its name. Its own folder
// it leaves.
constexpr char kServer[] = R"(
import os, socket, sys
os.chdir("/")
gone = open(sys.argv[1] + ".gone", "w+")
os.chown(gone.name, 65534, 65534)
gone.write("x")
gone.flush()
os.unlink(gone.name)
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
os.close(1)
while True:
    peer = server.accept()[0]
    gone.seek(0)
    peer.send(gone.read().encode())
)";

class BoundedRestoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
    auto criu = FindCriu();
    ASSERT_TRUE(criu.ok()) << criu.status();
    criu_ = *criu;
    for (std::string* folder : {&shared_, &images_}) {
      std::string made = "/tmp/rekindle-bounded.XXXXXX";
      ASSERT_NE(::mkdtemp(made.data()), nullptr);
      *folder = made;
    }
    ASSERT_EQ(::chmod(shared_.c_str(), 0755), 0);
    for (const char* folder : {"/theirs", "/roots"}) ASSERT_EQ(::mkdir((shared_ + folder).c_str(), 0755), 0);
    ASSERT_EQ(::chown((shared_ + "/theirs").c_str(), kNobody, kNobody), 0);
  }
  void TearDown() override {
    Kill();
    for (const std::string& folder : {shared_, images_}) {
      if (!folder.empty()) RemoveTree(folder).IgnoreError();
    }
  }

  std::string Socket() const { return shared_ + "/theirs/socket"; }

  // Its image is in images_, and it has ended.
  void TakeImage() {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    UniqueFd says(ends[0]), writes(ends[1]);
    SubprocessOptions options;
    options.argv = {"python3", "-c", kServer, Socket()};
    options.descriptors = {{writes.get(), 1}};
    options.new_session = true;
    auto started = Subprocess::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    pid_ = started->Release();
    writes.Reset();
    char nothing;
    ASSERT_EQ(::read(says.get(), &nothing, 1), 0);
    ASSERT_TRUE(Answers());
    // As if he had bound it.
    ASSERT_EQ(::chown(Socket().c_str(), kNobody, kNobody), 0);
    MemoryConsumer consumer;
    DumpOptions dump_options;
    dump_options.pid = pid_;
    StreamedDump dump = DumpStreamed(dump_options, images_, &consumer);
    ASSERT_TRUE(dump.exit.ok()) << dump.log;
    for (const auto& [name, content] : consumer.TakeFiles())
      ASSERT_TRUE(WriteFileAtomically(images_ + "/" + name, content).ok());
    Kill();
  }

  absl::StatusOr<RestoredTree> Restore() {
    RestoreOptions options;
    options.images_directory = images_;
    options.user = Owner{kNobody, kNobody, {kNobody}};
    auto tree = RunRestore(criu_, options, JobNamespaces(), nullptr, -1);
    if (tree.ok()) pid_ = tree->root;
    return tree;
  }

  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  bool Answers() const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, Socket().c_str(), sizeof address.sun_path - 1);
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    char answer = 0;
    return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
           ::read(fd.get(), &answer, 1) == 1 && answer == 'x';
  }

  Installation criu_;
  std::string shared_, images_;
  pid_t pid_ = -1;
};

TEST_F(BoundedRestoreTest, ASocketAndAFileWithoutANameComeBackInTheirUsersFolder) {
  ASSERT_NO_FATAL_FAILURE(TakeImage());
  auto tree = Restore();
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_TRUE(Answers());
  struct stat info;
  ASSERT_EQ(::lstat(Socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kNobody);
}

// As one does that is linked statically.
TEST_F(BoundedRestoreTest, ACriuWithoutTheLibraryIsRefused) {
  ASSERT_NO_FATAL_FAILURE(TakeImage());
  struct stat before;
  ASSERT_EQ(::lstat(Socket().c_str(), &before), 0);
  criu_.command.insert(criu_.command.begin(), {"env", "-u", "LD_PRELOAD"});
  auto refused = Restore();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("linked statically"));
  struct stat after;
  ASSERT_EQ(::lstat(Socket().c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_FALSE(Answers());
}

TEST_F(BoundedRestoreTest, NothingIsMadeOrRemovedBehindALink) {
  ASSERT_NO_FATAL_FAILURE(TakeImage());
  const std::string victim = shared_ + "/roots/socket";
  ASSERT_EQ(::rename((shared_ + "/theirs").c_str(), (shared_ + "/moved").c_str()), 0);
  ASSERT_EQ(::symlink((shared_ + "/roots").c_str(), (shared_ + "/theirs").c_str()), 0);
  auto refused = Restore();
  EXPECT_FALSE(refused.ok());
  EXPECT_TRUE(absl::IsPermissionDenied(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("job's user"));
  EXPECT_FALSE(PathExists(victim));

  // Root's own of that name stays.
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, victim.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_FALSE(Restore().ok());
  struct stat info;
  ASSERT_EQ(::lstat(victim.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 0u);
}

}  // namespace
}  // namespace rekindle::criu
