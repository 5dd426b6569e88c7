#include "restore/socket_diag.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace rekindle::restore {
namespace {

class FindTcpTest : public testing::Test {
 protected:
  // A connection over the loopback interface by sockets of this family.
  void Connect(int family) {
    listener_.Reset(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    client_.Reset(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage address{};
    socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    address.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET) {
      reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
      reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
    }
    if (!listener_.valid() || ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
      GTEST_SKIP() << "no addresses of this family";
    }
    ASSERT_EQ(::listen(listener_.get(), 1), 0);
    ASSERT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    ASSERT_EQ(::connect(client_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    sockaddr_storage own{};
    ASSERT_EQ(::getsockname(client_.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
    ends_ = {};
    ends_.family = family;
    if (family == AF_INET) {
      ends_.local[0] = ends_.remote[0] = htonl(INADDR_LOOPBACK);
      ends_.local_port = ntohs(reinterpret_cast<sockaddr_in&>(own).sin_port);
      ends_.remote_port = ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);
    } else {
      ends_.local[3] = ends_.remote[3] = htonl(1);
      ends_.local_port = ntohs(reinterpret_cast<sockaddr_in6&>(own).sin6_port);
      ends_.remote_port = ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port);
    }
  }

  UniqueFd listener_, client_;
  criu::TcpConnection ends_;  // the client's
};

TEST_F(FindTcpTest, IsTheOneWithTheseEnds) {
  for (int family : {AF_INET, AF_INET6}) {
    Connect(family);
    if (IsSkipped()) return;
    const auto found = FindTcp(ends_);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_TRUE(found->has_value());
    EXPECT_EQ((*found)->ends, ends_);
    EXPECT_EQ((*found)->user, ::geteuid());
    EXPECT_NE((*found)->inode, 0u);
  }
}

// The kernel offers it where there is no such connection: whoever comes from elsewhere, from a port that
// somebody listens on here, would be that one.
TEST_F(FindTcpTest, IsNotOneThatListensAtTheLocalEnd) {
  Connect(AF_INET);
  std::swap(ends_.local, ends_.remote);
  std::swap(ends_.local_port, ends_.remote_port);
  ends_.remote[0] = htonl(0xC0000207);  // 192.0.2.7
  const auto found = FindTcp(ends_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->has_value());
}

TEST_F(FindTcpTest, NobodyHasOneThatWasClosed) {
  Connect(AF_INET);
  client_.Reset();
  const auto found = FindTcp(ends_);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(found->has_value());
  EXPECT_EQ((*found)->inode, 0u);
}

// The listener's end has been closed first, and waits: so its port can't be had, and then it can.
TEST_F(FindTcpTest, OnesThatAreOverAreForgotten) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root has sockets destroyed";
  Connect(AF_INET);
  UniqueFd accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted.valid());
  accepted.Reset();
  char nothing;
  ASSERT_EQ(::read(client_.get(), &nothing, 1), 0);
  client_.Reset();
  listener_.Reset();
  SocketDiag sockets = SocketDiag::Open(0).value();
  const uint16_t port = ends_.remote_port;
  std::vector<TcpSocket> over;
  // The kernel moves it there in its own time.
  while (over.empty()) over = sockets.TimeWaiting(port, port).value();
  EXPECT_THAT(sockets.Tcp(port, port).value(), testing::IsEmpty());
  ASSERT_EQ(over.size(), 1u);
  EXPECT_EQ(over[0].ends.remote_port, ends_.local_port);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const auto bind_again = [&] {
    const UniqueFd again(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return ::bind(again.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  };
  EXPECT_FALSE(bind_again());
  const absl::Status ended = sockets.Destroy(over[0]);
  if (absl::IsUnimplemented(ended)) GTEST_SKIP() << ended;
  ASSERT_TRUE(ended.ok()) << ended;
  EXPECT_TRUE(bind_again());
}

}  // namespace
}  // namespace rekindle::restore
