#include "ckpt/upper_protocols.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/pidfd.h"
#include "base/socket_descriptors.h"
#include "base/unique_fd.h"

namespace rekindle::ckpt {
namespace {

// The kernel's names have up to 15 characters.
constexpr size_t kNameRoom = 32;

// Empty: none.
std::string UpperProtocolOf(int socket) {
  char name[kNameRoom] = {};
  socklen_t length = sizeof name;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_ULP, name, &length) != 0) return "";
  return std::string(name, ::strnlen(name, length));
}

}  // namespace

absl::Status CheckNoUpperProtocol(absl::Span<const DescriptorOfProcess> descriptors) {
  std::map<pid_t, UniqueFd> processes;
  for (const auto& [pid, fd] : descriptors) {
    UniqueFd& process = processes[pid];
    if (!process.valid()) {
      absl::StatusOr<UniqueFd> opened = OpenProcess(pid);
      if (!opened.ok()) continue;  // it has ended
      process = *std::move(opened);
    }
    const UniqueFd socket(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), fd, 0)));
    if (!socket.valid()) continue;
    const std::string protocol = UpperProtocolOf(socket.get());
    if (protocol.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "capturing process ", pid, ": its descriptor ", fd,
        " is a TCP connection on which the kernel speaks ",
        protocol == "tls" ? "TLS for it (kTLS)" : absl::StrCat("'", protocol, "' for it (TCP_ULP)"),
        ", which CRIU can't save: the connection would come back without it",
        protocol == "tls"
            ? ", in plain text; have the program encrypt itself (nginx: no 'ssl_conf_command Options KTLS'; "
              "OpenSSL: without SSL_OP_ENABLE_KTLS), or close the connection first"
            : "; close it first"));
  }
  return absl::OkStatus();
}

uint64_t CountTlsSessions(absl::string_view tls_stat) {
  // "TlsTxSw                         \t2"; "TlsCurrTxSw" and the like count those that there are.
  constexpr absl::string_view kBegun[] = {"TlsTxSw", "TlsRxSw", "TlsTxDevice", "TlsRxDevice"};
  uint64_t sessions = 0;
  for (const absl::string_view line : absl::StrSplit(tls_stat, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipWhitespace());
    uint64_t count = 0;
    if (words.size() == 2 && std::find(std::begin(kBegun), std::end(kBegun), words[0]) != std::end(kBegun) &&
        absl::SimpleAtoi(words[1], &count))
      sessions += count;
  }
  return sessions;
}

uint64_t TlsSessionsBegunBeside(pid_t process) {
  // A kernel without kTLS has no such file.
  return CountTlsSessions(ReadFile(absl::StrCat("/proc/", process, "/net/tls_stat")).value_or(""));
}

absl::Status CheckNoTlsSince(absl::Span<const pid_t> pids, uint64_t begun_before) {
  if (pids.empty() || TlsSessionsBegunBeside(pids[0]) == begun_before) return absl::OkStatus();
  std::vector<DescriptorOfProcess> sockets;
  for (const pid_t pid : pids) {
    ForEachSocketOf(pid, [&](int descriptor, uint64_t) {
      sockets.emplace_back(pid, descriptor);
      return true;
    });
  }
  return CheckNoUpperProtocol(sockets);
}

}  // namespace rekindle::ckpt
