#include "criu/unix_sockets.h"

#include <sys/socket.h>

#include "criu/test_images.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<NamedUnixSocket> Named(const pb::UnixSocket& socket) {
  return NamedUnixSockets(MakeUnixSockets({socket})).value();
}

TEST(UnixSocketsTest, NamesAsTheyWereBound) {
  pb::UnixSocket exact = ListeningSocket("/tmp/a/s");
  exact.set_name("/tmp/a/s");
  pb::UnixSocket gone = ListeningSocket("s", "/tmp/b");
  gone.set_deleted(true);
  const auto sockets = NamedUnixSockets(MakeUnixSockets({ListeningSocket("/tmp/a/s"), exact, gone}));
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  ASSERT_THAT(*sockets, SizeIs(3));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*sockets)[i].name, "/tmp/a/s");
    EXPECT_EQ((*sockets)[i].folder, "");
    EXPECT_FALSE((*sockets)[i].gone);
  }
  EXPECT_EQ((*sockets)[2].name, "s");
  EXPECT_EQ((*sockets)[2].folder, "/tmp/b");
  EXPECT_TRUE((*sockets)[2].gone);
}

TEST(UnixSocketsTest, OnlyThoseThatARestoreBinds) {
  pb::UnixSocket socket = ListeningSocket("/s");
  EXPECT_THAT(Named(socket), SizeIs(1));
  socket.set_state(1);
  EXPECT_THAT(Named(socket), IsEmpty()) << "an accepted connection";
  socket.set_type(SOCK_DGRAM);
  EXPECT_THAT(Named(socket), SizeIs(1)) << "with a name of its own, sending to another";
  socket.set_own_flags(1);
  EXPECT_THAT(Named(socket), IsEmpty()) << "of a process outside";
  EXPECT_THAT(Named(ListeningSocket(std::string("\0abstract", 9))), IsEmpty());
  socket = ListeningSocket("");
  socket.clear_name();
  EXPECT_THAT(Named(socket), IsEmpty());
}

TEST(UnixSocketsTest, OtherFilesAreNone) {
  EXPECT_THAT(NamedUnixSockets(MakeFiles({{1, "/tmp/file"}})).value(), IsEmpty());
  EXPECT_TRUE(absl::IsDataLoss(NamedUnixSockets("damaged").status()));
}

}  // namespace
}  // namespace rekindle::criu
