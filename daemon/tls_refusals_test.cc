#include "daemon/tls_refusals.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kWords[] =
    "Handshake failed with fatal error SSL_ERROR_SSL: peer did not return a certificate.";

struct TcpPair {
  UniqueFd client, accepted;
  std::string address;
};

TcpPair ConnectByTcp() {
  TcpPair pair;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  pair.client.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(listener.get(), generic, size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), generic, &size), 0);
  EXPECT_EQ(::connect(pair.client.get(), generic, size), 0);
  pair.accepted.Reset(::accept(listener.get(), nullptr, nullptr));
  EXPECT_EQ(::getsockname(pair.client.get(), generic, &size), 0);
  pair.address = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  return pair;
}

TEST(TlsRefusalsTest, SaysWhyAndOfWhom) {
  TlsRefusals refusals(absl::Minutes(5));
  EXPECT_EQ(refusals.Explain("Failed to bind"), "");
  EXPECT_THAT(refusals.Explain(kWords), HasSubstr(kWords));
  TcpPair gone = ConnectByTcp();
  const TcpPair there = ConnectByTcp();
  refusals.Begins(gone.accepted.get());
  refusals.Begins(there.accepted.get());
  EXPECT_THAT(refusals.Explain(kWords), HasSubstr(absl::StrCat(there.address, ", ", gone.address, ".")));
  gone.accepted.Reset();
  const std::string explained = refusals.Explain(kWords);
  EXPECT_THAT(explained, HasSubstr(there.address));
  EXPECT_THAT(explained, Not(HasSubstr(gone.address)));
}

TEST(TlsRefusalsTest, TheCureIsThatOfTheSideThatRefuses) {
  TlsRefusals refusals(absl::Minutes(5));
  constexpr char kAlert[] =
      "Handshake failed with fatal error SSL_ERROR_SSL: error:0A000418:SSL routines::tlsv1 alert unknown ca.";
  EXPECT_THAT(refusals.Explain(kWords), HasSubstr("--tls-client-ca"));
  EXPECT_THAT(refusals.Explain(kAlert), HasSubstr("--tls-cert"));
  EXPECT_THAT(refusals.Explain(kAlert), Not(HasSubstr("--tls-client-ca")));
  EXPECT_THAT(refusals.Explain("Handshake failed with fatal error SSL_ERROR_SYSCALL."),
              Not(HasSubstr("--tls")));
}

TEST(TlsRefusalsTest, WhoHasBeenThereForLongIsNotMeant) {
  TlsRefusals refusals(absl::ZeroDuration());
  const TcpPair there = ConnectByTcp();
  refusals.Begins(there.accepted.get());
  EXPECT_THAT(refusals.Explain(kWords), Not(HasSubstr(there.address)));
}

}  // namespace
}  // namespace rekindle::daemon
