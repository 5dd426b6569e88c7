// The time in which the job stands still: CRIU dumps it, Rekindle takes the images into memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "ckpt/address_range.h"
#include "ckpt/capture.h"
#include "ckpt/direct_copy.h"
#include "ckpt/staged_image.h"
#include "ckpt/staging_arena.h"
#include "criu/command_line.h"
#include "criu/image_files.h"
#include "criu/installation.h"
#include "criu/job_namespaces.h"

namespace rekindle::ckpt {

struct FrozenDump {
  StagedImage image;  // its pages lie in the arena
  criu::DumpStats stats;
  uint64_t bytes_past_criu = 0;  // of the memory, that we copied out of the job ourselves
  uint64_t bytes_ahead = 0;      // of these, that we had begun with before CRIU came to them
  uint64_t unchanged_bytes = 0;  // that nobody copied
  std::string command_line;
};

struct FrozenLook {
  // Called while the job stands still, when its memory has been copied, with CRIU's small image files by
  // name. What it takes the job waits for. Once for each try. Empty: nobody looks.
  std::function<void(const std::map<std::string, std::string>& files)> at;
  // For CRIU's small image files together; a dump with more fails. Contents of deleted files are among them.
  uint64_t most_file_bytes = std::numeric_limits<uint64_t>::max();
  // It takes the content of shared memory without a name, and CRIU does not (nameless_memory.c).
  bool takes_nameless_memory = false;
};

class GpuMove;

// Copying less than all.
struct FrozenTracking {
  UnchangedMemory unchanged;  // empty: all is copied
  // When given: called while the job stands still and all memory is in our hands, with what of it CRIU has
  // not seen, by our own PIDs.
  std::function<void(const TaskRanges&)> copied;
};

// Runs `criu dump --stream` with `options` (work and images folders must be set and exist) and receives
// everything. When it returns the job runs again, or is stopped if the options say so; after a failure it
// runs. `namespaces`: of the job, whose PID in the options is that in them. Setting `*cancel` (may be null)
// makes CRIU let go of the job soon. `progress` gets the bytes received so far. `gate`, when given, is asked
// once the memory is ours; the job stands until it has answered. With `ask_first` also before CRIU, which is
// ready by then, touches the job. `tracking`: see above; the image then needs the parent that it speaks of.
// `gpu`, when given, moves the job's device memory out for the dump, and may begin before CRIU does.
absl::StatusOr<FrozenDump> RunFrozenDump(const criu::Installation& criu, const criu::DumpOptions& options,
                                         const criu::JobNamespaces& namespaces, StagingArena* arena,
                                         const std::atomic<bool>* cancel,
                                         const std::function<void(uint64_t)>& progress,
                                         const FrozenLook& look = {}, CaptureGate* gate = nullptr,
                                         bool ask_first = false, const FrozenTracking& tracking = {},
                                         GpuMove* gpu = nullptr);

// The program that CRIU calls at the end of a dump, beside our own executable or in ../libexec/rekindle.
absl::StatusOr<std::string> FindDumpGate();

}  // namespace rekindle::ckpt
