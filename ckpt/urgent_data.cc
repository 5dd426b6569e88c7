#include "ckpt/urgent_data.h"

#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/pidfd.h"
#include "base/socket_descriptors.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rekindle::ckpt {
namespace {

struct Unread {
  pid_t pid = 0;
  int descriptor = -1;
  uint64_t before_mark = 0;  // bytes: up to the place of urgent data, where there is such a place
};

// By inode.
using UnreadData = absl::flat_hash_map<uint64_t, Unread>;

bool IsTcpWithUnreadData(int socket) {
  int protocol = 0;
  socklen_t length = sizeof protocol;
  if (::getsockopt(socket, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) != 0 || protocol != IPPROTO_TCP)
    return false;
  // Kept memory of any kind: the kernel tells of it without looking for a mark.
  uint32_t memory[SK_MEMINFO_VARS] = {};
  length = sizeof memory;
  return ::getsockopt(socket, SOL_SOCKET, SO_MEMINFO, memory, &length) == 0 &&
         memory[SK_MEMINFO_RMEM_ALLOC] != 0;
}

UniqueFd SocketOf(const UniqueFd& process, int descriptor) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), descriptor, 0)));
}

// Of what it has to read. UINT64_MAX: it can't be looked at.
uint64_t BytesBeforeMark(const UniqueFd& socket) {
  int bytes = 0;
  return socket.valid() && ::ioctl(socket.get(), SIOCINQ, &bytes) == 0 ? static_cast<uint64_t>(bytes)
                                                                       : UINT64_MAX;
}

UnreadData UnreadOf(pid_t pid) {
  UnreadData unread;
  const absl::StatusOr<UniqueFd> process = OpenProcess(pid);
  if (!process.ok()) return unread;  // it has ended
  ForEachSocketOf(pid, [&](int descriptor, uint64_t inode) {
    const UniqueFd socket = SocketOf(*process, descriptor);
    if (socket.valid() && IsTcpWithUnreadData(socket.get()))
      unread[inode] = {pid, descriptor, BytesBeforeMark(socket)};
    return true;
  });
  return unread;
}

// The other side has sent its end, which the kernel's tables count as a byte.
bool HasEnd(absl::string_view state) { return state == "08" || state == "09" || state == "0B"; }

// `pid`: whose network they are of.
absl::Status CheckAgainstTables(pid_t pid, const UnreadData& unread) {
  for (const char* table : {"tcp", "tcp6"}) {
    const auto content = ReadFile(absl::StrCat("/proc/", pid, "/net/", table));
    if (!content.ok()) continue;
    for (const absl::string_view line : absl::StrSplit(*content, '\n')) {
      // Number, addresses, state, bytes to send:bytes to read, …
      const std::vector<absl::string_view> f = absl::StrSplit(line, ' ', absl::SkipWhitespace());
      uint64_t inode = 0, bytes = 0;
      if (f.size() < 10 || !absl::SimpleAtoi(f[9], &inode)) continue;
      const auto found = unread.find(inode);
      const std::pair<absl::string_view, absl::string_view> queues = absl::StrSplit(f[4], ':');
      if (found == unread.end() || !absl::SimpleHexAtoi(queues.second, &bytes)) continue;
      if (HasEnd(f[3]) && bytes > 0) --bytes;
      if (bytes <= found->second.before_mark) continue;
      // More may have come since that was counted, up to the look at the table: counted after that it is less
      // only at a mark.
      const absl::StatusOr<UniqueFd> process = OpenProcess(found->second.pid);
      if (!process.ok()) continue;
      const uint64_t before_mark = BytesBeforeMark(SocketOf(*process, found->second.descriptor));
      if (bytes <= before_mark) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "capturing process ", found->second.pid, ": its descriptor ", found->second.descriptor,
          " is a TCP connection with urgent data (MSG_OOB) among what the job has not read yet, which CRIU "
          "can't save: the last ",
          bytes - before_mark,
          " bytes would be lost. The job goes on; try again when it has read past the urgent data, or let "
          "the other side send none"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckNoUnreadUrgentData(absl::Span<const pid_t> pids) {
  // By network namespace: the kernel takes its time for each look at a table.
  std::map<std::string, UnreadData> unread;
  for (const pid_t pid : pids) {
    UnreadData its = UnreadOf(pid);
    if (its.empty()) continue;
    unread[ReadLink(absl::StrCat("/proc/", pid, "/ns/net")).value_or(absl::StrCat(pid))].merge(its);
  }
  for (const auto& [network, all] : unread)
    RK_RETURN_IF_ERROR(CheckAgainstTables(all.begin()->second.pid, all));
  return absl::OkStatus();
}

}  // namespace rekindle::ckpt
