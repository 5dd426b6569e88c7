#include "restore/left_connections.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <vector>

namespace rekindle::restore {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uid_t kAnna = 1000, kBert = 1001;
constexpr uint16_t kFirstForAll = 1024;

criu::TcpConnection End(const std::string& address, uint16_t port) {
  criu::TcpConnection end;
  end.family = address.find(':') == std::string::npos ? AF_INET : AF_INET6;
  EXPECT_EQ(::inet_pton(end.family, address.c_str(), end.local.data()), 1) << address;
  end.local_port = port;
  return end;
}

TcpSocket Socket(uint16_t port, uid_t user, uint32_t inode = 7, const std::string& address = "0.0.0.0") {
  TcpSocket socket;
  socket.ends = End(address, port);
  socket.user = user;
  socket.inode = inode;
  return socket;
}

std::vector<uint16_t> Kept(const std::vector<uint16_t>& ports, uid_t user, uint16_t first_for_all,
                           const std::vector<TcpSocket>& there) {
  std::vector<criu::TcpConnection> ends;
  for (const uint16_t port : ports) ends.push_back(End("127.0.0.1", port));
  std::vector<uint16_t> kept;
  for (const auto& end : KeepTheirOwn(ends, user, first_for_all, there)) kept.push_back(end.local_port);
  return kept;
}

TEST(LeftConnectionsTest, AUsersImageFreesNoPortsOfOthers) {
  EXPECT_THAT(Kept({443, 8080, 8081}, kAnna, kFirstForAll, {}), ElementsAre(8080, 8081));
  EXPECT_THAT(Kept({443, 8080}, kAnna, 0, {}), ElementsAre(443, 8080));
  EXPECT_THAT(Kept({8080, 8081, 8082}, kAnna, kFirstForAll,
                   {Socket(8080, kBert), Socket(8081, kAnna), Socket(8082, 0), Socket(9000, kBert)}),
              ElementsAre(8081));
  // Nobody has it: whose it was is not known.
  EXPECT_THAT(Kept({8080}, kAnna, kFirstForAll, {Socket(8080, 0, 0)}), ElementsAre(8080));
  EXPECT_THAT(Kept({8080}, kAnna, kFirstForAll, {Socket(8080, kAnna), Socket(8080, kBert)}), IsEmpty());
  EXPECT_THAT(Kept({8080}, kAnna, kFirstForAll, {Socket(8080, kBert, 7, "127.0.0.2")}), ElementsAre(8080));
  EXPECT_THAT(Kept({443, 8080}, 0, kFirstForAll, {Socket(8080, kBert)}), ElementsAre(443, 8080));
}

TEST(LeftConnectionsTest, EndsCollideByPortAndAddress) {
  EXPECT_TRUE(Collide(End("127.0.0.1", 80), End("127.0.0.1", 80)));
  EXPECT_FALSE(Collide(End("127.0.0.1", 80), End("127.0.0.1", 81)));
  EXPECT_FALSE(Collide(End("127.0.0.1", 80), End("127.0.0.2", 80)));
  EXPECT_TRUE(Collide(End("0.0.0.0", 80), End("127.0.0.2", 80)));
  EXPECT_TRUE(Collide(End("127.0.0.2", 80), End("::", 80)));
  EXPECT_TRUE(Collide(End("127.0.0.1", 80), End("::ffff:127.0.0.1", 80)));
  EXPECT_FALSE(Collide(End("::1", 80), End("127.0.0.1", 80)));
}

}  // namespace
}  // namespace rekindle::restore
