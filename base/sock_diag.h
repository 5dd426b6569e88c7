// Asks the kernel for the sockets of a network namespace (NETLINK_SOCK_DIAG), without touching who has them.
#pragma once

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace rekindle {

// Asks about the network namespace that the calling thread is in; not valid: errno says why.
UniqueFd MakeSockDiag();

// `request`: what follows the netlink header. `type`: SOCK_DIAG_BY_FAMILY, SOCK_DESTROY.
absl::Status SendSockDiag(int socket, uint16_t type, uint16_t flags, absl::string_view request);

// `message`: what follows the netlink header of each answer. NotFound: the kernel tells nothing of such
// sockets (IPv6, tcp_diag, unix_diag).
absl::Status DumpSockets(int socket, absl::string_view request,
                         absl::FunctionRef<void(absl::string_view message)> each);

// Calls use(type, content) for each of a message's attributes.
template <typename Use>
void ForEachAttribute(absl::string_view attributes, const Use& use) {
  while (attributes.size() >= sizeof(rtattr)) {
    rtattr header;
    memcpy(&header, attributes.data(), sizeof header);
    if (header.rta_len < sizeof header || header.rta_len > attributes.size()) return;
    use(header.rta_type & NLA_TYPE_MASK, attributes.substr(sizeof header, header.rta_len - sizeof header));
    attributes.remove_prefix(std::min(attributes.size(), size_t{NLMSG_ALIGN(header.rta_len)}));
  }
}

// What `bytes` begin with; false: they are too few.
template <typename Message>
bool TakeMessage(absl::string_view bytes, Message* message) {
  if (bytes.size() < sizeof *message) return false;
  memcpy(message, bytes.data(), sizeof *message);
  return true;
}

}  // namespace rekindle
