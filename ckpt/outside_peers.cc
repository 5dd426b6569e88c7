#include "ckpt/outside_peers.h"

#include <linux/unix_diag.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/network_namespace.h"
#include "base/process_stat.h"
#include "base/sock_diag.h"
#include "base/socket_descriptors.h"
#include "base/unix_socket.h"
#include "base/utf8.h"

namespace rekindle::ckpt {
namespace {

constexpr size_t kMostPeersTold = 4;
// torch_shm_manager, as the kernel cuts it. It is started by the first worker that shares a tensor, and stays
// when that one has gone.
constexpr absl::string_view kTorchManager = "torch_shm_manag";

struct Holder {
  pid_t pid = 0;
  int fd = -1;
};

struct UnixEnd {
  std::string name;
  uint32_t peer = 0;  // its inode; 0: none
};

// By inode; `wanted` ones alone, where it is not null. The first who is seen to have it.
std::map<uint32_t, Holder> HoldersOf(const std::vector<pid_t>& pids,
                                     const std::map<uint32_t, Holder>* wanted) {
  std::map<uint32_t, Holder> holders;
  for (const pid_t pid : pids) {
    ForEachSocketOf(pid, [&](int descriptor, uint64_t socket) {
      const auto inode = static_cast<uint32_t>(socket);
      if (wanted == nullptr || wanted->contains(inode)) holders.emplace(inode, Holder{pid, descriptor});
      return true;
    });
  }
  return holders;
}

std::map<uint32_t, UnixEnd> UnixEndsOf(pid_t process) {
  unix_diag_req request{};
  request.sdiag_family = AF_UNIX;
  request.udiag_states = UINT32_MAX;
  request.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_PEER;
  std::map<uint32_t, UnixEnd> ends;
  const auto add = [&ends](absl::string_view bytes) {
    unix_diag_msg message;
    if (!TakeMessage(bytes, &message)) return;
    UnixEnd& end = ends[message.udiag_ino];
    bytes.remove_prefix(NLMSG_ALIGN(sizeof message));
    ForEachAttribute(bytes, [&end](int type, absl::string_view content) {
      if (type == UNIX_DIAG_NAME) end.name = std::string(content);
      if (type == UNIX_DIAG_PEER) (void)TakeMessage(content, &end.peer);
    });
  };
  UniqueFd socket;
  const absl::Status made = InNetworkOf(process, [&socket] {
    socket = MakeSockDiag();
    return absl::OkStatus();
  });
  if (made.ok() && socket.valid())
    DumpSockets(socket.get(), {reinterpret_cast<const char*>(&request), sizeof request}, add).IgnoreError();
  return ends;
}

// As it is written: an abstract one with an @ in place of its NUL, without the NUL behind a path.
std::string PlainName(std::string name) {
  const bool is_abstract = !name.empty() && name[0] == '\0';
  if (is_abstract) name[0] = '@';
  while (!is_abstract && !name.empty() && name.back() == '\0') name.pop_back();
  if (!is_abstract && absl::EndsWith(name, kStartingSuffix))
    name.resize(name.size() - kStartingSuffix.size());
  return ToUtf8(name);
}

std::string Process(pid_t pid) {
  const auto stat = ReadProcessStat(pid);
  return absl::StrCat("process ", pid, stat.ok() ? absl::StrCat(" (", ToUtf8(stat->name), ")") : "");
}

bool MayKnow(uid_t caller, pid_t pid) {
  struct stat info;
  return caller == 0 || (::stat(absl::StrCat("/proc/", pid).c_str(), &info) == 0 && info.st_uid == caller);
}

}  // namespace

std::string DescribeOutsidePeers(const std::vector<pid_t>& pids, uid_t caller) {
  if (pids.empty()) return "";
  const std::map<uint32_t, Holder> ours = HoldersOf(pids, nullptr);
  const std::map<uint32_t, UnixEnd> ends = UnixEndsOf(pids.front());
  std::map<uint32_t, Holder> leading_to;  // by the other end's inode
  for (const auto& [inode, holder] : ours) {
    const auto end = ends.find(inode);
    if (end != ends.end() && end->second.peer != 0 && !ours.contains(end->second.peer))
      leading_to.emplace(end->second.peer, holder);
  }
  if (leading_to.empty()) return "";
  const std::map<uint32_t, Holder> theirs = HoldersOf(ListProcesses(), &leading_to);
  std::string told;
  size_t lines = 0;
  bool has_torch_manager = false;
  for (const auto& [peer, holder] : leading_to) {
    if (lines++ == kMostPeersTold) {
      absl::StrAppend(&told, "\n  and ", leading_to.size() - kMostPeersTold, " more");
      break;
    }
    const auto other = theirs.find(peer);
    const bool may_know = other != theirs.end() && MayKnow(caller, other->second.pid);
    if (may_know) {
      const auto stat = ReadProcessStat(other->second.pid);
      has_torch_manager = has_torch_manager || (stat.ok() && stat->name == kTorchManager);
    }
    const auto end = ends.find(peer);
    const std::string name = end == ends.end() ? "" : PlainName(end->second.name);
    absl::StrAppend(&told, told.empty() ? "" : "\n", "  descriptor ", holder.fd, " of ", Process(holder.pid),
                    " leads to ",
                    other == theirs.end() ? "nobody who can be seen here"
                    : may_know            ? Process(other->second.pid)
                                          : "another user's process",
                    name.empty() ? "" : absl::StrCat(", which has it as ", name));
  }
  if (has_torch_manager) {
    absl::StrAppend(
        &told,
        "\n  torch_shm_manager serves PyTorch's sharing strategy 'file_system': "
        "torch.multiprocessing.set_sharing_strategy('file_descriptor'), Linux's own, does without "
        "it; it may need a higher 'ulimit -n'");
  }
  return told;
}

}  // namespace rekindle::ckpt
