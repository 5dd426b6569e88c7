// The time in which the job stands still: CRIU dumps it, Rekindle takes the images into memory.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "ckpt/job_namespaces.h"
#include "ckpt/staged_image.h"
#include "ckpt/staging_arena.h"
#include "criu/command_line.h"
#include "criu/image_files.h"
#include "criu/installation.h"

namespace rekindle::ckpt {

struct FrozenDump {
  StagedImage image;  // its pages lie in the arena
  criu::DumpStats stats;
  uint64_t bytes_past_criu = 0;  // of the memory, that we copied out of the job ourselves
  std::string command_line;
};

// Called while the job stands still, when its memory has been copied, with CRIU's small image files by name.
// What it takes the job waits for. Once for each try.
using FrozenLook = std::function<void(const std::map<std::string, std::string>& files)>;

// Runs `criu dump --stream` with `options` (work and images folders must be set and exist) and receives
// everything. When it returns the job runs again, or is stopped if the options say so; after a failure it
// runs. `namespaces`: of the job, whose PID in the options is that in them. Setting `*cancel` (may be null)
// makes CRIU let go of the job soon. `progress` gets the bytes received so far.
absl::StatusOr<FrozenDump> RunFrozenDump(const criu::Installation& criu, const criu::DumpOptions& options,
                                         const JobNamespaces& namespaces, StagingArena* arena,
                                         const std::atomic<bool>* cancel,
                                         const std::function<void(uint64_t)>& progress,
                                         const FrozenLook& look = {});

// The program that CRIU calls at the end of a dump, beside our own executable or in ../libexec/rekindle.
absl::StatusOr<std::string> FindDumpGate();

}  // namespace rekindle::ckpt
