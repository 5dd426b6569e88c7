#include "base/packet_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/unique_fd.h"

namespace rekindle {
namespace {

class PacketSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto pair = PacketSocketPair();
    ASSERT_TRUE(pair.ok()) << pair.status();
    std::tie(ours_, theirs_) = *std::move(pair);
  }
  Packet Receive() {
    auto packet = ReceivePacket(theirs_.get());
    EXPECT_TRUE(packet.ok()) << packet.status();
    EXPECT_TRUE(packet.ok() && packet->has_value());
    return packet.ok() && packet->has_value() ? **std::move(packet) : Packet();
  }

  UniqueFd ours_, theirs_;
};

TEST_F(PacketSocketTest, EachComesAsItWasSent) {
  // A short one behind a long one has nothing of it.
  for (const std::string& bytes :
       {std::string(kMaxPacketBytes, 'x'), std::string("short"), std::string("a\0b", 3)}) {
    ASSERT_TRUE(SendPacket(ours_.get(), bytes).ok());
    EXPECT_TRUE(Receive().bytes == bytes);
  }
  EXPECT_EQ(SendPacket(ours_.get(), std::string(kMaxPacketBytes + 1, 'x')).code(),
            absl::StatusCode::kInternal);
}

TEST_F(PacketSocketTest, DescriptorsComeAlong) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd out(ends[0]), in(ends[1]);
  ASSERT_TRUE(SendPacket(ours_.get(), "", {&ends[1], 1}).ok());
  Packet packet = Receive();
  ASSERT_EQ(packet.descriptors.size(), 1u);
  EXPECT_NE(packet.descriptors[0].get(), in.get());
  ASSERT_EQ(::write(packet.descriptors[0].get(), "!", 1), 1);
  char seen;
  ASSERT_EQ(::read(out.get(), &seen, 1), 1);
  EXPECT_EQ(seen, '!');
}

TEST_F(PacketSocketTest, NothingThereAndNobodyThere) {
  EXPECT_TRUE(absl::IsUnavailable(ReceivePacket(theirs_.get(), MSG_DONTWAIT).status()));
  ours_.Reset();
  auto packet = ReceivePacket(theirs_.get());
  ASSERT_TRUE(packet.ok()) << packet.status();
  EXPECT_FALSE(packet->has_value());
  EXPECT_TRUE(absl::IsUnavailable(SendPacket(theirs_.get(), "x")));
}

TEST_F(PacketSocketTest, APacketThatIsTooLargeIsNotTakenForAnother) {
  // The usual room has no place for it.
  const int room = 1 << 20;
  if (::setsockopt(ours_.get(), SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) != 0)
    GTEST_SKIP() << "not root";
  const std::string large(kMaxPacketBytes + 1, 'x');
  ASSERT_EQ(::send(ours_.get(), large.data(), large.size(), 0), static_cast<ssize_t>(large.size()));
  EXPECT_TRUE(absl::IsResourceExhausted(ReceivePacket(theirs_.get()).status()));
}

TEST_F(PacketSocketTest, WhoTakesNothingIsNotWaitedFor) {
  int sent = 0;
  absl::Status status;
  while ((status = SendPacket(ours_.get(), "x", {}, MSG_DONTWAIT)).ok()) ++sent;
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_GT(sent, 0);
  ASSERT_TRUE(ReceivePacket(theirs_.get()).ok());
  EXPECT_TRUE(SendPacket(ours_.get(), "x", {}, MSG_DONTWAIT).ok());
}

TEST(PacketSocketPathTest, WhereNobodyListens) {
  auto folder = TemporaryDirectory::Make("/tmp", "rk-packet-socket-test.");
  ASSERT_TRUE(folder.ok());
  const std::string path = absl::StrCat(folder->path(), "/socket");
  EXPECT_TRUE(absl::IsNotFound(ConnectForPackets(path).status()));
  {
    auto listener = ListenForPackets(path);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(ConnectForPackets(path).ok());
    EXPECT_TRUE(absl::IsAlreadyExists(ListenForPackets(path).status()));
  }
  EXPECT_TRUE(absl::IsNotFound(ConnectForPackets(path).status())) << "the socket of a dead one";
  EXPECT_TRUE(absl::IsInvalidArgument(ListenForPackets(std::string(200, 'x')).status()));
}

TEST(PacketSocketPathTest, WhoHangsIsNotWaitedForWithoutEnd) {
  const auto folder = TemporaryDirectory::Make("/tmp", "rk-packet-socket-test.");
  ASSERT_TRUE(folder.ok());
  const std::string path = absl::StrCat(folder->path(), "/socket");
  const auto listener = ListenForPackets(path);
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::vector<UniqueFd> waiting;
  absl::StatusOr<UniqueFd> made;
  while ((made = ConnectForPackets(path, absl::Milliseconds(10))).ok()) waiting.push_back(*std::move(made));
  EXPECT_TRUE(absl::IsDeadlineExceeded(made.status())) << made.status();
  EXPECT_GT(waiting.size(), 1u);
  timeval patience{1, 1};
  socklen_t size = sizeof patience;
  ASSERT_EQ(::getsockopt(waiting[0].get(), SOL_SOCKET, SO_SNDTIMEO, &patience, &size), 0);
  EXPECT_EQ(patience.tv_sec + patience.tv_usec, 0) << "sending waits";
}

}  // namespace
}  // namespace rekindle
