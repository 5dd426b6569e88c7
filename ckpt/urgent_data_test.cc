#include "ckpt/urgent_data.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using ::testing::HasSubstr;

class UrgentDataTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(GetParam());
    if (GetParam() == AF_INET) {
      reinterpret_cast<sockaddr_in*>(&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
      reinterpret_cast<sockaddr_in6*>(&address)->sin6_addr = in6addr_loopback;
    }
    socklen_t length = sizeof address;
    auto* at = reinterpret_cast<sockaddr*>(&address);
    const UniqueFd listener(::socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(listener.get(), at, GetParam() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)) != 0)
      GTEST_SKIP() << "no such addresses here";
    ASSERT_EQ(::listen(listener.get(), 1), 0);
    ASSERT_EQ(::getsockname(listener.get(), at, &length), 0);
    ASSERT_EQ(::connect(sender_.get(), at, length), 0);
    reader_.Reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(reader_.valid());
  }

  void Send(const std::string& text, int flags = 0) {
    ASSERT_EQ(::send(sender_.get(), text.data(), text.size(), flags), static_cast<ssize_t>(text.size()));
  }

  void Read(size_t bytes) {
    std::string text(bytes, 0);
    ASSERT_EQ(::recv(reader_.get(), text.data(), bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
  }

  static absl::Status Check() {
    const pid_t self = ::getpid();
    return CheckNoUnreadUrgentData({&self, 1});
  }

  const UniqueFd sender_{::socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd reader_;
};

TEST_P(UrgentDataTest, IsFoundUntilItIsRead) {
  Send("abc");
  EXPECT_TRUE(Check().ok());
  Send("U", MSG_OOB);
  Send("defghi");
  const absl::Status unread = Check();
  EXPECT_TRUE(absl::IsFailedPrecondition(unread)) << unread;
  EXPECT_THAT(std::string(unread.message()), HasSubstr("last 7 bytes"));
  EXPECT_THAT(std::string(unread.message()), HasSubstr(absl::StrCat("descriptor ", reader_.get(), " ")));
  char urgent = 0;
  ASSERT_EQ(::recv(reader_.get(), &urgent, 1, MSG_OOB), 1);
  EXPECT_FALSE(Check().ok());
  Read(3);
  EXPECT_FALSE(Check().ok());
  Read(2);  // past it
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_P(UrgentDataTest, TheEndCountsForNone) {
  Send("abc");
  ASSERT_EQ(::shutdown(sender_.get(), SHUT_WR), 0);
  EXPECT_TRUE(Check().ok()) << Check();
  Read(3);
  EXPECT_TRUE(Check().ok()) << Check();
}

INSTANTIATE_TEST_SUITE_P(Families, UrgentDataTest, testing::Values(AF_INET, AF_INET6));

}  // namespace
}  // namespace rekindle::ckpt
