#include "restore/first_answer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_child.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

// What a server is told with one byte.
constexpr char kAnswer = 'a', kAnswerAndClose = 'c', kSayNothing = 's';

// Answers with the byte `name`, in threads of the process that calls this.
void Serve(int listener, char name) {
  std::thread([=] {
    for (;;) {
      const int connection = ::accept(listener, nullptr, nullptr);
      if (connection < 0) return;
      std::thread([=] {
        char request;
        while (::recv(connection, &request, 1, 0) == 1) {
          if (request != kSayNothing) ::send(connection, &name, 1, MSG_NOSIGNAL);
          if (request == kAnswerAndClose) break;
        }
        ::close(connection);
      }).detach();
    }
  }).detach();
}

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Port 0: one that is free.
UniqueFd ListenOnTcp(uint16_t port) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  const int yes = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes);
  const sockaddr_in address = Loopback(port);
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(listener.get(), 8), 0);
  return listener;
}

uint16_t PortOf(const UniqueFd& listener) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

UniqueFd ConnectToTcp(uint16_t port) {
  UniqueFd connection(::socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = Loopback(port);
  EXPECT_EQ(::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return connection;
}

void Tell(const UniqueFd& connection, char request) {
  EXPECT_EQ(::send(connection.get(), &request, 1, 0), 1);
}

char Receive(const UniqueFd& connection) {
  char answer = 0;
  EXPECT_EQ(::recv(connection.get(), &answer, 1, 0), 1);
  return answer;
}

std::unique_ptr<FirstAnswer> WatchOf(const TestChild& server) {
  EXPECT_TRUE(server.prepared());
  std::vector<UniqueFd> processes;
  processes.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, server.pid(), 0)));
  auto watch = FirstAnswer::Watch(std::move(processes));
  EXPECT_TRUE(watch.ok()) << watch.status();
  return watch.ok() ? *std::move(watch) : nullptr;
}

// When it says that it is time to look.
bool NextLook(FirstAnswer& watch) {
  pollfd entry{watch.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, -1), 1);
  auto answered = watch.Look();
  EXPECT_TRUE(answered.ok()) << answered.status();
  return answered.ok() && *answered;
}

// Others' connections that end make looks, too.
bool AnyOfSomeLooks(FirstAnswer& watch) {
  bool answered = false;
  for (int i = 0; i < 5; ++i) answered |= NextLook(watch);
  return answered;
}

void WaitForAnswer(FirstAnswer& watch) {
  while (!NextLook(watch)) {
  }
}

class TcpTest : public ::testing::Test {
 protected:
  void SetUp() override { StartServer(); }
  void StartServer() {
    UniqueFd listener = ListenOnTcp(0);
    port_ = PortOf(listener);
    server_ = std::make_unique<TestChild>([&] {
      Serve(listener.get(), 'A');
      return true;
    });
  }

  uint16_t port_ = 0;
  std::unique_ptr<TestChild> server_;
};

TEST(FirstAnswerTest, WhoDoesNotListenIsNotWatched) {
  const TestChild idle;
  EXPECT_EQ(WatchOf(idle), nullptr);
}

TEST_F(TcpTest, TheFirstByteThatIsSentBackIsTheAnswer) {
  auto watch = WatchOf(*server_);
  ASSERT_NE(watch, nullptr);
  EXPECT_FALSE(AnyOfSomeLooks(*watch));
  const UniqueFd connection = ConnectToTcp(port_);
  EXPECT_FALSE(AnyOfSomeLooks(*watch));
  Tell(connection, kSayNothing);
  EXPECT_FALSE(AnyOfSomeLooks(*watch));
  Tell(connection, kAnswer);
  EXPECT_EQ(Receive(connection), 'A');
  WaitForAnswer(*watch);
}

TEST_F(TcpTest, AConnectionThatEndedBeforeAnybodyLookedIsSeen) {
  auto watch = WatchOf(*server_);
  ASSERT_NE(watch, nullptr);
  for (char request : {kAnswer, kAnswerAndClose}) {
    const UniqueFd connection = ConnectToTcp(port_);
    Tell(connection, request);
    EXPECT_EQ(Receive(connection), 'A');
  }
  WaitForAnswer(*watch);
}

TEST_F(TcpTest, ConnectionsThatCarriedNothingAndThoseFromBeforeDoNotCount) {
  const UniqueFd before = ConnectToTcp(port_);
  Tell(before, kAnswer);
  EXPECT_EQ(Receive(before), 'A');
  auto watch = WatchOf(*server_);
  ASSERT_NE(watch, nullptr);
  Tell(before, kAnswerAndClose);
  EXPECT_EQ(Receive(before), 'A');
  ConnectToTcp(port_);
  EXPECT_FALSE(AnyOfSomeLooks(*watch));
}

TEST_F(TcpTest, OnASharedPortTheJobsOwnConnectionsCount) {
  const UniqueFd listener = ListenOnTcp(port_);
  const TestChild other([&] {
    Serve(listener.get(), 'B');
    return true;
  });
  std::vector<UniqueFd> connections;
  auto answer = [&] {
    connections.push_back(ConnectToTcp(port_));
    Tell(connections.back(), kAnswer);
    return Receive(connections.back());
  };
  // The kernel chooses who gets a connection.
  std::unique_ptr<FirstAnswer> watch;
  do {
    watch = WatchOf(*server_);
    ASSERT_NE(watch, nullptr);
  } while (answer() != 'B');
  EXPECT_FALSE(AnyOfSomeLooks(*watch));
  while (answer() != 'A') {
  }
  WaitForAnswer(*watch);
}

TEST(FirstAnswerTest, InANetworkOfItsOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make network namespaces";
  int order[2], done[2];
  ASSERT_EQ(::pipe2(order, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(done, O_CLOEXEC), 0);
  const UniqueFd order_out(order[0]), order_in(order[1]), done_out(done[0]), done_in(done[1]);
  const TestChild server([&] {
    if (::unshare(CLONE_NEWNET) != 0) return false;
    const UniqueFd any(::socket(AF_INET, SOCK_DGRAM, 0));
    ifreq loopback{};
    memcpy(loopback.ifr_name, "lo", sizeof "lo");
    loopback.ifr_flags = IFF_UP;
    if (::ioctl(any.get(), SIOCSIFFLAGS, &loopback) != 0) return false;
    const int listener = ListenOnTcp(0).Release();
    Serve(listener, 'A');
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    std::thread([&, port = ntohs(address.sin_port)] {
      char request;
      while (::read(order_out.get(), &request, 1) == 1) {
        const UniqueFd connection = ConnectToTcp(port);
        Tell(connection, request);
        const char answer = Receive(connection);
        if (::write(done_in.get(), &answer, 1) != 1) return;
      }
    }).detach();
    return true;
  });
  auto watch = WatchOf(server);
  ASSERT_NE(watch, nullptr);
  EXPECT_FALSE(AnyOfSomeLooks(*watch));
  ASSERT_EQ(::write(order_in.get(), &kAnswer, 1), 1);
  char answer;
  ASSERT_EQ(::read(done_out.get(), &answer, 1), 1);
  WaitForAnswer(*watch);
}

class UnixTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const UniqueFd listener(::socket(AF_UNIX, GetParam(), 0));
    const sockaddr_un address = Address();
    ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(listener.get(), 8), 0);
    server_ = std::make_unique<TestChild>([&] {
      Serve(listener.get(), 'A');
      return true;
    });
  }
  sockaddr_un Address() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    absl::StrCat(directory_.path(), "/socket").copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  UniqueFd Connect() const {
    UniqueFd connection(::socket(AF_UNIX, GetParam(), 0));
    const sockaddr_un address = Address();
    EXPECT_EQ(::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return connection;
  }

  TemporaryDirectory directory_ = *TemporaryDirectory::Make("/tmp", "rk-first-answer-test.");
  std::unique_ptr<TestChild> server_;
};

TEST_P(UnixTest, WhatTheOtherSideHasNotReadIsAnAnswer) {
  auto watch = WatchOf(*server_);
  ASSERT_NE(watch, nullptr);
  const UniqueFd connection = Connect();
  EXPECT_FALSE(AnyOfSomeLooks(*watch));
  Tell(connection, kSayNothing);
  EXPECT_FALSE(AnyOfSomeLooks(*watch));
  Tell(connection, kAnswer);
  WaitForAnswer(*watch);
}

TEST_P(UnixTest, AConnectionThatWasSeenAndHasEndedIsAnAnswer) {
  for (const bool by_the_server : {false, true}) {
    auto watch = WatchOf(*server_);
    ASSERT_NE(watch, nullptr);
    UniqueFd connection = Connect();
    Tell(connection, kSayNothing);
    EXPECT_FALSE(AnyOfSomeLooks(*watch));
    if (by_the_server) {
      Tell(connection, kAnswerAndClose);
      EXPECT_EQ(Receive(connection), 'A');
    } else {
      connection.Reset();
    }
    WaitForAnswer(*watch);
  }
}

TEST_P(UnixTest, ConnectionsFromBeforeDoNotCount) {
  const UniqueFd before = Connect();
  Tell(before, kAnswer);
  EXPECT_EQ(Receive(before), 'A');
  auto watch = WatchOf(*server_);
  ASSERT_NE(watch, nullptr);
  Tell(before, kAnswer);
  EXPECT_FALSE(AnyOfSomeLooks(*watch));
}

INSTANTIATE_TEST_SUITE_P(Types, UnixTest, ::testing::Values(SOCK_STREAM, SOCK_SEQPACKET));

}  // namespace
}  // namespace rekindle::restore
