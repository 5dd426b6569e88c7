// What lock, checkpoint, restore and unlock do in their target. All of it runs in the restore thread.
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "tests/gpu_sim/driver/process.h"

namespace rekindle::gpu_sim {
namespace {

using gpu::cuda::ProcessState;
using gpu::cuda::Result;

// Whoever called may be long dead.
void HangUntilCleared() {
  constexpr std::chrono::milliseconds kLookAgain(20);
  const auto times_cleared = []() -> std::optional<uint32_t> {
    Reply reply;
    if (!AskOnce({.op = Op::kHello}, "", &reply, nullptr)) return std::nullopt;
    return reply.settings.times_cleared;
  };
  const std::optional<uint32_t> before = times_cleared();
  for (std::optional<uint32_t> now = before; now && now == before; now = times_cleared())
    std::this_thread::sleep_for(kLookAgain);
}

// The point of no return of each step: where an injected fault strikes "during" it. What is not kSuccess is
// the step's result, after it undid what it had begun.
Result Midway(const DoorRequest& request, int caller) {
  const Fault& fault = request.fault;
  if (fault.time != FaultTime::kDuring) return gpu::cuda::kSuccess;
  switch (fault.kind) {
    case FaultKind::kFail:
      return fault.code;
    case FaultKind::kDelay:
      std::this_thread::sleep_for(std::chrono::milliseconds(fault.delay_ms));
      return gpu::cuda::kSuccess;
    case FaultKind::kHang: {
      if (fault.until_cleared != 0) {
        HangUntilCleared();
        return gpu::cuda::kUnknown;
      }
      pollfd hang_up{caller, 0, 0};
      while ((hang_up.revents & (POLLHUP | POLLERR)) == 0) poll(&hang_up, 1, -1);
      return fault.answers_late != 0 ? gpu::cuda::kSuccess : gpu::cuda::kUnknown;
    }
    case FaultKind::kKillTarget:
      kill(getpid(), SIGKILL);
      return gpu::cuda::kUnknown;
    default:
      return gpu::cuda::kSuccess;
  }
}

bool IsWrongSuccess(const DoorRequest& request) { return request.fault.kind == FaultKind::kWrongSuccess; }

// Of the processes of one `cuda-checkpoint --launch-job` one at a time may be moved.
class TurnOfJob {
 public:
  TurnOfJob() {
    const char* file = std::getenv("CUDA_CHECKPOINT_JOB_FILE");
    if (file == nullptr) return;
    descriptor_ = open(file, O_RDWR | O_CLOEXEC);
    ours_ = descriptor_ >= 0 && flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
  }
  ~TurnOfJob() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  TurnOfJob(const TurnOfJob&) = delete;
  TurnOfJob& operator=(const TurnOfJob&) = delete;
  bool ours() const { return ours_; }

 private:
  int descriptor_ = -1;
  bool ours_ = true;
};

// Of processes that work together: while one is locked or checkpointed, nothing is answered for the others.
int PeersLock() {
  static const int descriptor = [] {
    const char* file = std::getenv("REKINDLE_GPU_SIM_PEERS");
    return file == nullptr ? -1 : open(file, O_RDWR | O_CLOEXEC);
  }();
  return descriptor;
}

}  // namespace

DoorReply Process::Handle(const DoorRequest& request, int caller) {
  const int peers = PeersLock();
  if (peers >= 0 && state_ == ProcessState::kRunning) flock(peers, LOCK_EX);
  const DoorReply reply = HandleInTurn(request, caller);
  if (peers >= 0 && state_ == ProcessState::kRunning) flock(peers, LOCK_UN);
  return reply;
}

DoorReply Process::HandleInTurn(const DoorRequest& request, int caller) {
  if (request.fault.kind == FaultKind::kNoEffect) {
    return {gpu::cuda::kSuccess, static_cast<int>(state_.load())};
  }
  DoorReply reply{gpu::cuda::kInvalidValue, 0};
  const bool moves = request.call != Call::kState && request.call != Call::kRestoreThread;
  std::optional<TurnOfJob> turn;
  if (moves && !turn.emplace().ours()) return {gpu::cuda::kUnknown, 0};
  switch (request.call) {
    case Call::kState:
      reply = {Midway(request, caller), static_cast<int>(state_.load())};
      break;
    case Call::kRestoreThread:
      reply = {Midway(request, caller), gettid()};
      break;
    case Call::kLock:
      reply.result = Lock(request, caller);
      break;
    case Call::kCheckpoint:
      reply.result = Checkpoint(request, caller);
      break;
    case Call::kRestore:
      reply.result = Restore(request, caller);
      break;
    case Call::kUnlock:
      reply.result = Unlock(request, caller);
      break;
    default:
      break;
  }
  if (request.fault.then_failed != 0 && reply.result != gpu::cuda::kSuccess) state_ = ProcessState::kFailed;
  return reply;
}

Result Process::Lock(const DoorRequest& request, int caller) {
  if (state_ != ProcessState::kRunning) return gpu::cuda::kIllegalState;
  if (IsWrongSuccess(request)) {
    state_ = ProcessState::kLocked;
    return gpu::cuda::kSuccess;
  }
  const Deadline deadline = request.timeout_ms == 0 ? Deadline::max()
                                                    : std::chrono::steady_clock::now() +
                                                          std::chrono::milliseconds(request.timeout_ms);
  bool idle = gate_.Close(deadline);
  for (const auto& stream : streams_.All()) idle = idle && stream->queue.WaitUntilIdle(deadline);
  for (const auto& context : contexts_.All())
    idle = idle && context->null_stream->queue.WaitUntilIdle(deadline);
  const Result result = idle ? Midway(request, caller) : gpu::cuda::kNotReady;
  if (result != gpu::cuda::kSuccess) {
    gate_.Open();
    return result;
  }
  state_ = ProcessState::kLocked;
  return gpu::cuda::kSuccess;
}

Result Process::Checkpoint(const DoorRequest& request, int caller) {
  if (state_ != ProcessState::kLocked) return gpu::cuda::kIllegalState;
  if (memory_.HasShared() || (memory_.HasManaged() && settings_.managed_can_be_checkpointed == 0)) {
    return gpu::cuda::kNotSupported;
  }
  std::vector<Gpu> gpus;
  if (link_.Gpus(&gpus) != gpu::cuda::kSuccess || UsesLost(gpus)) return gpu::cuda::kUnknown;
  if (!IsWrongSuccess(request)) {
    Result result = memory_.SaveToHost(&link_, settings_.host_extra_bytes);
    if (result == gpu::cuda::kSuccess) result = Midway(request, caller);
    if (result != gpu::cuda::kSuccess) {
      memory_.DiscardSaved();
      return result;
    }
  }
  memory_.ReleaseDevices(settings_.leaves_holes != 0);
  link_.Close();
  state_ = ProcessState::kCheckpointed;
  return gpu::cuda::kSuccess;
}

bool Process::UsesLost(const std::vector<Gpu>& gpus) const {
  return std::any_of(gpus.begin(), gpus.end(), [this](const Gpu& gpu) {
    if (gpu.lost == 0) return false;
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i].gpu.uuid == gpu.uuid && UsesDevice(i)) return true;
    }
    return false;
  });
}

Result Process::MapDevices(const DoorRequest& request, const std::vector<Gpu>& gpus, const Settings& settings,
                           std::vector<Gpu>* chosen) {
  const auto* pairs = request.pairs;
  const auto* end = request.pairs + request.pair_count;
  if (request.pair_count > 0 && settings.driver_version < gpu::cuda::kFirstVersionWithGpuPairs) {
    return gpu::cuda::kInvalidValue;
  }
  for (const auto* pair = pairs; pair != end; ++pair) {
    const auto is_from = [&](const Device& device) { return device.gpu.uuid == pair->from; };
    if (std::none_of(devices_.begin(), devices_.end(), is_from)) return gpu::cuda::kInvalidValue;
    for (const auto* other = pairs; other != pair; ++other) {
      if (other->from == pair->from || other->to == pair->to) return gpu::cuda::kInvalidValue;
    }
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Gpu& old = devices_[i].gpu;
    const bool used = UsesDevice(i);
    const auto* pair = std::find_if(pairs, end, [&](const auto& each) { return each.from == old.uuid; });
    if (pair == end && request.pair_count > 0 && (used || settings.pairs_name_visible_gpus != 0)) {
      return gpu::cuda::kInvalidValue;
    }
    const gpu::cuda::Uuid& wanted = pair == end ? old.uuid : pair->to;
    const auto found =
        std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& each) { return each.uuid == wanted; });
    if (found == gpus.end()) {
      if (used || pair != end) return gpu::cuda::kInvalidValue;
      chosen->push_back(old);
      continue;
    }
    if (std::string(found->model) != old.model) return gpu::cuda::kInvalidValue;
    chosen->push_back(*found);
  }
  return gpu::cuda::kSuccess;
}

Result Process::Restore(const DoorRequest& request, int caller) {
  if (state_ != ProcessState::kCheckpointed) return gpu::cuda::kIllegalState;
  if (IsWrongSuccess(request)) {
    state_ = ProcessState::kLocked;
    return gpu::cuda::kSuccess;
  }
  if (room_was_missing_) return gpu::cuda::kOperatingSystem;
  ServerLink link;
  std::vector<Gpu> gpus, chosen;
  Settings settings;
  if (link.Open(&gpus, &settings) != gpu::cuda::kSuccess) return gpu::cuda::kOperatingSystem;
  Result result = MapDevices(request, gpus, settings, &chosen);
  for (size_t i = 0; result == gpu::cuda::kSuccess && i < chosen.size(); ++i) {
    if (devices_[i].contexts > 0) result = link.UseContext(chosen[i].uuid);
  }
  if (result == gpu::cuda::kSuccess) result = memory_.LoadToDevices(&link, chosen);
  room_was_missing_ = result == gpu::cuda::kOutOfMemory && settings.missing_room_is_final != 0;
  if (result == gpu::cuda::kSuccess) result = Midway(request, caller);
  if (result != gpu::cuda::kSuccess) {
    memory_.DiscardLoaded();
    return result;
  }
  memory_.SwitchToDevices();
  link_.TakeOver(&link);
  settings_ = settings;
  Heed(settings);
  for (size_t i = 0; i < chosen.size(); ++i) devices_[i].gpu = chosen[i];
  state_ = ProcessState::kLocked;
  return gpu::cuda::kSuccess;
}

Result Process::Unlock(const DoorRequest& request, int caller) {
  if (state_ != ProcessState::kLocked) return gpu::cuda::kIllegalState;
  if (!IsWrongSuccess(request)) {
    const Result result = Midway(request, caller);
    if (result != gpu::cuda::kSuccess) return result;
    gate_.Open();
  }
  state_ = ProcessState::kRunning;
  return gpu::cuda::kSuccess;
}

}  // namespace rekindle::gpu_sim
