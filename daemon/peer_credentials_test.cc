// Real connections over a real Unix socket, from processes of two users.
#include "daemon/peer_credentials.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/descriptor_limit.h"
#include "base/file.h"
#include "base/test_user.h"
#include "daemon/listener_note.h"
#include "daemon/unix_listener.h"

namespace rekindle::daemon {
namespace {

// A child that connects as another user and stays until it is told to go.
class ConnectedProcess {
 public:
  ConnectedProcess(const std::string& path, uid_t uid, gid_t gid, std::vector<gid_t> groups) {
    int go[2];
    EXPECT_EQ(::pipe2(go, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(go[1]);
      if (::geteuid() == 0) {
        ::syscall(SYS_setgroups, groups.size(), groups.data());
        ::syscall(SYS_setresgid, gid, gid, gid);
        ::syscall(SYS_setresuid, uid, uid, uid);
      }
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      path.copy(address.sun_path, sizeof address.sun_path - 1);
      int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
      if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) ::_exit(1);
      char byte;
      [[maybe_unused]] ssize_t n = ::read(go[0], &byte, 1);
      ::_exit(0);
    }
    ::close(go[0]);
    go_.Reset(go[1]);
  }
  ~ConnectedProcess() {
    go_.Reset();
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    EXPECT_EQ(status, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  UniqueFd go_;
};

class PeerCredentialsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
    auto made = TemporaryDirectory::Make("/tmp", "peer-test.");
    ASSERT_TRUE(made.ok()) << made.status();
    directory_.emplace(*std::move(made));
    ASSERT_EQ(::chmod(directory_->path().c_str(), 0755), 0);
    path_ = directory_->path() + "/s";
    auto listener = UnixListener::Start(path_, 0666, "", [this](UniqueFd connection) {
      absl::MutexLock lock(&mutex_);
      connections_.push_back(std::move(connection));
    });
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  UniqueFd NextConnection() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](std::vector<UniqueFd>* all) { return !all->empty(); }, &connections_));
    UniqueFd connection = std::move(connections_.front());
    connections_.erase(connections_.begin());
    return connection;
  }

  std::optional<TemporaryDirectory> directory_;
  std::string path_;
  absl::Mutex mutex_;
  std::vector<UniqueFd> connections_;
  std::unique_ptr<UnixListener> listener_;
};

TEST_F(PeerCredentialsTest, TheKernelTellsWhoConnected) {
  ConnectedProcess nobody(path_, kNobody, kNobody, {7, 5});
  UniqueFd connection = NextConnection();
  auto caller = ReadPeerCredentials(connection.get());
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_EQ(caller->kind, Caller::Kind::kLocal);
  EXPECT_EQ(caller->uid, kNobody);
  EXPECT_EQ(caller->gid, kNobody);
  EXPECT_EQ(caller->pid, nobody.pid());
  EXPECT_THAT(caller->groups, ::testing::ElementsAre(5, 7));
  ASSERT_NE(caller->pidfd, nullptr);
  auto info = ReadFile(absl::StrCat("/proc/self/fdinfo/", caller->pidfd->get()));
  ASSERT_TRUE(info.ok());
  EXPECT_NE(info->find(absl::StrCat("Pid:\t", nobody.pid(), "\n")), std::string::npos) << *info;
}

TEST_F(PeerCredentialsTest, ANumberNeverPassesToAnotherUser) {
  PeerRegistry registry;
  int nobodys_number = -1;
  {
    ConnectedProcess nobody(path_, kNobody, kNobody, {});
    UniqueFd connection = NextConnection();
    auto caller = ReadPeerCredentials(connection.get());
    ASSERT_TRUE(caller.ok());
    auto admitted = registry.Admit(std::move(connection), *caller, false);
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    nobodys_number = admitted->get();
    EXPECT_EQ(registry.Find(absl::StrCat("fd:", nobodys_number))->uid, kNobody);
  }
  // Closed: the kernel would give the lowest free number, this one, to the next connection.
  ConnectedProcess root(path_, 0, 0, {});
  UniqueFd connection = NextConnection();
  auto caller = ReadPeerCredentials(connection.get());
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(caller->uid, 0u);
  if (connection.get() != nobodys_number) {
    ASSERT_EQ(::dup3(connection.get(), nobodys_number, O_CLOEXEC), nobodys_number);
    connection.Reset(nobodys_number);
  }
  auto admitted = registry.Admit(std::move(connection), *caller, false);
  ASSERT_TRUE(admitted.ok()) << admitted.status();
  EXPECT_NE(admitted->get(), nobodys_number);
  EXPECT_EQ(registry.Find(absl::StrCat("fd:", nobodys_number))->uid, kNobody);
  EXPECT_EQ(registry.Find(absl::StrCat("fd:", admitted->get()))->uid, 0u);
  // It is the same connection still.
  auto again = ReadPeerCredentials(admitted->get());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->pid, root.pid());
}

TEST_F(PeerCredentialsTest, ProcessesThatHaveEndedAreLetGoOf) {
  PeerRegistry registry;
  std::string peer;
  auto admit = [&] {
    UniqueFd connection = NextConnection();
    auto caller = ReadPeerCredentials(connection.get());
    EXPECT_TRUE(caller.ok());
    auto admitted = registry.Admit(std::move(connection), *caller, false);
    EXPECT_TRUE(admitted.ok()) << admitted.status();
    peer = absl::StrCat("fd:", admitted->get());
    return *std::move(admitted);
  };
  ConnectedProcess living(path_, 0, 0, {});
  const UniqueFd of_living = admit();
  const std::string name_of_living = peer;
  // After the other: it would have an end of this one's pipe.
  std::optional<ConnectedProcess> ending(std::in_place, path_, kNobody, kNobody, std::vector<gid_t>());
  const UniqueFd of_ending = admit();
  const std::string name_of_ending = peer;
  EXPECT_NE(registry.Find(name_of_living)->pidfd, nullptr);
  EXPECT_NE(registry.Find(name_of_ending)->pidfd, nullptr);
  ending.reset();
  ConnectedProcess another(path_, 0, 0, {});
  const UniqueFd of_another = admit();
  EXPECT_EQ(registry.Find(name_of_ending)->pidfd, nullptr);
  EXPECT_EQ(registry.Find(name_of_ending)->uid, kNobody);
  EXPECT_NE(registry.Find(name_of_living)->pidfd, nullptr);
  EXPECT_NE(registry.Find(peer)->pidfd, nullptr);
}

TEST_F(PeerCredentialsTest, OneUserCanNotTakeAllNumbers) {
  PeerRegistry registry;
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = kNobody;
  std::vector<UniqueFd> held;
  for (size_t i = 0; i < PeerRegistry::kNumbersPerIdentity; ++i) {
    auto admitted = registry.Admit(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), caller, false);
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    held.push_back(*std::move(admitted));
  }
  EXPECT_EQ(
      registry.Admit(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), caller, false).status().code(),
      absl::StatusCode::kResourceExhausted);
  caller.uid = 1000;
  EXPECT_TRUE(registry.Admit(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), caller, false).ok());
}

TEST_F(PeerCredentialsTest, AnAdministratorMayHaveMore) {
  RaiseDescriptorLimit();
  const size_t most = DescriptorLimit() / 4;
  if (most < PeerRegistry::kNumbersPerIdentity + 2) GTEST_SKIP() << "there are too few descriptors";
  PeerRegistry registry;
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = 0;
  std::vector<UniqueFd> held;
  for (size_t i = 0; i < PeerRegistry::kNumbersPerIdentity + 2; ++i) {
    auto admitted = registry.Admit(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), caller, true);
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    held.push_back(*std::move(admitted));
  }
}

TEST_F(PeerCredentialsTest, AllUsersTogetherLeaveRootSome) {
  constexpr size_t kMost = 6;
  PeerRegistry registry(kMost);
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  std::vector<UniqueFd> held;
  auto admit = [&](uid_t uid) {
    caller.uid = uid;
    auto admitted = registry.Admit(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), caller, false);
    if (admitted.ok()) held.push_back(*std::move(admitted));
    return admitted.status();
  };
  for (uid_t uid = 1000; uid < 1000 + kMost; ++uid) ASSERT_TRUE(admit(uid).ok()) << uid;
  EXPECT_EQ(admit(2000).code(), absl::StatusCode::kResourceExhausted);
  for (size_t i = 0; i < 2 * kMost; ++i) EXPECT_TRUE(admit(0).ok());
}

TEST(PeerRegistry, OnlyItsOwnNames) {
  PeerRegistry registry;
  for (const char* peer : {"", "fd:", "fd:x", "fd:3", "unix:", "ipv4:1.2.3.4:5", "unknown"}) {
    EXPECT_FALSE(registry.Find(peer).has_value()) << peer;
  }
}

TEST_F(PeerCredentialsTest, ALiveSocketIsRefusedADeadOneReplaced) {
  auto second = UnixListener::Start(path_, 0666, "", [](UniqueFd) {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find(path_), absl::string_view::npos);
  listener_->Stop();
  EXPECT_FALSE(PathExists(path_));
  // Whoever had it may not have ended yet.
  EXPECT_EQ(UnixListener::Start(path_, 0666, "", [](UniqueFd) {}).status().code(),
            absl::StatusCode::kAlreadyExists);
  listener_.reset();

  // What a killed daemon leaves: a socket that nobody listens on.
  UniqueFd dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  dead.Reset();
  ASSERT_TRUE(PathExists(path_));
  auto third = UnixListener::Start(path_, 0600, "/a/store", [](UniqueFd) {});
  ASSERT_TRUE(third.ok()) << third.status();
  struct stat info;
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  third->reset();
  // Where its store was can be known afterwards.
  EXPECT_EQ(NoteOfListener(path_), "/a/store");
  EXPECT_EQ(NoteOfListener(path_ + "x"), "");

  ASSERT_TRUE(WriteFileAtomically(path_, "a file").ok());
  EXPECT_EQ(UnixListener::Start(path_, 0666, "", [](UniqueFd) {}).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(path_).value_or(""), "a file");
}

}  // namespace
}  // namespace rekindle::daemon
