// What Rekindle and its GPU helper say to each other: one JSON object a packet over a SOCK_SEQPACKET socket,
// so that a helper can be talked to by hand. Requests are numbered; answers come in any order, the packets of
// one in a row.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_state/gpu_device.h"
#include "gpu_state/process_state.h"

namespace rekindle::gpu {

inline constexpr int kHelperSocket = 3;                // the helper's descriptor
inline constexpr int kHelperLock = 4;                  // and that of its master's lock, if it has one
inline constexpr char kHelperName[] = "rekindle-gpu";  // its process's, which uses CUDA like a job's
inline constexpr size_t kMaxPacketBytes = size_t{128} << 10;

struct HelperRequest {
  enum class What {
    kHello,    // initialises the driver
    kState,    // of `pid`
    kThread,   // its restore thread
    kAct,      // `action` on `pid`
    kSettle,   // `pid` stays as it is when we die
    kDevices,  // and who uses them
  };
  uint64_t id = 0;
  What what = What::kHello;
  pid_t pid = 0;
  Action action = Action::kLock;
  int64_t timeout_ms = 0;                                  // of kLock
  std::vector<std::pair<std::string, std::string>> pairs;  // of kRestore: old and new UUID of each GPU

  std::string Encode() const;
  static absl::StatusOr<HelperRequest> Decode(absl::string_view packet);
};

struct HelperAnswer {
  uint64_t id = 0;
  absl::Status status;
  int driver_version = 0;             // kHello
  std::string driver, means;          // kHello: "580.95.05" or empty; "libcuda.so.1"
  std::optional<ProcessState> state;  // kState
  pid_t thread = 0;                   // kThread
  DeviceView view;                    // kDevices
  bool more = false;                  // another packet goes on with it: its uses are to be added

  std::string Encode() const;
  // What does not fit into one packet goes into several.
  std::vector<std::string> Packets() const;
  static absl::StatusOr<HelperAnswer> Decode(absl::string_view packet);
};

}  // namespace rekindle::gpu
