// Addresses as people write them: "HOST:PORT".
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rekindle {

enum class AddressUse {
  kConnect,
  kListen,  // HOST may be left out, for all addresses, and port 0 lets the kernel choose
};

// InvalidArgument: `address` is none. An address of IPv6 stands in brackets: its own colons would be taken
// for that of the port. Libraries take a port that is too large modulo 65536, and a default one for what has
// none.
absl::Status CheckHostPort(absl::string_view address, AddressUse use);

// The two of an address that CheckHostPort lets pass, as getaddrinfo() takes them: HOST without brackets.
struct HostPort {
  std::string host, port;
};
HostPort SplitHostPort(absl::string_view address);

}  // namespace rekindle
