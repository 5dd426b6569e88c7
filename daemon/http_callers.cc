#include "daemon/http_callers.h"

#include <grp.h>
#include <pwd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "daemon/peer_credentials.h"
#include "daemon/socket_owner.h"

namespace rekindle::daemon {

absl::StatusOr<Caller> CallerOfHttp(const functions::Peer& peer) {
  if (peer.unix_socket) return ReadPeerCredentials(peer.socket);
  RK_ASSIGN_OR_RETURN(const uid_t uid, OwnerOfOtherEnd(peer.socket));
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = uid;
  caller.gid = static_cast<gid_t>(-1);
  passwd entry{}, *found = nullptr;
  std::vector<char> buffer(16 << 10);
  if (::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) {
    caller.gid = found->pw_gid;
    int count = 64;
    caller.groups.resize(static_cast<size_t>(count));
    if (::getgrouplist(found->pw_name, found->pw_gid, caller.groups.data(), &count) < 0) count = 0;
    caller.groups.resize(static_cast<size_t>(count));
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
