#include "restore/left_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rekindle::restore {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uid_t kAnna = 1000, kBert = 1001;
constexpr uint16_t kFirstForAll = 1024;

TcpSocket Socket(uint16_t port, uid_t user, uint32_t inode = 7) {
  TcpSocket socket;
  socket.ends.local_port = port;
  socket.user = user;
  socket.inode = inode;
  return socket;
}

TEST(LeftConnectionsTest, AUsersImageFreesNoPortsOfOthers) {
  EXPECT_THAT(KeepTheirOwn({443, 8080, 8081}, kAnna, kFirstForAll, {}), ElementsAre(8080, 8081));
  EXPECT_THAT(KeepTheirOwn({443, 8080}, kAnna, 0, {}), ElementsAre(443, 8080));
  EXPECT_THAT(KeepTheirOwn({8080, 8081, 8082}, kAnna, kFirstForAll,
                           {Socket(8080, kBert), Socket(8081, kAnna), Socket(8082, 0), Socket(9000, kBert)}),
              ElementsAre(8081));
  // Nobody has it: whose it was is not known.
  EXPECT_THAT(KeepTheirOwn({8080}, kAnna, kFirstForAll, {Socket(8080, 0, 0)}), ElementsAre(8080));
  EXPECT_THAT(KeepTheirOwn({8080}, kAnna, kFirstForAll, {Socket(8080, kAnna), Socket(8080, kBert)}),
              IsEmpty());
  EXPECT_THAT(KeepTheirOwn({443, 8080}, 0, kFirstForAll, {Socket(8080, kBert)}), ElementsAre(443, 8080));
}

}  // namespace
}  // namespace rekindle::restore
