// Protocols that the kernel speaks upon a TCP connection for a program (TCP_ULP), above all TLS (kTLS). CRIU
// does not know of them: the connection would come back without, and what the program sends from then on go
// out in plain text. So such a job is not captured.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace rekindle::ckpt {

// A process, and a descriptor of it.
using DescriptorOfProcess = std::pair<pid_t, int>;

// FailedPrecondition: one of these, of which those that are no TCP sockets are passed over, has such a
// protocol; says which. What can't be looked at is passed over. Thread-safe.
absl::Status CheckNoUpperProtocol(absl::Span<const DescriptorOfProcess> descriptors);

// How many kTLS sessions have ever begun by the text of /proc/PID/net/tls_stat; and in the network namespace
// of this process.
uint64_t CountTlsSessions(absl::string_view tls_stat);
uint64_t TlsSessionsBegunBeside(pid_t process);

// The same of all sockets of a job that stands still, for what has begun since it was looked at, before which
// so many had. Costs next to nothing where none has.
absl::Status CheckNoTlsSince(absl::Span<const pid_t> pids, uint64_t begun_before);

}  // namespace rekindle::ckpt
