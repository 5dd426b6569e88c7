#include "criu/connection_lock.h"

#include <arpa/inet.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/network_namespace.h"
#include "base/opened_files.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rekindle::criu {
namespace {

constexpr uint32_t kSequence = 1;

// One message of a batch to nf_tables.
void AppendMessage(uint16_t type, uint16_t flags, uint8_t family, uint16_t resource,
                   const std::string& attributes, std::string* batch) {
  nlmsghdr header{};
  nfgenmsg general{};
  header.nlmsg_len = static_cast<uint32_t>(NLMSG_LENGTH(sizeof general) + attributes.size());
  header.nlmsg_type = type;
  header.nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
  header.nlmsg_seq = kSequence;
  general.nfgen_family = family;
  general.version = NFNETLINK_V0;
  general.res_id = htons(resource);
  batch->append(reinterpret_cast<const char*>(&header), sizeof header);
  batch->append(reinterpret_cast<const char*>(&general), sizeof general);
  batch->append(attributes);
  batch->append(NLMSG_ALIGN(attributes.size()) - attributes.size(), '\0');
}

// 0, or what the kernel says; ENOENT: there is no such table.
int AskForRemoval(const std::string& table) {
  nlattr name{static_cast<uint16_t>(sizeof(nlattr) + table.size() + 1), NFTA_TABLE_NAME};
  const std::string attributes =
      std::string(reinterpret_cast<const char*>(&name), sizeof name) + table + std::string(1, '\0');
  std::string batch;
  AppendMessage(NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES, "", &batch);
  AppendMessage(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_DELTABLE, NLM_F_ACK, NFPROTO_INET, 0, attributes, &batch);
  AppendMessage(NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES, "", &batch);

  const UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER));
  // A kernel without netfilter has no tables.
  if (!socket.valid()) return errno == EPROTONOSUPPORT ? ENOENT : errno;
  if (::send(socket.get(), batch.data(), batch.size(), 0) < 0) return errno;
  // The kernel has answered when send() returns.
  char answer[4096];
  const ssize_t size = ::recv(socket.get(), answer, sizeof answer, MSG_DONTWAIT);
  nlmsghdr header;
  if (size < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(int32_t)))) return size < 0 ? errno : EPROTO;
  memcpy(&header, answer, sizeof header);
  if (header.nlmsg_type != NLMSG_ERROR) return EPROTO;
  int32_t error = 0;
  memcpy(&error, answer + NLMSG_HDRLEN, sizeof error);
  // Without nf_tables there is none either.
  return error == -EOPNOTSUPP ? ENOENT : -error;
}

absl::Status RemoveTable(const std::string& run) {
  // CRIU 4.2 has room for so much of the name (nftables_get_table).
  constexpr size_t kShortenedTo = 21;
  std::string table = "CRIU-" + run.substr(0, kShortenedTo);
  int error = AskForRemoval(table);
  if (error == ENOENT) {
    table = "CRIU-" + run;
    error = AskForRemoval(table);
  }
  if (error == 0 || error == ENOENT) return absl::OkStatus();
  return ErrnoStatus(error,
                     absl::StrCat("removing the firewall's table with which CRIU held back the packets "
                                  "of the job's peers (`nft delete table inet ",
                                  table, "` in the job's network namespace does it)"));
}

absl::Status TakeOutOfRepair(pid_t process) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  if (!pidfd.valid()) return absl::OkStatus();
  absl::Status first;
  const auto descriptors = ForeignDescriptorsOf(process);
  for (const ForeignDescriptor& descriptor : descriptors.value_or(std::vector<ForeignDescriptor>())) {
    struct stat info;
    if (::stat(descriptor.link().c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) continue;
    const int number = descriptor.number;
    const UniqueFd socket(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd.get(), number, 0)));
    if (!socket.valid()) {
      if (errno != EBADF && errno != ESRCH)
        first.Update(ErrnoStatus(errno, absl::StrCat("taking socket ", number, " of process ", process)));
      continue;
    }
    int repair = 0;
    socklen_t size = sizeof repair;
    // Of sockets that aren't TCP's this means nothing.
    if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_REPAIR, &repair, &size) != 0 || repair != 1) continue;
    repair = 0;
    if (::setsockopt(socket.get(), IPPROTO_TCP, TCP_REPAIR, &repair, sizeof repair) != 0) {
      first.Update(ErrnoStatus(
          errno, absl::StrCat("taking the TCP connection at descriptor ", number, " of process ", process,
                              " out of repair, in which CRIU left it (the process can't use it any more)")));
    }
  }
  return first;
}

}  // namespace

absl::Status RemoveConnectionLock(const std::string& run) {
  constexpr size_t kUuidLength = 36;
  const bool is_uuid = run.size() == kUuidLength && std::all_of(run.begin(), run.end(), [](char c) {
                         return absl::ascii_isxdigit(c) || c == '-';
                       });
  return is_uuid ? RemoveTable(run) : absl::OkStatus();
}

absl::Status UnlockConnections(const std::string& run, const std::vector<pid_t>& processes) {
  absl::Status status;
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const pid_t process : processes) {
    struct stat network;
    if (run.empty() || ::stat(absl::StrCat("/proc/", process, "/ns/net").c_str(), &network) != 0) continue;
    if (!seen.emplace(network.st_dev, network.st_ino).second) continue;
    const absl::Status removed = InNetworkOf(process, [&run] { return RemoveTable(run); });
    if (!absl::IsNotFound(removed)) status.Update(removed);
  }
  // After the table is gone: a socket that leaves repair tells its peer at once.
  for (const pid_t process : processes) status.Update(TakeOutOfRepair(process));
  return status;
}

}  // namespace rekindle::criu
