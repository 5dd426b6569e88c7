// Sandboxes: new PID, mount, IPC, UTS and, if asked, network namespaces with an init of ours
// (sandbox_init.h), in which CRIU restores an image with its own PIDs, so that any number of copies of one
// image run side by side.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/packet_socket.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"
#include "restore/own_temporary.h"

namespace rekindle::restore {

enum class Network {
  kHost,  // the caller's
  kNone,  // nothing, not even a loopback that is up
  kOwn,   // a loopback of its own
};

// How the job in a sandbox ended.
struct SandboxEnd {
  ExitState exit;
  std::string why;       // empty: by itself; else who ended it
  bool damaged = false;  // because its image is damaged, as `why` says
  bool refused = false;  // the disk said so, which it may not do the next time
};
// Of one that is damaged: DataLoss, as store::IsRefusedByDisk where that is all that is known.
absl::Status DamageOf(const SandboxEnd& end, absl::string_view what);

// One sandbox. Owned by one thread at a time. Destroying it ends everything in it, unless it was released.
class Sandbox {
 public:
  Sandbox() = default;  // none
  Sandbox(Sandbox&&) = default;
  Sandbox& operator=(Sandbox&& other) noexcept;
  ~Sandbox();

  const std::string& id() const { return id_; }
  // Its own folder: CRIU's work directory, the lazy-pages socket, how it ended.
  const std::string& directory() const { return directory_; }
  pid_t init_pid() const { return init_pid_; }  // as seen by us

  struct Criu {
    UniqueFd rpc;    // its RPC socket
    UniqueFd pidfd;  // readable when it has ended
  };
  // Starts `criu swrk`. `descriptors`: (ours, number in CRIU); `groups`: open cgroup.procs files that it, and
  // so what it restores, is put into.
  absl::StatusOr<Criu> StartCriu(const std::vector<std::string>& argv,
                                 const std::vector<std::pair<int, int>>& descriptors,
                                 const std::vector<int>& groups);
  // A /tmp or /dev/shm of its own that it has already gets another size; what is read-only already stays so.
  absl::Status Set(const std::string& host_name,
                   const std::vector<std::pair<std::string, std::string>>& binds,
                   const OwnTemporary& temporary);
  // From now on this folder, where it is there, is an empty one.
  absl::Status Hide(const std::string& folder);
  // Descriptors of its processes, by their PIDs in it.
  absl::StatusOr<std::vector<UniqueFd>> OpenProcesses(const std::vector<pid_t>& pids);
  // `root` (PID in it) is the job: with it the sandbox ends, and with this process (LetStay).
  absl::Status Watch(pid_t root);

  // The next process in it gets this PID.
  absl::Status SetNextPid(pid_t pid);
  int init_pidfd() const { return init_.get(); }
  // Another socket on which its init takes requests, for MakeInside after Release.
  absl::StatusOr<UniqueFd> AnotherControl();

  // For the pager: what it sends here is held until the last process of the sandbox has ended.
  UniqueFd TakeKeeper() { return std::move(keeper_); }

  // How it ended, if it says so within `patience`; else, and where it goes on, SandboxEnd().
  SandboxEnd EndWithin(absl::Duration patience);

  // The sandbox goes on without this object; the socket tells how it ended (ReadEnd). Its folder is then the
  // caller's to remove.
  struct Released {
    UniqueFd control;  // readable when it has ended
    UniqueFd init;     // pidfd of the init
    pid_t init_pid = 0;
    std::string id, directory;
    bool until_stay = false;  // ends with this process, until LetStay
  };
  Released Release();

 private:
  using Asker =
      std::function<absl::StatusOr<Packet>(const std::string& request, const std::vector<int>& descriptors)>;
  friend class SandboxFactory;
  friend absl::StatusOr<Sandbox> MakeInside(int control, const std::string& directory, Network network);
  static absl::StatusOr<Sandbox> Make(const Asker& ask, const std::string& directory, const std::string& kdat,
                                      Network network);
  // Asks the init. The answer's JSON text, checked to be no error.
  absl::StatusOr<Packet> Ask(const std::string& request, const std::vector<int>& descriptors = {});
  void End();

  std::string id_, directory_;
  std::string known_;  // the file with what CRIU knows of this kernel; empty: it finds out by itself
  pid_t init_pid_ = 0;
  bool until_stay_ = false;
  UniqueFd control_, keeper_, init_;
};

// Of a released sandbox, which others can find by now: it no longer ends with this process. `control`: of that.
void LetStay(int control);

// Ends a released sandbox after all, and removes its folder.
void EndSandbox(const UniqueFd& init, const std::string& directory);

// Waits for the end of a released sandbox. With `directory` it knows what the init wrote down when nobody
// listened.
SandboxEnd ReadEnd(int control, const std::string& directory);
// The same where it may go on: SandboxEnd() when it has not ended within `patience`.
SandboxEnd ReadEndWithin(int control, const std::string& directory, absl::Duration patience);

// Makes a sandbox inside of another, by a socket of that one's AnotherControl(). One at a time. `directory`:
// where its folder goes.
absl::StatusOr<Sandbox> MakeInside(int control, const std::string& directory, Network network);

// Thread-safe.
class SandboxFactory {
 public:
  // `directory`: where the sandboxes' folders go; short, because of sockets. `criu`: its command, to be asked
  // once what it knows of this kernel; the answer is kept in `directory`.
  static absl::StatusOr<std::unique_ptr<SandboxFactory>> Start(const std::string& directory,
                                                               const std::vector<std::string>& criu);
  // Ready for CRIU.
  absl::StatusOr<Sandbox> Make(Network network) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  SandboxFactory() = default;
  absl::StatusOr<Packet> Ask(const std::string& request, const std::vector<int>& descriptors)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void LearnKernel(const std::vector<std::string>& criu);
  absl::Status StartProgram() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Folders of sandboxes that ended when whoever had started them was gone.
  void RemoveLeftovers();

  std::string directory_, kdat_;
  absl::Mutex mutex_;
  UniqueFd socket_ ABSL_GUARDED_BY(mutex_);
  Subprocess process_ ABSL_GUARDED_BY(mutex_);
};

// A process's PID as we see it.
absl::StatusOr<pid_t> PidOf(int pidfd);

}  // namespace rekindle::restore
