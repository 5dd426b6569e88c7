#include "ckpt/upper_protocols.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using ::testing::HasSubstr;

class UpperProtocolTest : public testing::Test {
 protected:
  void SetUp() override {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* at = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(::bind(listener_.get(), at, length), 0);
    ASSERT_EQ(::listen(listener_.get(), 1), 0);
    ASSERT_EQ(::getsockname(listener_.get(), at, &length), 0);
    ASSERT_EQ(::connect(client_.get(), at, length), 0);
  }

  const UniqueFd listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const UniqueFd client_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
};

TEST_F(UpperProtocolTest, PlainConnectionsAndWhatIsNone) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reads(ends[0]), writes(ends[1]);
  const UniqueFd local(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const pid_t self = ::getpid();
  EXPECT_TRUE(CheckNoUpperProtocol({{self, client_.get()},
                                    {self, listener_.get()},
                                    {self, local.get()},
                                    {self, reads.get()},
                                    {self, 1 << 20},
                                    {1 << 22, 0}})
                  .ok());
  const pid_t pids[] = {self};
  EXPECT_TRUE(CheckNoTlsSince(pids, TlsSessionsBegunBeside(self)).ok());
  EXPECT_TRUE(CheckNoTlsSince(pids, UINT64_MAX).ok());
}

TEST_F(UpperProtocolTest, KernelTlsIsRefused) {
  if (::setsockopt(client_.get(), IPPROTO_TCP, TCP_ULP, "tls", 3) != 0)
    GTEST_SKIP() << "this kernel has no TLS of its own: " << std::strerror(errno);
  const absl::Status status = CheckNoUpperProtocol({{::getpid(), client_.get()}});
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("kTLS"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("descriptor ", client_.get())));
}

// As Linux 6.1 writes it (net/tls/tls_proc.c).
TEST(TlsSessionsTest, AreCounted) {
  constexpr char kNone[] =
      "TlsCurrTxSw                     \t7\nTlsCurrRxSw                     \t7\n"
      "TlsCurrTxDevice                 \t0\nTlsCurrRxDevice                 \t0\n"
      "TlsTxSw                         \t0\nTlsRxSw                         \t0\n"
      "TlsTxDevice                     \t0\nTlsRxDevice                     \t0\n"
      "TlsDecryptError                 \t0\nTlsRxDeviceResync               \t5\n";
  EXPECT_EQ(CountTlsSessions(kNone), 0u);
  std::string some = kNone;
  some.replace(some.find("TlsTxSw "), 34, "TlsTxSw                         \t12");
  some.replace(some.find("TlsRxDevice "), 34, "TlsRxDevice                     \t3");
  EXPECT_EQ(CountTlsSessions(some), 15u);
  EXPECT_EQ(CountTlsSessions(""), 0u);
  EXPECT_EQ(CountTlsSessions("TlsTxSw"), 0u);
}

}  // namespace
}  // namespace rekindle::ckpt
