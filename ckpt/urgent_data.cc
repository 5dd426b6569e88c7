#include "ckpt/urgent_data.h"

#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
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
#include "base/unique_fd.h"

namespace rekindle::ckpt {
namespace {

struct Unread {
  int descriptor = -1;
  uint64_t before_mark = 0;  // bytes: up to the place of urgent data, where there is such a place
};

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

// By inode.
absl::flat_hash_map<uint64_t, Unread> UnreadOf(pid_t pid) {
  absl::flat_hash_map<uint64_t, Unread> unread;
  const absl::StatusOr<UniqueFd> process = OpenProcess(pid);
  if (!process.ok()) return unread;  // it has ended
  ForEachSocketOf(pid, [&](int descriptor, uint64_t inode) {
    const UniqueFd socket(static_cast<int>(::syscall(SYS_pidfd_getfd, process->get(), descriptor, 0)));
    int bytes = 0;
    if (socket.valid() && IsTcpWithUnreadData(socket.get()) && ::ioctl(socket.get(), SIOCINQ, &bytes) == 0)
      unread[inode] = {descriptor, static_cast<uint64_t>(bytes)};
    return true;
  });
  return unread;
}

// The other side has sent its end, which the kernel's tables count as a byte.
bool HasEnd(absl::string_view state) { return state == "08" || state == "09" || state == "0B"; }

absl::Status CheckAgainstTables(pid_t pid, const absl::flat_hash_map<uint64_t, Unread>& unread) {
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
      const auto& [descriptor, before_mark] = found->second;
      if (bytes <= before_mark) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "capturing process ", pid, ": its descriptor ", descriptor,
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
  for (const pid_t pid : pids) {
    const absl::flat_hash_map<uint64_t, Unread> unread = UnreadOf(pid);
    if (unread.empty()) continue;
    if (absl::Status status = CheckAgainstTables(pid, unread); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace rekindle::ckpt
