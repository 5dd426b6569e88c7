#include "criu/lazy_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "base/test_descriptors.h"

namespace rekindle::criu {
namespace {

using What = LazyPagesConnection::Event::What;

// CRIU's side.
class LazyPagesTest : public testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    criu_.Reset(pair[0]);
    connection_.emplace(UniqueFd(pair[1]));
  }
  void SendWord(int32_t word) {
    ASSERT_EQ(::write(criu_.get(), &word, sizeof word), static_cast<ssize_t>(sizeof word));
  }
  void SendDescriptor(int fd) {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    ASSERT_EQ(::sendmsg(criu_.get(), &message, 0), 1);
  }
  void ExpectTask(pid_t pid) {
    auto event = connection_->Next();
    ASSERT_TRUE(event.ok()) << event.status();
    ASSERT_EQ(event->what, What::kTask);
    EXPECT_EQ(event->pid, pid);
    EXPECT_GE(::fcntl(event->userfaultfd.get(), F_GETFD), 0);
  }

  UniqueFd criu_;
  std::optional<LazyPagesConnection> connection_;
};

TEST_F(LazyPagesTest, TasksThenTheEnd) {
  SendWord(12);
  SendDescriptor(STDOUT_FILENO);
  SendWord(-13);
  SendWord(14);
  SendDescriptor(STDOUT_FILENO);
  SendWord(0x52535446);
  ExpectTask(12);
  EXPECT_EQ(connection_->Next()->what, What::kZombie);
  ExpectTask(14);
  EXPECT_EQ(connection_->Next()->what, What::kFinished);
  EXPECT_EQ(connection_->Next()->what, What::kNothing);
  criu_.Reset();
  EXPECT_EQ(connection_->Next()->what, What::kClosed);
}

TEST_F(LazyPagesTest, ADescriptorThatThereIsNoRoomForIsNotLost) {
  SendWord(12);
  SendDescriptor(STDOUT_FILENO);
  SendWord(13);
  {
    FewDescriptorsLeft none(0);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(connection_->Next().status().code(), absl::StatusCode::kResourceExhausted);
    }
  }
  ExpectTask(12);
  EXPECT_EQ(connection_->Next()->what, What::kNothing);
  SendDescriptor(STDOUT_FILENO);
  ExpectTask(13);
}

}  // namespace
}  // namespace rekindle::criu
