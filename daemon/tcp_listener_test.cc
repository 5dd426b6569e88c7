#include "daemon/tcp_listener.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "daemon/accept_loop.h"

namespace rekindle::daemon {
namespace {

UniqueFd ConnectOverTcp(int port, uint32_t from = INADDR_LOOPBACK) {
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(from);
  if (::bind(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return client;
}

TEST(TcpListenerTest, OnePortOfAllAddressesThatAreMeant) {
  for (const char* address : {"127.0.0.1:0", "localhost:0", ":0", "0.0.0.0:0"}) {
    const auto tcp = ListenOnTcp(address);
    ASSERT_TRUE(tcp.ok()) << address << ": " << tcp.status();
    ASSERT_NE(tcp->port, 0);
    EXPECT_TRUE(ConnectOverTcp(tcp->port).valid()) << address;
    const auto second = ListenOnTcp(absl::StrCat("127.0.0.1:", tcp->port));
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << address;
    EXPECT_TRUE(absl::StrContains(second.status().message(), "ss -ltnp")) << second.status();
  }
  EXPECT_EQ(ListenOnTcp("127.0.0.1").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ListenOnTcp("192.0.2.1:0").status().code(),
            absl::StatusCode::kUnavailable);  // nobody's (RFC 5737)
}

TEST(TcpListenerTest, ConnectionsAreCountedUntilTheyAreClosed) {
  auto tcp = ListenOnTcp("127.0.0.1:0");
  ASSERT_TRUE(tcp.ok()) << tcp.status();
  TcpConnections connections(4);
  std::vector<UniqueFd> clients, taken;
  const auto admit = [&](uint32_t from) {
    clients.push_back(ConnectOverTcp(tcp->port, from));
    EXPECT_TRUE(clients.back().valid());
    UniqueFd accepted(::accept4(tcp->sockets[0].get(), nullptr, nullptr, SOCK_CLOEXEC));
    const absl::Status admitted = connections.Admit(accepted.get());
    if (admitted.ok()) taken.push_back(std::move(accepted));
    return admitted;
  };
  const uint32_t first = INADDR_LOOPBACK, other = INADDR_LOOPBACK + 1;
  EXPECT_TRUE(admit(first).ok());
  EXPECT_TRUE(admit(first).ok());
  const absl::Status full = admit(first);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_TRUE(absl::StrContains(full.message(), "from 127.0.0.1 is one too many")) << full;
  EXPECT_TRUE(admit(other).ok()) << "one address does not have them all";
  EXPECT_TRUE(admit(other).ok());
  EXPECT_FALSE(admit(INADDR_LOOPBACK + 2).ok());
  // By gRPC, which does not tell.
  taken.erase(taken.begin());
  EXPECT_TRUE(admit(first).ok());
  EXPECT_FALSE(admit(first).ok());
}

TEST(TcpListenerTest, AnOrdinaryLimitIsEnoughForAFewNodes) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const auto& [limit, most] :
       {std::pair(rlim_t{512}, size_t{64}), std::pair(rlim_t{1024}, size_t{256})}) {
    const rlimit lower{limit, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
    EXPECT_EQ(MostTcpConnections(), most) << limit;
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// One that can't be taken while there are no descriptors is taken once there are some.
TEST(TcpListenerTest, GoesOnWhenThereAreDescriptorsAgain) {
  auto tcp = ListenOnTcp("127.0.0.1:0");
  ASSERT_TRUE(tcp.ok()) << tcp.status();
  absl::Notification came;
  auto loop = AcceptLoop::Start(std::move(tcp->sockets), [&](UniqueFd) { came.Notify(); });
  ASSERT_TRUE(loop.ok()) << loop.status();
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::vector<UniqueFd> all;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(client.get()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  for (;;) {
    UniqueFd one(::fcntl(0, F_DUPFD_CLOEXEC, 0));
    if (!one.valid()) break;
    all.push_back(std::move(one));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(tcp->port));
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_FALSE(came.WaitForNotificationWithTimeout(absl::Milliseconds(250)));
  all.clear();
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(came.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

}  // namespace
}  // namespace rekindle::daemon
