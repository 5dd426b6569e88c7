#include "daemon/socket_owner.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

class SocketOwnerTest : public testing::Test {
 protected:
  // A listener, of IPv6 for both versions, and a client of IPv4, by a socket of IPv4 or IPv6.
  void Connect(int family, int client_family = AF_INET) {
    listener_.Reset(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!listener_.valid()) GTEST_SKIP() << "no sockets of this family";
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (family == AF_INET) {
      reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
      const int both = 0;
      ::setsockopt(listener_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both);
    }
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
      GTEST_SKIP() << "no addresses of this family";
    }
    ASSERT_EQ(::listen(listener_.get(), 1), 0);
    ASSERT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                    : reinterpret_cast<sockaddr_in6&>(address).sin6_port;
    sockaddr_in6 mapped{};
    mapped.sin6_family = AF_INET6;
    mapped.sin6_port = to.sin_port;
    ASSERT_EQ(::inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr), 1);
    client_.Reset(::socket(client_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!client_.valid()) GTEST_SKIP() << "no sockets of this family";
    ASSERT_EQ(client_family == AF_INET
                  ? ::connect(client_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to)
                  : ::connect(client_.get(), reinterpret_cast<sockaddr*>(&mapped), sizeof mapped),
              0);
    accepted_.Reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(accepted_.valid());
  }

  UniqueFd listener_, client_, accepted_;
};

TEST_F(SocketOwnerTest, IsWhoHasConnected) {
  Connect(AF_INET);
  EXPECT_EQ(OwnerOfOtherEnd(accepted_.get()).value_or(12345), ::geteuid());
}

TEST_F(SocketOwnerTest, IsWhoHasConnectedByAnOlderProtocol) {
  Connect(AF_INET6);
  EXPECT_EQ(OwnerOfOtherEnd(accepted_.get()).value_or(12345), ::geteuid());
}

TEST_F(SocketOwnerTest, IsWhoHasConnectedBySocketsOfANewerProtocol) {
  for (int family : {AF_INET, AF_INET6}) {
    Connect(family, AF_INET6);
    if (IsSkipped()) return;
    EXPECT_EQ(OwnerOfOtherEnd(accepted_.get()).value_or(12345), ::geteuid());
  }
}

TEST_F(SocketOwnerTest, IsKnownWhenNothingMoreWillBeSent) {
  Connect(AF_INET);
  ASSERT_EQ(::shutdown(client_.get(), SHUT_WR), 0);
  EXPECT_EQ(OwnerOfOtherEnd(accepted_.get()).value_or(12345), ::geteuid());
}

// The kernel's tables give such sockets to root.
TEST_F(SocketOwnerTest, IsNobodyWhenTheOtherEndWasClosed) {
  Connect(AF_INET);
  ASSERT_EQ(::write(client_.get(), "request", 7), 7);
  client_.Reset();
  EXPECT_EQ(OwnerOfOtherEnd(accepted_.get()).status().code(), absl::StatusCode::kUnauthenticated);
}

}  // namespace
}  // namespace rekindle::daemon
