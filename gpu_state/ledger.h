// What GPU state each process that Rekindle has touched should be in, kept in files so that whatever starts
// after a crash can bring it there, and that parked jobs are known as such. One file a process in a folder of
// the runtime directory; it goes with a reboot, as the processes do. Where PID namespaces share the folder (a
// container's with the machine's), each has files of its own there, and leaves those of the others alone: it
// can't tell whether their processes live.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "gpu_state/device_areas.h"
#include "gpu_state/gpu_device.h"

namespace rekindle::gpu {

struct LedgerEntry {
  enum class Goal {
    kRunning,  // being moved just now; if its mover dies, it belongs back on the device
    kParked,   // in host memory on purpose
  };
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // names the process together with the PID
  Goal goal = Goal::kRunning;
  pid_t job = 0;             // root of its job
  std::string mover;         // name of the lock file of who moves it, in the same folder; empty: nobody
  std::vector<GpuUse> uses;  // device memory it had, or has when it is resumed
  // Where these are mapped in the process. While they are out only this tells it (DeviceAreasOf).
  std::vector<DeviceArea> areas;
  std::string driver;       // NVIDIA's that it was moved out with, "580.95.05"; empty: not known
  bool unplaced = false;    // on which GPUs it was nobody knows: `uses` says nothing
  bool keeps_room = false;  // what of that is off the device comes back there: nobody else takes its room
  std::string why;          // for people: "parked by uid 0", "no room on its GPU after a checkpoint"
};

// Thread-safe; several processes may use one folder.
class Ledger {
 public:
  explicit Ledger(std::string directory);

  const std::string& directory() const { return directory_; }
  // The file of a process's entry.
  std::string PathOf(pid_t pid) const;

  // Writes or replaces the entries of these processes.
  absl::Status Put(absl::Span<const LedgerEntry> entries);
  void Remove(absl::Span<const pid_t> pids);
  // Those of living processes of our PID namespace; entries of its dead are removed. FailedPrecondition: one
  // is of a newer version; DataLoss: damaged.
  absl::StatusOr<std::vector<LedgerEntry>> List();
  // Those of these processes alone, which costs no look at the others.
  absl::StatusOr<std::vector<LedgerEntry>> Of(absl::Span<const pid_t> pids);

  // These entries as text, for whom keeps what the folder may lose, and those of living processes in such a
  // text; what makes no sense is left out.
  static std::string Note(absl::Span<const LedgerEntry> entries);
  static std::vector<LedgerEntry> FromNote(absl::string_view note);

  // Makes and locks a file that says for as long as it is locked that we, or a helper that has its descriptor
  // too, live: entries' `mover`. The same one at every call, made anew where a cleaner has removed it.
  struct Mover {
    std::string name;
    int descriptor = -1;  // owned by the ledger
  };
  absl::StatusOr<Mover> Enlist() ABSL_LOCKS_EXCLUDED(mutex_);
  // For a helper that outlives the process which it has this descriptor of a Mover of: the file is there from
  // now on, and locked, whatever has removed it meanwhile. Its name: the `mover` of entries.
  absl::StatusOr<std::string> Inherit(int descriptor) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nobody else, here or elsewhere, gets the same name as long as what this gives lives. Unavailable:
  // somebody has it.
  class Turn {
   public:
    Turn(Turn&& other) noexcept : path_(std::exchange(other.path_, "")), lock_(std::move(other.lock_)) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn();

   private:
    friend class Ledger;
    Turn(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
    std::string path_;
    UniqueFd lock_;
  };
  absl::StatusOr<Turn> TakeTurn(const std::string& name);
  // The turn of a process, as our PID namespace names it.
  absl::StatusOr<Turn> TakeTurn(pid_t pid);

  // Somebody, who lives, moves it.
  bool IsBeingMoved(const LedgerEntry& entry) const;
  // Removes the lock files of the dead.
  void RemoveFreeLocks();

 private:
  std::string PathOf(const std::string& name) const;
  // Where an older Rekindle has put the entry, or one of the machine's first namespace.
  std::string SharedPathOf(pid_t pid) const;
  // Adds what this file says to `entries`, unless it has gone or its process has. `ours`: it is of our PID
  // namespace, and goes with its process; else it may be of another one, and is passed over where no process
  // of ours is meant.
  static absl::Status AddEntry(const std::string& path, bool ours, std::vector<LedgerEntry>* entries);
  // Of this process, at the shared place.
  void RemoveShared(pid_t pid);

  const std::string directory_;
  const std::string entry_prefix_;  // of the names of our PID namespace's entries
  absl::Mutex mutex_;
  std::string mover_name_ ABSL_GUARDED_BY(mutex_);
  UniqueFd mover_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::gpu
