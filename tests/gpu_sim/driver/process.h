// The simulated driver's state in one process, and what checkpoint calls do to it.
#pragma once

#include <atomic>
#include <csignal>
#include <mutex>
#include <vector>

#include "tests/gpu_sim/driver/device_memory.h"
#include "tests/gpu_sim/driver/door.h"
#include "tests/gpu_sim/driver/gate.h"
#include "tests/gpu_sim/driver/objects.h"
#include "tests/gpu_sim/driver/server_link.h"

namespace rekindle::gpu_sim {

struct Device {
  Gpu gpu;
  int contexts = 0;
};

class Process {
 public:
  static Process& Get();  // lives until the process is gone, since its threads do

  gpu::cuda::Result Init();
  // kNotInitialized: cuInit was not called, or only before the fork that made this process.
  gpu::cuda::Result Usable() const;

  // Runs one driver call of the job; waits first while the job is locked.
  template <typename Body>
  gpu::cuda::Result InCall(Body body) {
    const gpu::cuda::Result usable = Usable();
    if (usable != gpu::cuda::kSuccess) return usable;
    gate_.Enter();
    const gpu::cuda::Result result = body(*this);
    gate_.Leave();
    return result;
  }

  // A stream's, event's or context's synchronize: does not wait while the job is locked, and does not survive
  // that its memory is off the device. As seen with drivers 580 and 595.
  template <typename Body>
  gpu::cuda::Result InSynchronize(Body body) {
    if (!sync_crashes_) return InCall(body);
    const gpu::cuda::Result usable = Usable();
    if (usable != gpu::cuda::kSuccess) return usable;
    if (state_ == gpu::cuda::ProcessState::kCheckpointed) memory_.TouchOne();
    return body(*this);
  }

  // What the fault table says of a call of the job itself: kSuccess to go on. Delays and hangs happen here.
  gpu::cuda::Result Injected(Call call);

  // Device 0 .. of those that the job sees. Only in a call.
  std::vector<Device>& devices() { return devices_; }
  ServerLink& link() { return link_; }
  DeviceMemory& memory() { return memory_; }
  Registry<Context>& contexts() { return contexts_; }
  Registry<Stream>& streams() { return streams_; }
  Registry<Event>& events() { return events_; }
  Registry<Module>& modules() { return modules_; }

  gpu::cuda::Result CreateContext(int device, bool primary, Context** context);
  gpu::cuda::Result DestroyContext(Context* context);

 private:
  Process() = default;
  static void AfterForkInChild();
  void JoinMps();
  void KeepVisibleDevices();

  // In the restore thread.
  DoorReply Handle(const DoorRequest& request, int caller);
  DoorReply HandleInTurn(const DoorRequest& request, int caller);
  gpu::cuda::Result Lock(const DoorRequest& request, int caller);
  gpu::cuda::Result Checkpoint(const DoorRequest& request, int caller);
  gpu::cuda::Result Restore(const DoorRequest& request, int caller);
  gpu::cuda::Result Unlock(const DoorRequest& request, int caller);
  void Heed(const Settings& settings);
  gpu::cuda::Result MapDevices(const DoorRequest& request, const std::vector<Gpu>& gpus,
                               const Settings& settings, std::vector<Gpu>* chosen);
  bool UsesDevice(size_t device) const;
  bool UsesLost(const std::vector<Gpu>& gpus) const;  // one that is lost by now

  std::mutex init_mutex_;
  std::atomic<bool> initialized_{false};
  std::atomic<bool> forked_{false};
  int mps_ = -1;  // its connection
  Gate gate_;
  ServerLink link_;
  Settings settings_;
  DeviceMemory memory_;
  std::mutex contexts_mutex_;  // creating and destroying
  std::vector<Device> devices_;
  Registry<Context> contexts_;
  Registry<Stream> streams_;
  Registry<Event> events_;
  Registry<Module> modules_;
  std::atomic<gpu::cuda::ProcessState> state_{gpu::cuda::ProcessState::kRunning};  // the restore thread's
  std::atomic<bool> sync_crashes_{false};
  bool room_was_missing_ = false;  // the restore thread's
};

}  // namespace rekindle::gpu_sim
