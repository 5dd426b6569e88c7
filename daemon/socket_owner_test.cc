#include "daemon/socket_owner.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <thread>

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

// A list of all sockets takes long to read where there are many: it is not needed.
TEST_F(SocketOwnerTest, IsKnownWithoutTheListOfAllSockets) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be without /proc";
  Connect(AF_INET);
  std::thread([this] {
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(::mount("none", "/proc", "tmpfs", 0, nullptr), 0);
    EXPECT_EQ(OwnerOfOtherEnd(accepted_.get()).value_or(12345), ::geteuid());
  }).join();
}

// As in containers whose filters of system calls leave it out.
TEST_F(SocketOwnerTest, IsKnownWhereTheKernelsIndexMayNotBeAsked) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {sizeof program / sizeof program[0], program};
  for (int family : {AF_INET, AF_INET6}) {
    Connect(family);
    if (IsSkipped()) return;
    std::thread([&] {
      ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
      ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
      ASSERT_LT(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, 0), 0);
      EXPECT_EQ(OwnerOfOtherEnd(accepted_.get()).value_or(12345), ::geteuid());
    }).join();
  }
}

}  // namespace
}  // namespace rekindle::daemon
