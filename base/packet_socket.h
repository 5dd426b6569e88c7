// Packets with descriptors between processes of one machine (SOCK_SEQPACKET Unix sockets). All functions are
// thread-safe.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"

namespace rekindle {

inline constexpr size_t kMaxPacketBytes = size_t{192} << 10;
inline constexpr size_t kMaxPacketDescriptors = 250;  // the kernel allows 253

struct Packet {
  std::string bytes;
  std::vector<UniqueFd> descriptors;  // close-on-exec
};

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> PacketSocketPair();
// A socket that listens at `path`, which must not exist; the caller removes it.
absl::StatusOr<UniqueFd> ListenForPackets(const std::string& path);
// NotFound: there is no such socket, or nobody listens any more. DeadlineExceeded: so many wait for whoever
// listens that no more may, and `patience` was over.
absl::StatusOr<UniqueFd> ConnectForPackets(const std::string& path,
                                           absl::Duration patience = absl::InfiniteDuration());

// Unavailable when the other side has gone. With MSG_DONTWAIT in `flags` it does not wait for it to take what
// there is: ResourceExhausted.
absl::Status SendPacket(int socket, absl::string_view bytes, absl::Span<const int> descriptors = {},
                        int flags = 0);
// Waits for the next packet; nothing when the other side has gone. With MSG_DONTWAIT in `flags` it does not
// wait: Unavailable.
absl::StatusOr<std::optional<Packet>> ReceivePacket(int socket, int flags = 0);

}  // namespace rekindle
