// Real connections over a real Unix socket, from processes of two users.
#include "daemon/peer_credentials.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/descriptor_limit.h"
#include "base/file.h"
#include "base/test_user.h"
#include "base/unix_socket.h"
#include "daemon/listener_note.h"
#include "daemon/unix_listener.h"
#include "rekindle/v1/calls.grpc.pb.h"

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

// A caller without a process, and a connection that is nobody else's.
Caller CallerOf(uid_t uid, gid_t gid = 0) {
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = uid;
  caller.gid = gid;
  return caller;
}
UniqueFd NewSocket() { return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

TEST(PeerRegistry, NumbersComeBackWhenConnectionsClose) {
  constexpr uid_t kOne = 61000, kOther = 61001;
  PeerRegistry registry(2 * PeerRegistry::kNumbersPerIdentity);
  for (int round = 0; round < 3; ++round) {
    std::vector<UniqueFd> held;
    // Another group makes no other user.
    for (size_t i = 0; i < PeerRegistry::kNumbersPerIdentity; ++i) {
      auto admitted = registry.Admit(NewSocket(), CallerOf(kOne, static_cast<gid_t>(i % 2)), false);
      ASSERT_TRUE(admitted.ok()) << round << ", " << i << ": " << admitted.status();
      held.push_back(*std::move(admitted));
    }
    for (gid_t gid : {0, 1, 2}) {
      EXPECT_EQ(registry.Admit(NewSocket(), CallerOf(kOne, gid), false).status().code(),
                absl::StatusCode::kResourceExhausted);
    }
    const auto other = registry.Admit(NewSocket(), CallerOf(kOther), false);
    EXPECT_TRUE(other.ok()) << other.status();
    held.erase(held.begin());
    EXPECT_TRUE(registry.Admit(NewSocket(), CallerOf(kOne), false).ok());
  }
}

TEST(PeerRegistry, ANumberIsItsNextUsers) {
  PeerRegistry registry;
  auto first = registry.Admit(NewSocket(), CallerOf(61000), false);
  ASSERT_TRUE(first.ok()) << first.status();
  const int number = first->Release();
  ASSERT_EQ(::dup3(NewSocket().get(), number, O_CLOEXEC), number);
  auto second = registry.Admit(UniqueFd(number), CallerOf(61001), false);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->get(), number);
  EXPECT_EQ(registry.Find(absl::StrCat("fd:", number))->uid, 61001u);
}

TEST_F(PeerCredentialsTest, AClosedConnectionLeavesNothing) {
  PeerRegistry registry;
  ConnectedProcess living(path_, kNobody, kNobody, {});
  UniqueFd connection = NextConnection();
  auto caller = ReadPeerCredentials(connection.get());
  ASSERT_TRUE(caller.ok()) << caller.status();
  const std::weak_ptr<const UniqueFd> pidfd = caller->pidfd;
  ASSERT_FALSE(pidfd.expired());
  auto admitted = registry.Admit(std::move(connection), *std::move(caller), false);
  ASSERT_TRUE(admitted.ok()) << admitted.status();
  const std::string name = absl::StrCat("fd:", admitted->get());
  EXPECT_NE(registry.Find(name)->pidfd, nullptr);
  admitted->Reset();
  EXPECT_TRUE(registry.Admit(NewSocket(), CallerOf(0), true).ok());
  EXPECT_TRUE(pidfd.expired());
}

TEST_F(PeerCredentialsTest, ConnectionsOfAProcessShareItsDescriptor) {
  PeerRegistry registry;
  UniqueFd ours[2];
  std::vector<UniqueFd> held;
  std::vector<std::string> names;
  for (UniqueFd& end : ours) {
    auto connected = ConnectTo(path_);
    ASSERT_TRUE(connected.ok()) << connected.status();
    end = *std::move(connected);
    UniqueFd connection = NextConnection();
    auto caller = ReadPeerCredentials(connection.get());
    ASSERT_TRUE(caller.ok()) << caller.status();
    auto admitted = registry.Admit(std::move(connection), *std::move(caller), false);
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    names.push_back(absl::StrCat("fd:", admitted->get()));
    held.push_back(*std::move(admitted));
  }
  ASSERT_NE(registry.Find(names[0])->pidfd, nullptr);
  EXPECT_EQ(registry.Find(names[0])->pidfd, registry.Find(names[1])->pidfd);
}

// A call that goes on until it is let go.
class HeldCall final : public v1::Calls::Service {
 public:
  grpc::Status GiveUp(grpc::ServerContext* context, const v1::GiveUpRequest*, v1::GiveUpResponse*) override {
    peer_ = context->peer();
    begun_.Notify();
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    cancelled_.Notify();
    let_go_.WaitForNotification();
    return grpc::Status::OK;
  }
  const std::string& AwaitPeer() {
    begun_.WaitForNotification();
    return peer_;
  }
  void AwaitCancellation() { cancelled_.WaitForNotification(); }
  void LetGo() { let_go_.Notify(); }

 private:
  std::string peer_;
  absl::Notification begun_, cancelled_, let_go_;
};

// Else a late call of a closed connection could be taken for one of its number's next user.
TEST(PeerRegistry, GrpcKeepsANumberUntilItsLastCallHasEnded) {
  HeldCall service;
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  struct stat ours, now;
  ASSERT_EQ(::fstat(pair[0], &ours), 0);
  const auto is_open = [&] { return ::fstat(pair[0], &now) == 0 && now.st_ino == ours.st_ino; };
  const UniqueFd client_end(::fcntl(pair[1], F_DUPFD_CLOEXEC, 3));
  grpc::AddInsecureChannelFromFd(server.get(), pair[0]);
  std::thread client([&] {
    const auto stub = v1::Calls::NewStub(grpc::CreateInsecureChannelFromFd("peer", pair[1]));
    grpc::ClientContext context;
    v1::GiveUpResponse response;
    EXPECT_FALSE(stub->GiveUp(&context, {}, &response).ok());
  });
  EXPECT_EQ(service.AwaitPeer(), absl::StrCat("fd:", pair[0]));
  ASSERT_EQ(::shutdown(client_end.get(), SHUT_RDWR), 0);
  client.join();
  service.AwaitCancellation();
  EXPECT_TRUE(is_open());
  service.LetGo();
  server->Shutdown();
  server->Wait();
  EXPECT_FALSE(is_open());
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
