// A GPU's name for ever, its UUID, and what is known of it and of who uses it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_state/cuda_abi.h"

namespace rekindle::gpu {

// "GPU-8a6c2f1e-…", as nvidia-smi writes it.
std::string FormatUuid(const cuda::Uuid& uuid);
// With or without "GPU-". InvalidArgument when it is none.
absl::StatusOr<cuda::Uuid> ParseUuid(absl::string_view text);

struct GpuDevice {
  std::string uuid;   // "GPU-…"
  std::string model;  // "NVIDIA H200"
  uint64_t total_bytes = 0, free_bytes = 0;
  bool mig = false;  // split into instances: CUDA's checkpoints can't be taken of them
  // The management library does not tell everything of each: a GPU that has fallen off the bus tells nothing.
  bool memory_known = true;  // else the two above say nothing
  bool uses_known = true;    // else who uses it is not among the uses
  bool lost = false;         // it does not answer: nothing can be moved onto it
  std::string trouble = "";  // why something is not known, for people
};

// Device memory that one process has on one GPU.
struct GpuUse {
  pid_t pid = 0;
  std::string uuid;
  std::optional<uint64_t> bytes;  // nothing: the driver does not tell
};

// A machine's GPUs and who uses them.
struct DeviceView {
  std::vector<GpuDevice> devices;
  std::vector<GpuUse> uses;
  // GPUs of which not even the UUID can be asked, so that they are none of the devices: one phrase each.
  std::vector<std::string> unreachable = {};
};

}  // namespace rekindle::gpu
