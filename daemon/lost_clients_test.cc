#include "daemon/lost_clients.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

int OptionOf(int fd, int level, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(fd, level, option, &value, &size), 0);
  return value;
}

class LostClientsTest : public testing::TestWithParam<int> {};

TEST_P(LostClientsTest, WhatIsAcceptedIsProbed) {
  sockaddr_storage address{};
  address.ss_family = static_cast<sa_family_t>(GetParam());
  if (GetParam() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = GetParam() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  UniqueFd listener(::socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid() || ::bind(listener.get(), generic, size) != 0)
    GTEST_SKIP() << "no such addresses here";
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  ASSERT_EQ(::getsockname(listener.get(), generic, &size), 0);
  const int port = ntohs(GetParam() == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                                : reinterpret_cast<sockaddr_in&>(address).sin_port);
  ASSERT_TRUE(NoticeLostClients(port).ok());
  UniqueFd client(::socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), generic, size), 0);
  UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted.valid());
  EXPECT_EQ(OptionOf(accepted.get(), SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(OptionOf(accepted.get(), IPPROTO_TCP, TCP_KEEPIDLE), 60);
  EXPECT_EQ(OptionOf(accepted.get(), IPPROTO_TCP, TCP_KEEPCNT), 4);
  EXPECT_EQ(OptionOf(accepted.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 120'000);
}

INSTANTIATE_TEST_SUITE_P(Families, LostClientsTest, testing::Values(AF_INET, AF_INET6));

// As that of a machine that has gone: what comes to it is dropped before its TCP sees it.
TEST(LostClients, OneToWhomSomethingIsOnItsWayIsGivenUp) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener.get(), generic, size), 0);
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  ASSERT_EQ(::getsockname(listener.get(), generic, &size), 0);
  ASSERT_TRUE(NoticeLostClients(ntohs(address.sin_port), absl::Seconds(8)).ok());
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), generic, size), 0);
  UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted.valid());
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program = {1, &drop_all};
  ASSERT_EQ(::setsockopt(client.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
  ASSERT_EQ(::send(accepted.get(), "progress", 8, MSG_NOSIGNAL), 8);
  // Without a limit it would be tried for a quarter of an hour.
  pollfd waits = {accepted.get(), POLLIN, 0};
  constexpr int kPatienceMs = 120'000;
  ASSERT_EQ(::poll(&waits, 1, kPatienceMs), 1);
  char byte;
  EXPECT_EQ(::recv(accepted.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
}

TEST(LostClients, NobodyListens) { EXPECT_TRUE(absl::IsNotFound(NoticeLostClients(1))); }

}  // namespace
}  // namespace rekindle::daemon
