#include "base/host_port.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rekindle {
namespace {

constexpr int kLargestPort = 65535;

bool IsHost(absl::string_view host, AddressUse use) {
  if (absl::StartsWith(host, "[")) return host.size() > 2 && host.find(']') == host.size() - 1;
  if (host.empty()) return use == AddressUse::kListen;
  return std::none_of(host.begin(), host.end(),
                      [](unsigned char c) { return c == ':' || c == '/' || absl::ascii_isspace(c); });
}

bool IsPort(absl::string_view port, AddressUse use) {
  int number = 0;
  if (port.empty() || !std::all_of(port.begin(), port.end(), absl::ascii_isdigit)) return false;
  return absl::SimpleAtoi(port, &number) && number <= kLargestPort &&
         number >= (use == AddressUse::kListen ? 0 : 1);
}

}  // namespace

absl::Status CheckHostPort(absl::string_view address, AddressUse use) {
  const absl::string_view written = address;
  if (use == AddressUse::kConnect) absl::ConsumePrefix(&address, "dns:///");  // as gRPC writes it
  const size_t colon = address.rfind(':');
  if (colon != absl::string_view::npos && IsHost(address.substr(0, colon), use) &&
      IsPort(address.substr(colon + 1), use)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("'", written,
                                                 "' is no address: write HOST:PORT, with a port from 1 to ",
                                                 kLargestPort, ", and an address of IPv6 as [ADDRESS]:PORT"));
}

HostPort SplitHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  absl::string_view host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {std::string(host), std::string(address.substr(colon + 1))};
}

}  // namespace rekindle
