#include "daemon/tls_refusals.h"

#include <netdb.h>
#include <sys/socket.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/clock.h"

namespace rekindle::daemon {
namespace {

// As many are remembered, and as many of them named.
constexpr size_t kMostKnown = 64, kMostNamed = 3;

std::string AddressOf(int connection) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  if (::getpeername(connection, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "";
  absl::string_view name = host;
  absl::ConsumePrefix(&name, "::ffff:");  // one of IPv4, to a socket of both
  return absl::StrContains(name, ':') ? absl::StrCat("[", name, "]:", port) : absl::StrCat(name, ":", port);
}

// As OpenSSL says it.
absl::string_view CureOf(absl::string_view words) {
  if (absl::StrContains(words, " alert "))
    return " The other side does not accept our certificate: its --tls-ca is to vouch for --tls-cert here";
  if (absl::StrContains(words, "certificate verify failed") ||
      absl::StrContains(words, "did not return a certificate")) {
    return " A client needs a certificate that an authority in --tls-client-ca here has signed, and a node "
           "of a group one that our --tls-ca vouches for";
  }
  return "";
}

}  // namespace

void TlsRefusals::Begins(int connection) {
  const std::optional<OpenDescriptor> opened = OpenDescriptor::Of(connection);
  std::string address = AddressOf(connection);
  if (address.empty() || !opened) return;
  absl::MutexLock lock(&mutex_);
  if (known_.size() == kMostKnown) known_.pop_front();
  known_.push_back({*opened, std::move(address), SteadyNow()});
}

std::string TlsRefusals::Explain(absl::string_view words) {
  if (!absl::StrContains(words, "andshake failed")) return "";
  absl::MutexLock lock(&mutex_);
  // It is still open where gRPC says so.
  std::erase_if(known_, [&](const Known& one) {
    return SteadyNow() - one.began > patience_ || !one.connection.IsStillOpen();
  });
  std::vector<std::string> addresses;
  for (auto one = known_.rbegin(); one != known_.rend() && addresses.size() < kMostNamed; ++one)
    addresses.push_back(one->address);
  return absl::StrCat("a TLS handshake, with a client over TCP or with another node, failed: ", words,
                      addresses.empty()
                          ? ""
                          : absl::StrCat(" Connected in the last ", absl::FormatDuration(patience_), ": ",
                                         absl::StrJoin(addresses, ", "), "."),
                      CureOf(words));
}

}  // namespace rekindle::daemon
