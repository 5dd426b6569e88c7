#include "tests/gpu_sim/driver/checkpoint_call.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace rekindle::gpu_sim {
namespace {

using gpu::cuda::Result;

pid_t ParentOf(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, 5, "PPid:") == 0) return std::atoi(line.c_str() + 5);
  }
  return 0;
}

void KillAndWait(pid_t pid) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (process < 0) return;
  kill(pid, SIGKILL);
  pollfd ended{process, POLLIN, 0};
  poll(&ended, 1, -1);
  close(process);
}

// kSuccess: the call goes on.
Result Strike(const Fault& fault, pid_t target) {
  switch (fault.kind) {
    case FaultKind::kFail:
      return fault.code;
    case FaultKind::kDelay:
      std::this_thread::sleep_for(std::chrono::milliseconds(fault.delay_ms));
      return gpu::cuda::kSuccess;
    case FaultKind::kHang:
      for (;;) pause();
    case FaultKind::kKillTarget:
      KillAndWait(target);
      return gpu::cuda::kSuccess;
    case FaultKind::kKillCaller:
      raise(SIGKILL);
      return gpu::cuda::kUnknown;
    default:
      return gpu::cuda::kSuccess;
  }
}

Result CallWithFault(pid_t pid, const DoorRequest& request, int* value) {
  const Fault& fault = request.fault;
  if (fault.time == FaultTime::kBefore) {
    const Result struck = Strike(fault, pid);
    if (struck != gpu::cuda::kSuccess) return struck;
  }
  DoorReply reply{};
  const Result result = KnockAt(pid, request, &reply);
  *value = reply.value;
  if (fault.time == FaultTime::kAfter) {
    const Result struck = Strike(fault, pid);
    if (struck != gpu::cuda::kSuccess) return struck;
  }
  return result;
}

}  // namespace

Result CallCheckpoint(pid_t pid, DoorRequest request, int* value) {
  Reply begun;
  AskOnce({.op = Op::kBeginCall, .call = request.call, .pid = pid}, "", &begun, nullptr);
  request.fault = begun.fault;
  Result result = CallWithFault(pid, request, value);
  // What it has of its parent's leads to that.
  if (result == gpu::cuda::kNotInitialized && begun.settings.forks_answer != 0)
    result = CallWithFault(ParentOf(pid), request, value);
  Reply ended;
  AskOnce({.op = Op::kEndCall, .result = result, .id = begun.id}, "", &ended, nullptr);
  return result;
}

}  // namespace rekindle::gpu_sim
