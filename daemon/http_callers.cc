#include "daemon/http_callers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "daemon/peer_credentials.h"
#include "daemon/socket_owner.h"

namespace rekindle::daemon {

absl::StatusOr<Caller> CallerOfHttp(const functions::Peer& peer, KnownGroups& groups) {
  if (peer.unix_socket) return ReadPeerCredentials(peer.socket);
  RK_ASSIGN_OR_RETURN(const uid_t uid, OwnerOfOtherEnd(peer.socket));
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = uid;
  caller.gid = static_cast<gid_t>(-1);
  if (std::optional<UserGroups> user = groups.Of(uid)) {
    caller.gid = user->group;
    caller.groups = std::move(user->groups);
  }
  return caller;
}

std::string ShareOfHttp(const functions::Peer& peer, const absl::StatusOr<std::any>& caller) {
  if (caller.ok()) {
    const uid_t uid = std::any_cast<const Caller&>(*caller).uid;
    return uid == 0 ? "" : absl::StrCat("user ", uid);
  }
  const std::string& address = peer.remote_address;
  return address.empty() ? "somebody unknown" : address.substr(0, address.rfind(':'));
}

}  // namespace rekindle::daemon
